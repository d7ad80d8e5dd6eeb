"""Four processes with several threads each work on the same addresses at once.

The result of every operation is recorded. In the end the change feed, which the parent follows from the beginning, the
store and a replay of the journal must all agree with the records. ``MARKPOST_STRESS_SECONDS`` says how long they work.
"""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adapter.store.effects import AddContent, Effect, Project, SetFlags, Unproject
from adapter.store.flags import parse_uids
from adapter.store.journal import Record
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport import operations as op
from adapter.transport.operations.delivery import Placed
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.processes import running
from tests.support.stores import new_store
from tests.support.waiting import PATIENCE, wait_until

SECONDS = float(os.environ.get("MARKPOST_STRESS_SECONDS", "30"))
PROCESSES = 4
WRITERS = 4
ADDRESSES = [f"user{number}@example.test" for number in range(5)]
COMES_AND_GOES = "guest@example.test"
NAMES = ["Work", "Work/a", "Work/b", "Old", "Old/Work"]
PICTURES = [bytes([number]) * 3000 for number in range(4)]
EXPECTED = {
    Reason.NO_SUCH_FOLDER,
    Reason.FOLDER_EXISTS,
    Reason.NOT_ALLOWED,
    Reason.NO_SUCH_ADDRESS,
    Reason.INACTIVE_ADDRESS,
    Reason.ADDRESS_EXISTS,
}

Place = tuple[int, int]  # folder id and UID


@dataclass
class Results:
    """Results that operations returned."""

    projected: dict[Place, str] = field(default_factory=dict)  # -> message id
    removed: set[Place] = field(default_factory=set)
    flagged: list[tuple[int, int, list[int]]] = field(default_factory=list)  # folder, modseq, UIDs
    brought: set[str] = field(default_factory=set)  # message ids
    operations: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    reads: int = 0
    troubles: list[str] = field(default_factory=list)

    def project(self, folder: int, uid: int, message_id: str) -> None:
        if (folder, uid) in self.projected:
            self.troubles.append(f"UID {uid} of {folder} was given out twice")
        self.projected[folder, uid] = message_id

    def merge(self, other: Results) -> None:
        for place in self.projected.keys() & other.projected.keys():
            self.troubles.append(f"UID {place} was given out twice")
        self.projected |= other.projected
        self.removed |= other.removed
        self.flagged += other.flagged
        self.brought |= other.brought
        self.operations += other.operations
        self.refusals += other.refusals
        self.reads += other.reads
        self.troubles += other.troubles


