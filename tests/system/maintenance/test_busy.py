"""A look at a store that others change meanwhile: what is wrong is found, and nothing else."""

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


def _write(root: str, stop: str, told: Queue[Any]) -> None:
    """Deliver, flag, expunge, collect, make and rename folders and accounts, take snapshots, until told to stop."""
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
                transport.snapshot()  # and what it makes needless goes
            if done == 20:
                told.put("under way")
    told.put(done)


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
    elif what == 5:  # folders of the same names again and again
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


def test_a_busy_store_yields_no_false_finding(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    (lab.path(root, *layout.MESSAGES) / "notes.txt").write_text("really wrong")
    told = processes.channel()
    said: list[str] = []
    with processes.running(_write, str(root), str(tmp_path / "stop"), told):
        assert told.get(timeout=300) == "under way"
        found = lab.check(root, said.append)
        (tmp_path / "stop").touch()
        done = told.get(timeout=300)
    assert done > 50
    assert found.kinds == {"message-stray": 1}, found.report["items"]
    assert any("checking the findings again" in line for line in said)
    assert any(re.match(r"[\d,]+ messages read, [\d,]+/s", line) for line in said)
    assert any(re.match(r"\d+ findings", line) for line in said)
    assert lab.check(root).kinds == {"message-stray": 1}
