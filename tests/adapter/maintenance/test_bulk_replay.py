"""Bulk replay against one effect at a time: after any sequence of effects, every table of the index is the same."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter.maintenance.expected import bulk_replay
from adapter.maintenance.expected.bulk_replay import BulkReplay
from adapter.store import effects as fx
from adapter.store import snapshots
from adapter.store.effects import Effect
from adapter.store.flags import ALL_BITS
from adapter.store.queries import schema
from adapter.store.queries.mailboxes import Folder
from adapter.transport import apply
from tests.support.store.records import KINDS
from tests.support.stores import STORE

_AT = 1_700_000_000_000_000  # microseconds
_WORDS = ["work", "Work", "$label", "later"]
_DIGESTS = [f"{number:x}" * 64 for number in range(6)]


@dataclass
class _Mailbox:
    folder: Folder
    uidnext: int = 1
    modseq: int = 1
    shown: dict[int, str] = field(default_factory=dict)  # UID -> message


class _Store:
    """Draws effects that an operation could have made, given the effects before."""

    def __init__(self) -> None:
        self.number = 0
        self.registrations: dict[str, str] = {}  # id -> address
        self.mailboxes: list[_Mailbox] = []
        self.messages: list[str] = []  # with content
        self.requested: set[str] = set()
        self.lost: set[str] = set()
        self.queued: dict[str, str] = {}  # queue id -> message

    def fresh(self) -> int:
        self.number += 1
        return self.number

    def draw(self, kind: type[Effect], chance: random.Random) -> Iterator[Effect]:
        """Effects of this kind, and those it needs in the same record; none where it does not fit."""
        return _DRAW[kind](self, chance)

    def _some_mailbox(self, chance: random.Random) -> _Mailbox | None:
        return chance.choice(self.mailboxes) if self.mailboxes else None

    def _leave(self, mailbox: _Mailbox, uids: list[int]) -> Iterator[Effect]:
        if uids:
            mailbox.modseq += 1
            rows = tuple(fx.UnprojectedRow(uid, mailbox.shown.pop(uid)) for uid in uids)
            yield fx.Unproject.out_of(mailbox.folder, mailbox.modseq, rows)

    def registration(self, chance: random.Random) -> Iterator[Effect]:
        if self.registrations and chance.random() < 0.5:
            chosen = chance.choice(sorted(self.registrations))
            status = chance.choice(["active", "inactive", "stashed", "purged"])
            yield fx.SetRegistration(chosen, self.registrations[chosen], status, f"dir-{chosen}")
            return
        chosen = f"reg-{self.fresh()}"
        self.registrations[chosen] = f"{chosen}@example.test"
        yield fx.SetRegistration(chosen, self.registrations[chosen], "active", f"dir-{chosen}")

    def folder(self, chance: random.Random) -> Iterator[Effect]:
        if not self.registrations:
            yield from self.registration(chance)
        registration = chance.choice(sorted(self.registrations))
        number = self.fresh()
        made = Folder(number, registration, f"dir-{registration}", f"folder {number}", "", 1000 + number)
        self.mailboxes.append(_Mailbox(made))
        yield fx.CreateFolder.of(made)

    def rename(self, chance: random.Random) -> Iterator[Effect]:
        if mailbox := self._some_mailbox(chance):
            yield fx.RenameFolder.of(mailbox.folder, f"renamed {self.fresh()}")

    def remove(self, chance: random.Random) -> Iterator[Effect]:
        if mailbox := self._some_mailbox(chance):
            yield from self._leave(mailbox, sorted(mailbox.shown))
            self.mailboxes.remove(mailbox)
            yield fx.RemoveFolder.of(mailbox.folder)

    def uid_floor(self, chance: random.Random) -> Iterator[Effect]:
        if mailbox := self._some_mailbox(chance):
            floor = chance.randint(1, mailbox.uidnext + 5)
            mailbox.uidnext = max(mailbox.uidnext, floor)
            yield fx.RaiseUidFloor(mailbox.folder.id, floor, chance.choice([None, 5000 + self.fresh()]))

    def subscribe(self, chance: random.Random) -> Iterator[Effect]:
        if self.registrations:
            registration = chance.choice(sorted(self.registrations))
            yield fx.Subscribe(registration, chance.choice(_WORDS), chance.random() < 0.7)

    def content(self, chance: random.Random) -> Iterator[Effect]:
        message = f"msg-{self.fresh():04}"
        self.messages.append(message)
        attachments = [
            fx.Attachment(digest, chance.choice(["attachment", "part"]), "", "", len(digest))
            for digest in chance.sample(_DIGESTS, chance.randint(0, 2))
        ]
        recipients = [fx.Recipient(f"{word}@example.test", "to") for word in chance.sample(_WORDS, 2)]
        yield fx.AddContent(
            message,
            self.number,
            "sender@example.test",
            "Sender",
            f"Subject {self.number}",
            chance.choice(["", f"<{chance.randint(1, 9)}@example.test>"]),
            f"thr-{chance.randint(1, 4)}",
            chance.randint(0, 5000),
            "w" * 64,
            "f" * 64,
            fx.StagedFile("session", "name"),
            attachments=tuple(attachments),
            recipients=tuple(recipients),
        )

    def project(self, chance: random.Random) -> Iterator[Effect]:
        mailbox = self._some_mailbox(chance)
        if mailbox is None:
            yield from self.folder(chance)
            mailbox = self.mailboxes[-1]
        if not self.messages:
            yield from self.content(chance)
        rows = []
        for message in chance.choices(self.messages, k=chance.choice([1, 1, 1, 2, 4])):
            uid = mailbox.uidnext + chance.choice([0, 0, 0, 3])
            mailbox.uidnext = uid + 1
            mailbox.shown[uid] = message
            keywords = " ".join(sorted(chance.sample(["$label", "later", "work"], chance.randint(0, 2))))
            rows.append(fx.ProjectedRow(uid, message, self.number, self.number, chance.randint(0, ALL_BITS), keywords))
        mailbox.modseq += 1
        yield fx.Project.into(mailbox.folder, mailbox.modseq, tuple(rows))

    def unproject(self, chance: random.Random) -> Iterator[Effect]:
        if (mailbox := self._some_mailbox(chance)) and mailbox.shown:
            yield from self._leave(mailbox, sorted(chance.sample(sorted(mailbox.shown), k=1 + len(mailbox.shown) // 2)))

    def flags(self, chance: random.Random) -> Iterator[Effect]:
        if (mailbox := self._some_mailbox(chance)) and mailbox.shown:
            uids = sorted(chance.sample(sorted(mailbox.shown), k=chance.randint(1, len(mailbox.shown))))
            mailbox.modseq += 1
            how: fx.FlagChange = chance.choice(["add", "remove", "set"])
            words = chance.sample(_WORDS, chance.randint(0, 2))
            yield fx.SetFlags.on(mailbox.folder, mailbox.modseq, uids, how, chance.randint(0, 31), words)

    def drop(self, chance: random.Random) -> Iterator[Effect]:
        held = {message for mailbox in self.mailboxes for message in mailbox.shown.values()} | {*self.queued.values()}
        if free := [message for message in self.messages if message not in held]:
            gone = chance.sample(free, k=chance.randint(1, len(free)))
            self.messages = [message for message in self.messages if message not in gone]
            yield fx.DropContent(tuple(gone), tuple(chance.sample(_DIGESTS, 1)))

    def enqueue(self, chance: random.Random) -> Iterator[Effect]:
        if self.messages:
            message = chance.choice(self.messages)
            ids = [f"q-{self.fresh()}" for _ in range(chance.randint(1, 2))]
            self.queued |= dict.fromkeys(ids, message)
            rows = tuple(fx.QueuedRow(queue_id, f"{queue_id}@remote.test", None, None) for queue_id in ids)
            yield fx.Enqueue(message, "a@b.test", "", None, "E", "8BITMIME", True, False, 1, 2, rows)

    def requeue(self, chance: random.Random) -> Iterator[Effect]:
        if self.queued:
            queue_id = chance.choice(sorted(self.queued))
            yield fx.Requeue((fx.RequeuedRow(queue_id, self.fresh(), self.number, "450 later", True),))

    def dequeue(self, chance: random.Random) -> Iterator[Effect]:
        if self.queued:
            queue_id = chance.choice(sorted(self.queued))
            message = self.queued.pop(queue_id)
            yield fx.Dequeue((fx.DequeuedRow(queue_id, message, f"{queue_id}@remote.test", "relayed", "250"),))

    def bookmarks(self, chance: random.Random) -> Iterator[Effect]:
        items = chance.sample(_WORDS, 2)
        yield fx.SetBookmarks("hook", tuple(fx.Bookmark(item, chance.choice([None, "1", "2"])) for item in items))

    def dsn(self, chance: random.Random) -> Iterator[Effect]:
        if free := [message for message in self.messages if message not in self.requested]:
            message = chance.choice(free)
            self.requested.add(message)
            asked = tuple(fx.DsnRecipient(f"{word}@example.test", "NEVER", None) for word in chance.sample(_WORDS, 2))
            yield fx.RequestDsn(message, "HDRS", None, asked)

    def damage(self, chance: random.Random) -> Iterator[Effect]:
        if self.messages:
            part = chance.choice(["", *_DIGESTS])
            yield fx.MarkDamaged(chance.choice(self.messages), part, "" if part else "d" * 64)

    def clear(self, chance: random.Random) -> Iterator[Effect]:
        if self.messages:
            yield fx.ClearDamage(chance.choice(self.messages), tuple(chance.sample(["", *_DIGESTS], 3)))

    def lose(self, chance: random.Random) -> Iterator[Effect]:
        if free := [message for message in self.messages if message not in self.lost]:
            message = chance.choice(free)
            self.lost.add(message)
            places = []
            for mailbox in self.mailboxes:
                uids = [uid for uid, shown in mailbox.shown.items() if shown == message]
                places += [fx.LostPlace(mailbox.folder.id, uid, 1, 2, 3, "later") for uid in uids]
                yield from self._leave(mailbox, uids)
            yield fx.MarkLost(message, tuple(places))

    def restore(self, chance: random.Random) -> Iterator[Effect]:
        if self.lost:
            message = chance.choice(sorted(self.lost))
            self.lost.discard(message)
            yield fx.RestoreLost(message, "e" * 64)


_DRAW: dict[type[Effect], Callable[[_Store, random.Random], Iterator[Effect]]] = {
    fx.AddContent: _Store.content,
    fx.DropContent: _Store.drop,
    fx.Project: _Store.project,
    fx.Unproject: _Store.unproject,
    fx.SetFlags: _Store.flags,
    fx.CreateFolder: _Store.folder,
    fx.RenameFolder: _Store.rename,
    fx.RemoveFolder: _Store.remove,
    fx.Subscribe: _Store.subscribe,
    fx.RaiseUidFloor: _Store.uid_floor,
    fx.SetRegistration: _Store.registration,
    fx.Enqueue: _Store.enqueue,
    fx.Requeue: _Store.requeue,
    fx.Dequeue: _Store.dequeue,
    fx.SetBookmarks: _Store.bookmarks,
    fx.RequestDsn: _Store.dsn,
    fx.MarkDamaged: _Store.damage,
    fx.ClearDamage: _Store.clear,
    fx.MarkLost: _Store.lose,
    fx.RestoreLost: _Store.restore,
}
#: Deliveries are what bulk replay is for: more of them than of the rest.
_DELIVERY: list[type[Effect]] = [fx.AddContent, fx.Project]
_CHANGES: list[type[Effect]] = [fx.SetFlags, fx.SetFlags, fx.Unproject]
_STEPS = [*KINDS, *_DELIVERY * 6, *_CHANGES]


def _index() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.create_tables(connection, STORE)
    return connection


def _tables(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    return {
        table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
        for table in (*snapshots.TABLES, "meta")
    }


def _made(steps: list[tuple[type[Effect], int]]) -> list[Effect]:
    store = _Store()
    return [effect for kind, seed in steps for effect in store.draw(kind, random.Random(seed))]


def _compare(made: list[Effect], *, postponed: bool) -> None:
    with closing(_index()) as expected, closing(_index()) as replayed:
        bulk = BulkReplay(replayed)
        if postponed:
            bulk.postpone_indexes()
        for effect in made:
            apply.apply_index(effect, expected, _AT)
            if not bulk.take(effect):
                apply.apply_index(effect, replayed, _AT)
        bulk.finish()
        assert _tables(replayed) == _tables(expected)
        assert schema.schema_differences(replayed) == []


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers are flushed in the middle of a sequence as well."""
    monkeypatch.setattr(bulk_replay, "_MAX_BUFFERED_ROWS", 7)
    monkeypatch.setattr(bulk_replay, "_MAX_BUFFERED_THREADS", 12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 2**32)), max_size=60), st.booleans())
def test_bulk_replay_leads_to_the_same_tables(steps: list[tuple[type[Effect], int]], postponed: bool) -> None:
    _compare(_made(steps), postponed=postponed)


def test_long_sequence_of_every_kind_leads_to_the_same_tables() -> None:
    chance = random.Random(1)
    made = _made([(chance.choice(_STEPS), chance.getrandbits(32)) for _ in range(1500)])
    assert {type(effect) for effect in made} == set(KINDS)
    _compare(made, postponed=True)
