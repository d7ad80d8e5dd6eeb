"""The view against strict clients: each applies what it is sent, by the letter of the RFCs, and may never see a
response that is not allowed at that point; after a last flush it must know exactly what the folder holds.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.imap.commands.registry import COMMANDS
from protocol.imap.flags import FlagTable
from protocol.imap.sequence_set import SequenceSet, parse_set
from protocol.imap.session_view import Emission, FlagUpdate, FolderChange, View, emission
from protocol.imap.wire.lexer import Dialect

LINE = re.compile(rb"\* (?:(\d+) )?([A-Z]+) ?(.*)")
DIALECTS = [
    Dialect(),
    Dialect(rev2=True, utf8=True),
    Dialect(condstore=True),
    Dialect(condstore=True, qresync=True),
    Dialect(uid_only=True),
    Dialect(condstore=True, qresync=True, uid_only=True),
]


class Folder:
    """The folder in the store; every change is one commit with its own mod-sequence."""

    def __init__(self) -> None:
        self.flags = FlagTable()
        self.uids: array[int] = array("I")
        self.mask: dict[int, int] = {}
        self.modseq_of: dict[int, int] = {}
        self.modseq = 1
        self.next_uid = 1

    def masks(self, uids: Sequence[int]) -> list[int]:
        return [self.mask[uid] for uid in uids]

    def modseqs(self, uids: Sequence[int]) -> list[int]:
        return [self.modseq_of[uid] for uid in uids]

    def deliver(self, count: int, gap: int) -> FolderChange:
        self.modseq += 1
        self.uids = self.uids[:]
        for _ in range(count):
            self.next_uid += gap
            self.uids.append(self.next_uid)
            self.mask[self.next_uid] = 0
            self.modseq_of[self.next_uid] = self.modseq
        return FolderChange(self.uids, self.modseq)

    def expunge(self, uids: Sequence[int]) -> FolderChange:
        self.modseq += 1
        self.uids = array("I", [uid for uid in self.uids if uid not in uids])
        return FolderChange(self.uids, self.modseq, expunged=uids)

    def store(self, uids: Sequence[int], mask: int, add: bool) -> FolderChange:
        """A message with unchanged flags keeps its mod-sequence (RFC 7162 3.1.11)."""
        self.modseq += 1
        changed = []
        for uid in uids:
            new = self.mask[uid] | mask if add else mask
            if new != self.mask[uid]:
                self.mask[uid] = new
                self.modseq_of[uid] = self.modseq
                changed.append(uid)
        return FolderChange(self.uids, self.modseq, flagged=changed)


class Client:
    """A client that derives its state only from responses."""

    def __init__(self, folder: Folder, dialect: Dialect) -> None:
        self.folder = folder
        self.dialect = dialect
        self.view = View(folder.uids, folder.modseq, folder.flags, dialect)
        self.uids = list(folder.uids)
        self.top = max(self.uids, default=0)
        self.mask = {uid: folder.mask[uid] for uid in self.uids}
        self.flag_count = len(folder.flags)
        self.highest = folder.modseq
        self.unannounced: dict[int, int] = {}  # expunged, by mod-sequence
        self.saved: list[int] = []

    def receive(self, point: Emission) -> None:
        lines = self.view.flush(point, self.folder).split(b"\r\n")[:-1]
        modseqs = [re.findall(rb"MODSEQ \((\d+)\)", line) for line in lines if b" FLAGS (" in line]
        assert modseqs == sorted(modseqs, key=lambda modseq: int(modseq[0]) if modseq else 0)
        for line in lines:
            match = LINE.fullmatch(line)
            assert match, line
            number = int(match[1] or 0)
            getattr(self, "on_" + match[2].decode().lower())(number, match[3], point)
        # RFC 7162 3.2: if the client reconnects now, resynchronisation reports every lost expunge.
        if self.dialect.qresync:
            assert all(self.highest < modseq for modseq in self.unannounced.values())

    def on_flags(self, number: int, rest: bytes, point: Emission) -> None:
        assert number == 0
        self.flag_count = len(rest.strip(b"()").split())

    def on_ok(self, number: int, rest: bytes, point: Emission) -> None:
        assert number == 0
        if rest.startswith(b"[HIGHESTMODSEQ "):
            assert self.dialect.qresync
            self.highest = int(rest.split()[1].rstrip(b"]"))

    def on_exists(self, number: int, rest: bytes, point: Emission) -> None:
        new = [uid for uid in self.folder.uids if uid > self.top]
        assert new, "EXISTS without new messages"
        self.uids += new
        assert number == len(self.uids)
        self.top = new[-1]
        # The client fetches the flags of new messages, as real ones do.
        self.mask.update({uid: self.folder.mask[uid] for uid in new})

    def on_expunge(self, number: int, rest: bytes, point: Emission) -> None:
        assert point is Emission.ALL, "EXPUNGE where it is not allowed"
        assert not self.dialect.qresync
        assert not self.dialect.uid_only
        assert 1 <= number <= len(self.uids)
        self.forget(self.uids[number - 1])

    def on_vanished(self, number: int, rest: bytes, point: Emission) -> None:
        assert point is Emission.ALL, "VANISHED where it is not allowed"
        assert self.dialect.qresync or self.dialect.uid_only
        for low, high in parse_set(rest).ranges:
            for uid in range(low, high + 1):
                assert uid in self.uids, "VANISHED of a message that was not announced"
                self.forget(uid)

    def forget(self, uid: int) -> None:
        assert uid not in self.folder.uids, "a message that is still there"
        self.uids.remove(uid)
        self.unannounced.pop(uid)
        if uid in self.saved:
            self.saved.remove(uid)

    def on_fetch(self, number: int, rest: bytes, point: Emission) -> None:
        assert not self.dialect.uid_only
        assert 1 <= number <= len(self.uids)
        uid = self.uids[number - 1]
        assert b"UID %d" % uid in rest
        self.learn(uid, rest)

    def on_uidfetch(self, number: int, rest: bytes, point: Emission) -> None:
        assert self.dialect.uid_only
        assert number in self.uids
        self.learn(number, rest)

    def learn(self, uid: int, rest: bytes) -> None:
        if flags := re.search(rb"FLAGS \(([^)]*)\)", rest):
            self.mask[uid] = self.folder.flags.mask(flags[1].decode().split())
            assert self.mask[uid] < 1 << self.flag_count, "a keyword before it was announced in FLAGS"
        else:
            assert self.dialect.condstore
        assert (b"MODSEQ (" in rest) == self.dialect.condstore
        if modseq := re.search(rb"MODSEQ \((\d+)\)", rest):
            assert int(modseq[1]) == self.folder.modseq_of[uid]
            self.highest = max(self.highest, int(modseq[1]))


class ViewMachine(RuleBasedStateMachine):
    @initialize(count=st.integers(0, 6), dialects=st.lists(st.sampled_from(DIALECTS), min_size=1, max_size=3))
    def start(self, count: int, dialects: list[Dialect]) -> None:
        self.folder = Folder()
        if count:
            self.folder.deliver(count, 1)
        self.clients = [Client(self.folder, dialect) for dialect in dialects]

    def spread(self, change: FolderChange, own: Client | None = None, report: FlagUpdate = FlagUpdate.FLAGS) -> None:
        for client in self.clients:
            for uid in change.expunged:
                if uid in client.uids:
                    client.unannounced[uid] = change.modseq
            client.view.apply(change, report if client is own else FlagUpdate.FLAGS)

    def some(self, data: st.DataObject, uids: Sequence[int]) -> list[int]:
        return sorted(data.draw(st.sets(st.sampled_from(list(uids)), min_size=1)))

    def client(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.clients))

    @rule(count=st.integers(1, 4), gap=st.integers(1, 3))
    def deliver(self, count: int, gap: int) -> None:
        self.spread(self.folder.deliver(count, gap))

    @rule(data=st.data())
    def expunge(self, data: st.DataObject) -> None:
        if self.folder.uids:
            self.spread(self.folder.expunge(self.some(data, self.folder.uids)))

    @rule(data=st.data(), mask=st.integers(0, 31))
    def store_elsewhere(self, data: st.DataObject, mask: int) -> None:
        if self.folder.uids:
            self.spread(self.folder.store(self.some(data, self.folder.uids), mask, add=False))

    @rule(data=st.data(), name=st.sampled_from(["$Junk", "$NotJunk", "Todo"]))
    def new_keyword(self, data: st.DataObject, name: str) -> None:
        if self.folder.uids:
            mask = self.folder.flags.mask([name])
            self.spread(self.folder.store(self.some(data, self.folder.uids), mask, add=True))

    @rule(data=st.data(), mask=st.integers(0, 31), add=st.booleans(), silent=st.booleans(), uid=st.booleans())
    def store(self, data: st.DataObject, mask: int, add: bool, silent: bool, uid: bool) -> None:
        client = self.client(data)
        if not client.uids:
            return
        chosen = self.some(data, client.uids)
        if uid:
            rows = client.view.by_uid(SequenceSet(tuple((u, u) for u in chosen)))
        else:
            places = [client.uids.index(u) + 1 for u in chosen]
            rows = client.view.by_number(SequenceSet(tuple((n, n) for n in places)))
        # The command applies to exactly the messages the client named, except expunged ones.
        assert list(rows.uids) == [u for u in chosen if u in self.folder.uids]
        assert rows.has_expunged == (len(rows.uids) < len(chosen))
        assert [client.uids[n - 1] for n in rows.numbers] == list(rows.uids)
        report = FlagUpdate.SILENT if silent else FlagUpdate.FLAGS
        change = self.folder.store(rows.uids, mask, add)
        self.spread(change, client, report)
        if silent:
            for u in rows.uids:
                client.mask[u] = client.mask[u] | mask if add else mask
        else:
            client.view.touch(rows.uids)
        client.receive(emission(COMMANDS["UID STORE" if uid else "STORE"]))
        if not silent:
            assert all(client.mask[u] == self.folder.mask[u] for u in rows.uids)

    @rule(
        data=st.data(),
        command=st.sampled_from(["NOOP", "IDLE", "EXPUNGE", "UID FETCH", "FETCH", "SEARCH", "SORT", "THREAD", "COPY"]),
    )
    def command(self, data: st.DataObject, command: str) -> None:
        client = self.client(data)
        client.receive(emission(COMMANDS[command]))

    @rule(data=st.data())
    def fetch_flags(self, data: st.DataObject) -> None:
        """FETCH FLAGS returns the current flags, which need not be announced again."""
        client = self.client(data)
        rows = client.view.by_uid(parse_set(b"1:*"))
        client.mask.update({u: self.folder.mask[u] for u in rows.uids})
        client.view.mark_fetched_flags(rows.uids)

    @rule(data=st.data())
    def search_and_save(self, data: st.DataObject) -> None:
        client = self.client(data)
        results = client.view.visible(self.folder.uids)
        assert [u for u in client.uids if u in self.folder.uids] == list(results)
        assert [client.uids[n - 1] for n in client.view.numbers(results)] == list(results)
        if results:
            client.saved = self.some(data, results)
            client.view.save_result(client.saved)

    @invariant()
    def numbers_are_those_of_the_client(self) -> None:
        for client in getattr(self, "clients", []):
            assert len(client.view) == len(client.uids)
            assert list(client.view.uids) == client.uids
            saved = client.view.saved_result()
            assert list(saved.uids) == [u for u in client.saved if u in self.folder.uids]
            assert [client.uids[n - 1] for n in saved.numbers] == list(saved.uids)

    def teardown(self) -> None:
        for client in getattr(self, "clients", []):
            pending = client.view.pending
            flags_are_current = client.flag_count == len(self.folder.flags)
            assert pending or not flags_are_current or client.view.flush(Emission.ALL, self.folder) == b""
            client.receive(Emission.ALL)
            assert client.uids == list(self.folder.uids)
            assert {u: client.mask[u] for u in client.uids} == {u: self.folder.mask[u] for u in self.folder.uids}
            # Every view that is up to date shares the folder's list.
            assert client.view.uids is self.folder.uids
            assert client.view.flush(Emission.ALL, self.folder) == b""
            assert not client.view.pending


TestView = ViewMachine.TestCase
TestView.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
