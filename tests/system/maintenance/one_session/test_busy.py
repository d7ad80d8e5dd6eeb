"""Check of a store in use: damage is found, and concurrent changes give no false findings."""

from __future__ import annotations

import random
import re
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import pytest

from adapter.accounts.credentials import Credentials
from adapter.store import layout
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support import processes
from tests.support.messages import message
from tests.support.stores import ADA, BOB, deliver, folder, rows
from tests.system.maintenance.lab import lab, lab_stores

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine


def _write(root: str, stop: str, results: Queue[Any]) -> None:
    """Change mail, folders and accounts, collect garbage and take snapshots, until the stop file exists."""
    chance = random.Random(1)
    done = 0
    with Transport.open(root) as transport, Credentials.open(transport) as credentials:
        while not Path(stop).exists():
            try:
                _change(transport, credentials, chance, done)
            except MailError:
                continue
            done += 1
            time.sleep(0.01)
            if done % 30 == 0:
                transport.snapshot()  # and compact the journal
            if done == 20:
                results.put("started")
    results.put(done)


def _change(transport: Transport, credentials: Credentials, chance: random.Random, number: int) -> None:
    what = number % 8
    if what < 3:
        deliver(transport, ADA, BOB, octets=message(f"Busy {number}", attachments=[b"%d" % number]))
    elif what == 3:
        uids = [row.uid for row in rows(transport)]
        transport.run(op.ChangeFlags(ADA, folder(transport).id, chance.sample(uids, len(uids) // 2), "add", 9, ["x"]))
    elif what == 4:
        transport.run(op.Expunge(ADA, folder(transport).id))
        transport.run(op.Collect(2**40))
    elif what == 5:  # recreate folders with the same names
        transport.run(op.CreateFolder(BOB, "Now and then"))
        transport.run(op.Copy(BOB, folder(transport, address=BOB).id, range(1, 1000), "Now and then"))
    elif what == 6:
        transport.run(op.RenameFolder(BOB, "Now and then", "Later"))
        transport.run(op.Register(f"guest-{number + 1}@example.test"))
        credentials.set_password(f"guest-{number + 1}@example.test", "secret")
    else:
        transport.run(op.DeleteFolder(BOB, "Later"))
        credentials.remove(f"guest-{number}@example.test")
        transport.run(op.Deregister(f"guest-{number}@example.test", "purge"))


def test_check_of_a_store_in_use_has_no_false_findings(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    (lab.path(root, *layout.MESSAGES) / "notes.txt").write_text("really wrong")
    results = processes.channel()
    progress: list[str] = []
    with processes.running(_write, str(root), str(tmp_path / "stop"), results):
        assert results.get(timeout=300) == "started"
        checked = lab.check(root, progress.append)
        (tmp_path / "stop").touch()
        done = results.get(timeout=300)
    assert done > 50
    assert checked.kinds == {"message-stray": 1}, checked.report["items"]
    assert any("checking the findings again" in line for line in progress)
    assert any(re.match(r"[\d,]+ messages read, [\d,]+/s", line) for line in progress)
    assert any(re.match(r"\d+ findings", line) for line in progress)
    assert lab.check(root).kinds == {"message-stray": 1}