class Worker:
    """One thread that writes."""

    def __init__(self, store: Transport, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.seed = seed
        self.results = Results()
        self.number = 0

    def work(self, until: float) -> None:
        kinds = [
            (self.deliver, 30), (self.append, 10), (self.flags, 20), (self.copy, 12), (self.move, 12),
            (self.expunge, 12), (self.folder, 8), (self.guest, 2), (self.collect, 2), (self.snapshot, 1),
        ]  # fmt: skip
        while time.monotonic() < until:
            (kind,) = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
            try:
                kind()
                self.results.operations[kind.__name__] += 1
            except MailError as error:
                self.results.refusals[error.reason.name] += 1
                expected = (
                    error.reason in EXPECTED or "was collected while" in error.detail or "snapshot" in error.detail
                )
                if not expected:
                    self.results.troubles.append(f"{kind.__name__}: {error.reason.name} {error}")
            except Exception as error:
                self.results.troubles.append(f"{kind.__name__}: {error!r}")
                return

    def octets(self) -> bytes:
        self.number += 1
        pictures = self.random.sample(PICTURES, self.random.choice([0, 0, 1, 2]))
        body = "x" * 76 + "\r\n"
        large = self.random.random() < 0.01
        return message(
            f"{self.seed}.{self.number}",
            body * (6000 if large else self.random.randrange(30)),
            message_id=f"<{self.seed}.{self.number}@x>",
            in_reply_to=f"<{self.seed}.{self.random.randrange(self.number)}@x>",
            attachments=pictures,
        )

    def some_folder(self) -> tuple[str, Folder, list[int]]:
        address = self.random.choice(ADDRESSES)
        with self.store.reading() as connection:
            registration = mailboxes.active_registration(connection, address)
            folder = self.random.choice(mailboxes.folders(connection, registration.id))
            uids = [row.uid for row in mailboxes.rows(connection, folder.id)]
        return address, folder, self.random.sample(uids, min(len(uids), self.random.randrange(1, 8)))

    def deliver(self) -> None:
        to = self.random.sample([*ADDRESSES, COMES_AND_GOES], self.random.randrange(1, 4))
        sender = self.random.choice(ADDRESSES)
        staged = self.store.stage(self.octets())
        delivery = self.store.run(op.Deliver(staged, sender, to, keep_sent=self.random.random() < 0.3))
        placed = [*delivery.recipients.values(), delivery.sent]
        for place in placed:
            if isinstance(place, Placed):
                self.results.project(place.folder, place.uid, delivery.message_id)
                self.results.brought.add(delivery.message_id)

    def append(self) -> None:
        staged = [self.store.stage(self.octets()) for _ in range(self.random.randrange(1, 3))]
        items = [op.AppendItem(item, self.random.randrange(32), ["k"]) for item in staged]
        name = self.random.choice(["Drafts", "INBOX", *NAMES])
        placed = self.store.run(op.Append(self.random.choice(ADDRESSES), name, items))
        for place, item in zip(placed, staged):
            self.results.project(place.folder, place.uid, item.content.id)
            self.results.brought.add(item.content.id)

    def flags(self) -> None:
        address, folder, uids = self.some_folder()
        how = self.random.choice(["add", "remove", "set"])
        words = self.random.sample(["a", "B", "c"], self.random.randrange(3))
        result = self.store.run(op.ChangeFlags(address, folder.id, uids, how, self.random.randrange(64), words))  # type: ignore[arg-type]
        if result.changed:
            self.results.flagged.append((folder.id, result.modseq, [uid for uid, _, _ in result.changed]))

    def _take(self, copied: op.Copied, source: int, *, moved: bool) -> None:
        for old, new in copied.uids:
            self.results.project(copied.folder, new, "")
            if moved:
                self.results.removed.add((source, old))

    def copy(self) -> None:
        address, folder, uids = self.some_folder()
        target = self.random.choice(["Archive", "Trash", "INBOX", *NAMES])
        self._take(self.store.run(op.Copy(address, folder.id, uids[:3], target)), folder.id, moved=False)

    def move(self) -> None:
        address, folder, uids = self.some_folder()
        target = self.random.choice(["Archive", "Trash", "INBOX", *NAMES])
        self._take(self.store.run(op.Move(address, folder.id, uids, target)), folder.id, moved=True)

    def expunge(self) -> None:
        address, folder, uids = self.some_folder()
        self.store.run(op.ChangeFlags(address, folder.id, uids, "add", 8))
        gone = self.store.run(op.Expunge(address, folder.id, self.random.choice([None, uids])))
        self.results.removed |= {(folder.id, uid) for uid in gone.uids}

    def folder(self) -> None:
        address, name, other = self.random.choice(ADDRESSES), self.random.choice(NAMES), self.random.choice(NAMES)
        operations: list[op.Operation[Any]] = [
            op.CreateFolder(address, name),
            op.CreateFolder(address, name),
            op.RenameFolder(address, name, other),
            op.DeleteFolder(address, name),
            op.Subscribe(address, name, self.random.random() < 0.5),
        ]
        self.store.run(self.random.choice(operations))

    def guest(self) -> None:
        operations: list[op.Operation[Any]] = [
            op.Register(COMES_AND_GOES),
            op.Register(COMES_AND_GOES, "stash"),
            op.Deregister(COMES_AND_GOES),
            op.Deregister(COMES_AND_GOES, "purge"),
        ]
        self.store.run(self.random.choice(operations))

    def collect(self) -> None:
        self.store.run(op.Collect(2**40, limit=50))

    def snapshot(self) -> None:
        if self.seed == 0 and self.random.random() < 0.2:
            self.store.snapshot()


def read_on(store: Transport, seed: int, until: float, results: Results) -> None:
    """One thread that reads: what it sees in one block fits together, and what is shown can be read."""
    chance = random.Random(seed)
    while time.monotonic() < until:
        time.sleep(0.002)  # a reader that never pauses would leave the writers little to show
        try:
            with store.reading() as connection:
                address = chance.choice(ADDRESSES)
                registration = mailboxes.active_registration(connection, address)
                folders = mailboxes.folders(connection, registration.id)
                folder = chance.choice(folders)
                rows = mailboxes.rows(connection, folder.id)
            counted = (len(rows), sum(not row.flags & 1 for row in rows), sum(row.size for row in rows))
            if counted != (folder.messages, folder.unseen, folder.size):
                results.troubles.append(f"{folder} <> {counted}")
            if rows and max(row.uid for row in rows) >= folder.uidnext:
                results.troubles.append(f"UIDNEXT of {folder}")
            if rows:
                row = chance.choice(rows)
                results.reads += 1
                if len(store.content.octets(row.message_id)) != row.size:
                    results.troubles.append(f"size of {row}")
        except MailError as error:
            if error.reason is not Reason.NO_SUCH_MESSAGE or _is_shown(store, row.message_id):
                results.troubles.append(f"read: {error}")
        except Exception as error:
            results.troubles.append(f"read: {error!r}")
            return


def _is_shown(store: Transport, message_id: str) -> bool:
    return bool(store.index.query("SELECT 1 FROM mailbox_projections WHERE message_id = ?", (message_id,)))


def _process(root: str, number: int, seconds: float, result: str) -> None:
    with Transport.open(root) as store:
        until = time.monotonic() + seconds
        workers = [Worker(store, number * WRITERS + which) for which in range(WRITERS)]
        results = Results()
        threads = [threading.Thread(target=worker.work, args=(until,)) for worker in workers]
        threads.append(threading.Thread(target=read_on, args=(store, number, until, results)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + PATIENCE)
            if thread.is_alive():
                results.troubles.append("a thread does not end")
    for worker in workers:
        results.merge(worker.results)
    Path(result).write_bytes(pickle.dumps(results))


class Witness:
    """Follows the feed and notes what the records say happened."""

    def __init__(self, after: int) -> None:
        self.last = after
        self.projected: dict[Place, str] = {}
        self.removed: set[Place] = set()
        self.flagged: Counter[tuple[int, int]] = Counter()
        self.flagged_uids: dict[tuple[int, int], list[int]] = {}
        self.brought: list[str] = []
        self.missed: list[int] = []
        self.troubles: list[str] = []

    def __call__(self, records: list[Record]) -> None:
        for record in records:
            if record.seq != self.last + 1:
                self.missed += range(self.last + 1, record.seq)
            self.last = record.seq
            for effect in record.effects:
                self.note(effect)

    def note(self, effect: Effect) -> None:
        if isinstance(effect, AddContent):
            self.brought.append(effect.message_id)
        elif isinstance(effect, Project):
            for row in effect.rows:
                if (effect.folder, row.uid) in self.projected:
                    self.troubles.append(f"UID {row.uid} of {effect.folder} was used twice")
                self.projected[effect.folder, row.uid] = row.message_id
        elif isinstance(effect, Unproject):
            for gone in effect.rows:
                if (effect.folder, gone.uid) not in self.projected or (effect.folder, gone.uid) in self.removed:
                    self.troubles.append(f"UID {gone.uid} of {effect.folder} went but was not there")
                self.removed.add((effect.folder, gone.uid))
        elif isinstance(effect, SetFlags):
            key = (effect.folder, effect.modseq)
            self.flagged[key] += 1
            self.flagged_uids[key] = [uid for a, b in parse_uids(effect.uids) for uid in range(a, b + 1)]


@pytest.mark.timeout(SECONDS + 170)
def test_four_processes_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "store"
    results = Results()
    with new_store(root, *ADDRESSES) as store:
        witness = Witness(store.index.applied_seq())
        store.changes.subscribe(witness)
        started = time.monotonic()
        with ExitStack() as scope:
            for number in range(PROCESSES):
                scope.enter_context(running(_process, str(root), number, SECONDS, str(tmp_path / f"told-{number}")))
        took = time.monotonic() - started
        for number in range(PROCESSES):
            results.merge(pickle.loads((tmp_path / f"told-{number}").read_bytes()))
        applied = store.index.applied_seq()
        wait_until(lambda: witness.last >= applied)
        with store.reading() as connection:
            shown = {
                (folder, uid): message_id
                for folder, uid, message_id in connection.execute(
                    "SELECT folder_id, uid, message_id FROM mailbox_projections"
                ).fetchall()
            }
    with capsys.disabled():
        print(f"\n  {PROCESSES} processes, {WRITERS} writing threads each, {took:.1f} s:", end=" ")
        print(
            f"{results.operations.total()} operations, {results.reads} messages read, {len(shown)} messages in the end"
        )
        print(f"  {dict(results.operations)}\n  refused: {dict(results.refusals)}")
    assert results.troubles == []
    assert witness.troubles == []
    assert (witness.last, witness.missed) == (applied, [])
    assert results.operations.total() > 100

    # Each acknowledged message was brought once, and nothing was brought that was not acknowledged.
    assert len(witness.brought) == len(set(witness.brought))
    assert set(witness.brought) == results.brought
    # Each acknowledged UID was given to that message; what renaming INBOX and the like moved is not in question.
    for place, message_id in results.projected.items():
        assert witness.projected[place] == (message_id or witness.projected[place])
    assert results.removed <= witness.removed
    for folder, modseq, uids in results.flagged:
        assert witness.flagged[folder, modseq] == 1
        assert witness.flagged_uids[folder, modseq] == uids
    # Folders show exactly the messages that recorded operations added and did not remove.
    assert shown == {place: uids for place, uids in witness.projected.items() if place not in witness.removed}
    # The index, the files and a replay of the journal agree.
    assert_layers_agree(root, tmp_path / "scratch")
