"""The store compared with a plain model over long random sequences of all operations.

Two open stores share one root and take turns; operations are submitted alone or in bursts that are committed together.
Every step compares the whole state visible to readers; every few steps compare all layers and replay the journal.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from adapter.store.effects import FlagChange
from adapter.store.flags import parse_uids
from adapter.store.journal import Record
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.operations.delivery import Placed
from adapter.transport.operations.registration import DeregisterMode, RegisterMode
from adapter.transport.transport import Transport, create_store
from protocol.errors import MailError, Reason
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.store.model import STANDARD, Account, Folder, Letter, Model, Refused
from tests.support.waiting import wait_until

ADDRESSES = ["ada@example.test", "bob@example.test", "grüße/c@example.test"]
LEVELS = ["a", "b", "A", "Sent", "INBOX", "Inbox", "~", ".", "é", "x" * 130]
PICTURES = [b"one" * 700, b"two" * 700, bytes(range(256)) * 3]
KEYWORDS = ["work", "WORK", "$Forwarded", "z"]
LATER = 2**40
HOWS: list[FlagChange] = ["add", "remove", "set"]
REGISTER: list[RegisterMode] = ["safe", "safe", "safe", "force", "stash"]
DEREGISTER: list[DeregisterMode] = ["deactivate", "deactivate", "stash", "purge"]

addresses = st.sampled_from(ADDRESSES)
names = st.one_of(
    st.sampled_from(["INBOX", "Sent", "Archive", "Trash", "Drafts", "a", "a/b", "b"]),
    st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3).map("/".join),
)
odd_names = st.one_of(names, names, names, st.sampled_from(["", "/", "a//b", "/a", "a/"]))
flag_bits = st.integers(0, 63)
keyword_lists = st.sets(st.sampled_from(KEYWORDS), max_size=2).map(
    lambda words: sorted({word.casefold(): word for word in sorted(words)}.values())
)


class Step(NamedTuple):
    """An operation, the model's expected result, and how the two results are compared."""

    operation: op.Operation[Any]
    expect: Callable[[], Any]
    same: Callable[[Any, Any], bool]


def equal(expected: Any, actual: Any) -> bool:
    return bool(expected == actual)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.base = Path(tempfile.mkdtemp(prefix="markpost-model-", dir=shared))
        self.root = self.base / "store"
        create_store(str(self.root))
        self.model = Model()
        self.stores: list[Transport] = []
        self.announced_seqs: list[int] = []
        self.octets: dict[str, bytes] = {}
        self.header_ids = ["<unknown@x>"]
        self.thread_ids: dict[str, str] = {}
        self.folders: list[Folder] = []  # including deleted ones
        self.greatest_uidvalidity = 0
        self.saved_index: tuple[int, bytes] | None = None
        self.steps = 0
        self.is_sound = True
        self.open()

    def open(self) -> None:
        self.stores = [Transport.open(self.root), Transport.open(self.root)]
        self.announced_seqs = [self.stores[0].index.applied_seq()]
        self.stores[0].changes.subscribe(self.collect_seqs)

    def collect_seqs(self, records: list[Record]) -> None:
        self.announced_seqs += [record.seq for record in records]

    def close(self) -> None:
        applied = self.stores[0].index.applied_seq()
        wait_until(lambda: self.announced_seqs[-1] >= applied)
        assert self.announced_seqs == list(range(self.announced_seqs[0], applied + 1))
        for store in self.stores:
            store.close()

    def teardown(self) -> None:
        try:
            if self.is_sound:
                self.check_layers()
                self.close()
                assert_layers_agree(self.root, self.base / "scratch")
        finally:
            for store in self.stores:
                store.close()
            shutil.rmtree(self.base, ignore_errors=True)

    @initialize()
    def begin(self) -> None:
        for address in ADDRESSES:
            self.run(self.stores[0], [self.registering(address, "safe")])

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self, store: Transport, steps: list[Step]) -> None:
        self.is_sound = False
        futures = [store.submit(step.operation) for step in steps]
        for step, future in zip(steps, futures):
            expected: Any
            actual: Any
            try:
                expected = step.expect()
            except Refused as refused:
                expected = refused.reason
            try:
                actual = future.result(timeout=60)
            except MailError as error:
                actual = error.reason
            if isinstance(expected, Reason) or isinstance(actual, Reason):
                assert actual == expected, step.operation
            else:
                assert step.same(expected, actual), (step.operation, expected, actual)
        self.steps += 1
        self.is_sound = True

    def letter(self, store: Transport, data: st.DataObject, to: list[str]) -> tuple[Letter, Any]:
        number = len(self.octets)
        own_id = f"<{number}@x>"
        parents = data.draw(st.lists(st.sampled_from(self.header_ids), max_size=2, unique=True), label="parents")
        pictures = data.draw(st.lists(st.integers(0, len(PICTURES) - 1), max_size=2, unique=True), label="attachments")
        named = data.draw(st.sampled_from(["to", "cc", "none"]), label="named")
        octets = message(
            f"Letter {number}",
            message_id=own_id,
            in_reply_to=parents[-1] if parents else None,
            references=parents,
            to=", ".join(to) if named == "to" and to else "someone@elsewhere.test",
            cc=", ".join(to) if named == "cc" and to else None,
            attachments=[PICTURES[which] for which in pictures],
        )
        staged = store.stage(octets)
        parts = frozenset(blob.sha256 for blob in staged.blobs)
        self.octets[staged.content.id] = octets
        self.header_ids.append(own_id)
        written = {} if named == "none" else dict.fromkeys(to, named)
        letter = Letter(
            staged.content.id,
            len(octets),
            self.model.thread_of(own_id, parents),
            own_id,
            written,
            parts,
            parts & frozenset(self.model.parts()),
        )
        return letter, staged

    # --- one operation each ----------------------------------------------------------------------------------------

    def registering(self, address: str, mode: RegisterMode) -> Step:
        def same(account: Account, registration: mailboxes.Registration) -> bool:
            account.registration = account.registration or registration.id
            return (account.registration, "active") == (registration.id, registration.status)

        return Step(op.Register(address, mode), lambda: self.model.register(address, mode), same)

    def draw_step(self, store: Transport, data: st.DataObject) -> Step:
        kinds = [
            self.draw_deliver, self.draw_deliver, self.draw_append, self.draw_flags, self.draw_flags, self.draw_copy,
            self.draw_copy, self.draw_expunge, self.draw_folder, self.draw_folder, self.draw_account, self.draw_collect,
        ]  # fmt: skip
        return kinds[data.draw(st.integers(0, len(kinds) - 1), label="kind")](store, data)

    def draw_deliver(self, store: Transport, data: st.DataObject) -> Step:
        to = data.draw(
            st.lists(st.sampled_from([*ADDRESSES, "nobody@example.test"]), min_size=1, max_size=3), label="to"
        )
        sender = data.draw(addresses, label="sender")
        keep = data.draw(st.booleans(), label="keep")
        filed = data.draw(st.dictionaries(addresses, names, max_size=1), label="filed")
        letter, staged = self.letter(store, data, [address for address in to if "/" not in address])

        def where(placed: Placed | MailError | None) -> Any:
            if placed is None or isinstance(placed, MailError):
                return placed and placed.reason
            return (placed.folder_name, placed.uid, placed.modseq)

        def same(expected: Any, delivery: op.Delivery) -> bool:
            outcomes = {address: where(outcome) for address, outcome in delivery.recipients.items()}
            return (outcomes, where(delivery.sent)) == expected and delivery.message_id == letter.id

        return Step(
            op.Deliver(staged, sender, to, filed, keep_sent=keep),
            lambda: self.model.deliver(letter, sender, to, filed, keep),
            same,
        )

    def draw_append(self, store: Transport, data: st.DataObject) -> Step:
        address = data.draw(addresses)
        name = self.draw_name(address, data)
        items, given = [], []
        for _ in range(data.draw(st.integers(1, 2))):
            letter, staged = self.letter(store, data, [])
            flags, words = data.draw(flag_bits), data.draw(keyword_lists)
            date = data.draw(st.none() | st.integers(0, 2**31))
            items.append(op.AppendItem(staged, flags, words, date))
            given.append((letter, flags, words, date))
        replaces = None
        if len(self.folders) > 0 and data.draw(st.booleans(), label="replace"):
            folder = self.folders[data.draw(st.integers(0, len(self.folders) - 1), label="folder")]
            replaces = (folder, self.draw_uids(folder, data))
        return Step(
            op.Append(address, name, items, replaces and (replaces[0].id, replaces[1])),
            lambda: self.model.append(address, name, given, replaces),
            lambda uids, placed: [place.uid for place in placed] == uids,
        )

    def draw_name(self, address: str, data: st.DataObject) -> str:
        """Draw an existing folder in most cases, preferably one the user created."""
        account = self.model.current(address)
        existing = sorted(account.folders) if account is not None else []
        made = [name for name in existing if name not in STANDARD]
        if len(made) > 0 and data.draw(st.booleans(), label="made"):
            existing = made
        if len(existing) > 0 and data.draw(st.integers(0, 3), label="existing"):
            return existing[data.draw(st.integers(0, len(existing) - 1), label="name")]
        return data.draw(odd_names, label="name")

    def draw_uids(self, folder: Folder, data: st.DataObject) -> list[int]:
        some = st.lists(st.integers(1, folder.uidnext + 1), max_size=5)
        uids: list[int] = data.draw(st.one_of(st.just([*folder.entries]), some), label="uids")
        return uids

    def draw_place(self, data: st.DataObject) -> tuple[str, Folder]:
        """Draw a folder and its owner; sometimes a deleted folder, or one of another account."""
        busy = [folder for folder in self.folders if folder.exists and folder.entries]
        choice = busy if len(busy) > 0 and data.draw(st.integers(0, 5)) else self.folders
        folder = choice[data.draw(st.integers(0, len(choice) - 1), label="folder")]
        address = data.draw(addresses) if data.draw(st.integers(0, 9)) == 0 else folder.owner.address
        return address, folder

    def draw_flags(self, store: Transport, data: st.DataObject) -> Step:
        address, folder = self.draw_place(data)
        uids, how = self.draw_uids(folder, data), data.draw(st.sampled_from(HOWS))
        flags, words = data.draw(flag_bits), data.draw(keyword_lists)
        since = data.draw(st.none() | st.integers(0, folder.modseq + 1))
        return Step(
            op.ChangeFlags(address, folder.id, uids, how, flags, words, since),
            lambda: self.model.change_flags(address, folder, uids, how, flags, words, since),
            lambda expected, actual: (actual.modseq, actual.changed, actual.unchanged, actual.modified) == expected,
        )

    def draw_copy(self, store: Transport, data: st.DataObject) -> Step:
        address, folder = self.draw_place(data)
        uids, to, move = self.draw_uids(folder, data), self.draw_name(address, data), data.draw(st.booleans())

        def same(expected: Any, actual: op.Copied) -> bool:
            is_same_target = expected.target.id in (
                0,
                actual.folder,
            )  # created in this burst: its id is not known to the model yet
            return is_same_target and (actual.uids, actual.modseq, actual.expunged_modseq) == (
                expected.uids,
                expected.modseq,
                expected.expunged_modseq,
            )

        return Step(
            (op.Move if move else op.Copy)(address, folder.id, uids, to),
            lambda: self.model.copy(address, folder, uids, to, move=move),
            same,
        )

    def draw_expunge(self, store: Transport, data: st.DataObject) -> Step:
        address, folder = self.draw_place(data)
        uids = data.draw(st.none() | st.just(self.draw_uids(folder, data)))
        return Step(
            op.Expunge(address, folder.id, uids),
            lambda: (self.model.expunge(address, folder, uids), folder.modseq),
            lambda expected, actual: (actual.uids, actual.modseq) == expected,
        )

    def draw_folder(self, store: Transport, data: st.DataObject) -> Step:
        address = data.draw(addresses)
        name, other = self.draw_name(address, data), data.draw(odd_names, label="other")
        kind = data.draw(st.sampled_from(["create", "rename", "rename", "delete", "subscribe"]))
        if kind == "create":
            use = data.draw(st.sampled_from(["", "", "\\Sent", "\\Archive", "\\Flagged"]))
            return Step(
                op.CreateFolder(address, other, use),
                lambda: self.model.create(address, other, use),
                lambda _, folder: folder.special_use == use,
            )
        if kind == "rename":
            return Step(
                op.RenameFolder(address, name, other),
                lambda: self.model.rename(address, name, other),
                lambda _, folder: folder is not None,
            )
        if kind == "delete":
            return Step(op.DeleteFolder(address, name), lambda: self.model.delete(address, name), equal)
        on = data.draw(st.booleans())
        return Step(op.Subscribe(address, name, on), lambda: self.model.subscribe(address, name, on), equal)

    def draw_account(self, store: Transport, data: st.DataObject) -> Step:
        address = data.draw(addresses)
        if data.draw(st.integers(0, 2)):
            return self.registering(address, data.draw(st.sampled_from(REGISTER)))
        mode = data.draw(st.sampled_from(DEREGISTER))
        return Step(op.Deregister(address, mode), lambda: self.model.deregister(address, mode), equal)

    def draw_collect(self, store: Transport, data: st.DataObject) -> Step:
        return Step(op.Collect(LATER), self.model.collect, equal)

    # --- rules -----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), which=st.integers(0, 1))
    def deliver(self, data: st.DataObject, which: int) -> None:
        self.run(self.stores[which], [self.draw_deliver(self.stores[which], data)])

    @rule(data=st.data(), which=st.integers(0, 1))
    def append(self, data: st.DataObject, which: int) -> None:
        self.run(self.stores[which], [self.draw_append(self.stores[which], data)])

    @rule(data=st.data(), which=st.integers(0, 1))
    def change_flags(self, data: st.DataObject, which: int) -> None:
        self.run(self.stores[which], [self.draw_flags(self.stores[which], data)])

    @rule(data=st.data(), which=st.integers(0, 1))
    def copy_or_move(self, data: st.DataObject, which: int) -> None:
        self.run(self.stores[which], [self.draw_copy(self.stores[which], data)])

    @rule(data=st.data(), which=st.integers(0, 1))
    def delete_and_expunge(self, data: st.DataObject, which: int) -> None:
        address, folder = self.draw_place(data)
        uids = self.draw_uids(folder, data)
        mark = Step(
            op.ChangeFlags(address, folder.id, uids, "add", 8),
            lambda: self.model.change_flags(address, folder, uids, "add", 8, (), None),
            lambda expected, actual: (actual.modseq, actual.changed) == expected[:2],
        )
        sweep = Step(
            op.Expunge(address, folder.id),
            lambda: self.model.expunge(address, folder, None),
            lambda expected, actual: actual.uids == expected,
        )
        self.run(self.stores[which], [mark, sweep])

    @rule(data=st.data(), which=st.integers(0, 1))
    def change_folders(self, data: st.DataObject, which: int) -> None:
        self.run(self.stores[which], [self.draw_folder(self.stores[which], data)])

    @rule(data=st.data(), which=st.integers(0, 1), count=st.integers(2, 6))
    def burst(self, data: st.DataObject, which: int, count: int) -> None:
        """Prepare all operations before submitting any; they are applied in order."""
        self.run(self.stores[which], [self.draw_step(self.stores[which], data) for _ in range(count)])

    @rule(data=st.data(), which=st.integers(0, 1), count=st.integers(2, 6))
    def another_burst(self, data: st.DataObject, which: int, count: int) -> None:
        self.run(self.stores[which], [self.draw_step(self.stores[which], data) for _ in range(count)])

    @rule(data=st.data(), which=st.integers(0, 1))
    def collect_or_change_accounts(self, data: st.DataObject, which: int) -> None:
        draw = self.draw_collect if data.draw(st.booleans()) else self.draw_account
        self.run(self.stores[which], [draw(self.stores[which], data)])

    @rule(kind=st.sampled_from(["reopen", "snapshot", "snapshot", "forget caches", "save index", "save index"]))
    def maintain_the_store(self, kind: str) -> None:
        if kind == "reopen":
            self.close()
            self.open()
            assert [store.recovered for store in self.stores] == [0, 0]
        elif kind == "snapshot":
            assert self.stores[1].snapshot() == self.stores[0].index.applied_seq()
            self.saved_index = None  # the journal may no longer reach back to it
        elif kind == "forget caches":
            with closing(sqlite3.connect(self.root / "index.sqlite", timeout=30)) as index:
                index.execute("DELETE FROM cache_messages")
                index.commit()
        else:
            self.saved_index = (self.stores[0].index.applied_seq(), (self.root / "index.sqlite").read_bytes())

    @rule()
    def restore_an_old_index_or_lose_it(self) -> None:
        applied = self.stores[0].index.applied_seq()
        self.close()
        if self.saved_index is not None:
            seq, old = self.saved_index
            (self.root / "index.sqlite").write_bytes(old)
            self.open()
            assert [store.recovered for store in self.stores] == [applied - seq, 0]
        else:  # as after a power loss: no valid checkpoint, and a torn index
            (self.root / "journal" / "checkpoint.json").unlink()
            (self.root / "index.sqlite").write_bytes(b"torn")
            self.open()

    # --- invariants ------------------------------------------------------------------------------------------------

    @invariant()
    def store_equals_the_model(self) -> None:
        self.is_sound = False
        with self.stores[self.steps % 2].reading() as connection:
            registrations = sorted((r.address, r.status) for r in mailboxes.registrations(connection))
            assert registrations == sorted((account.address, account.status) for account in self.model.accounts)
            for account in self.model.accounts:
                if account.status != "purged":
                    self.compare_account(connection, account)
            self.compare_messages(connection)
        given = [folder.uidvalidity for folder in self.folders]
        assert len(given) == len(set(given))
        self.greatest_uidvalidity = max(given)
        self.is_sound = True

    def compare_account(self, connection: sqlite3.Connection, account: Account) -> None:
        stored = {folder.name: folder for folder in mailboxes.folders(connection, account.registration)}
        assert stored.keys() == account.folders.keys()
        for name, folder in account.folders.items():
            if not folder.id:
                folder.id, folder.uidvalidity = stored[name].id, stored[name].uidvalidity
                assert folder.id not in {other.id for other in self.folders}
                assert folder.uidvalidity > self.greatest_uidvalidity
                self.folders.append(folder)
            self.compare_folder(connection, folder, stored[name])
        assert set(mailboxes.subscriptions(connection, account.registration)) == account.subscriptions
        self.compare_threads(connection, account)

    def compare_folder(self, connection: sqlite3.Connection, folder: Folder, stored: mailboxes.Folder) -> None:
        entries = folder.entries
        assert stored == mailboxes.Folder(
            folder.id,
            folder.owner.registration,
            stored.directory,
            folder.name,
            folder.special_use,
            folder.uidvalidity,
            folder.uidnext,
            folder.modseq,
            len(entries),
            sum(not entry.flags & 1 for entry in entries.values()),
            sum(bool(entry.flags & 8) for entry in entries.values()),
            sum(entry.letter.size for entry in entries.values()),
        )
        rows = mailboxes.rows(connection, folder.id)
        assert [row.uid for row in rows] == sorted(entries)
        for row in rows:
            entry = entries[row.uid]
            entry.date = row.internal_date if entry.date is None else entry.date
            thread = self.thread_ids.setdefault(entry.letter.thread, row.thread_id)
            assert row == mailboxes.Row(
                row.uid,
                entry.letter.id,
                *entry.shown,
                entry.modseq,
                entry.date,
                row.saved_at,
                entry.letter.size,
                thread,
            )
        removed = mailboxes.expunged_since(connection, folder.id, 0)
        ranges = [parse_uids(uids) for uids in removed]
        assert [[uid for a, b in spans for uid in range(a, b + 1)] for spans in ranges] == folder.expunged

    def compare_threads(self, connection: sqlite3.Connection, account: Account) -> None:
        expected: dict[str, list[Any]] = {}
        for folder in account.folders.values():
            for entry in folder.entries.values():
                summary = expected.setdefault(self.thread_ids[entry.letter.thread], [0, 0, ""])
                summary[0] += 1
                summary[1] += not entry.flags & 1
                summary[2] = max(summary[2], entry.letter.id)
        stored = mailboxes.threads(connection, account.registration, 1000)
        assert {thread.thread_id: [*thread[1:4]] for thread in stored} == expected
        assert len(set(self.thread_ids.values())) == len(self.thread_ids)

    def compare_messages(self, connection: sqlite3.Connection) -> None:
        shown = self.model.shown()
        rows = connection.execute(
            "SELECT message_id, file_sha256 <> '', unlinked_at IS NOT NULL FROM messages"
        ).fetchall()
        assert {row[0]: (bool(row[1]), bool(row[2])) for row in rows} == {
            letter.id: (letter.has_content, letter.has_content and letter not in shown)
            for letter in self.model.letters.values()
        }
        parts = connection.execute("SELECT sha256 FROM attachments").fetchall()
        assert {row[0] for row in parts} == self.model.parts()
        history: dict[str, dict[str, str]] = {}
        for message_id, address, kind in connection.execute("SELECT * FROM message_recipients").fetchall():
            history.setdefault(message_id, {})[address] = kind
        assert history == self.model.recipients

    @invariant()
    def octets_are_unchanged(self) -> None:
        whole = [letter.id for letter in self.model.letters.values() if letter.has_content]
        for message_id in whole[self.steps % 7 :: 7]:
            assert self.stores[self.steps % 2].content.octets(message_id) == self.octets[message_id]

    @invariant()
    def layers_agree(self) -> None:
        if self.steps % 8 == 7:
            self.check_layers()

    def check_layers(self) -> None:
        assert_layers_agree(self.root, self.base / "scratch", open_stores=len(self.stores))


LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=400 if LONG else 15, stateful_step_count=100 if LONG else 40, deadline=None
)
