"""A client that believes nothing: it keeps its own picture of the mailbox and checks every response.

The rules are those of RFC 3501 5.2, 7.3 and 7.4, RFC 7162 3.2 and RFC 9051 7.5: numbers are positions, UIDs ascend,
EXISTS only grows, expunges come only where they may, and no response is about a message that is not there. A flag is
announced before it is seen, and a message is recent to one session. Under UIDONLY (RFC 9586) no response has a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.support.imapd import ImapClient

_NUMBERED = re.compile(rb"\* (\d+) (EXISTS|EXPUNGE|FETCH)(?: \((.*)\))?\Z", re.DOTALL)
_BY_UID = re.compile(rb"\* (\d+) UIDFETCH \((.*)\)\Z", re.DOTALL)
_UID = re.compile(rb"UID (\d+)")
_RECENT = re.compile(rb"\* (\d+) RECENT\Z")
_ANNOUNCED = re.compile(rb"\* FLAGS \(([^()]*)\)\Z")
_FLAGS = re.compile(rb"FLAGS \(([^()]*)\)")
_MODSEQ = re.compile(rb"MODSEQ \((\d+)\)")
_VANISHED = re.compile(rb"\* VANISHED (\(EARLIER\) )?([\d:,]+)\Z")
_CODE = re.compile(rb"\* OK \[(UIDVALIDITY|HIGHESTMODSEQ) (\d+)\]")
#: Under these message numbers must not change.
_FROZEN = (b"FETCH", b"STORE", b"SEARCH")


def expand(text: bytes) -> list[int]:
    """The members of a set without ``*``."""
    numbers: list[int] = []
    for part in text.split(b","):
        first, _, last = part.partition(b":")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


@dataclass
class Mailbox:
    """A client's picture of its mailbox."""

    name: str
    uids: list[int | None] = field(default_factory=list)  # None: announced by EXISTS alone
    flags: dict[int, frozenset[bytes]] = field(default_factory=dict)
    uidvalidity: int = 0
    modseq: int = 0  # all changes up to this one are known
    announced: frozenset[bytes] = frozenset()  # of the last FLAGS response

    @property
    def can_resume(self) -> bool:
        """The UIDs of all messages but perhaps the last ones are known."""
        uids = [uid for uid in self.uids if uid is not None]
        return bool(uids) and self.uids[: len(uids)] == uids


class CheckedClient:
    def __init__(
        self,
        client: ImapClient,
        *,
        qresync: bool,
        uid_only: bool = False,
        recent_to: dict[tuple[str, int], Mailbox] | None = None,
    ) -> None:
        """``recent_to``: shared by all sessions: by mailbox and UID, the one selection a message is recent to."""
        self.client = client
        self._recent_to = recent_to if recent_to is not None else {}
        self.qresync = qresync
        self.uid_only = uid_only
        self.mailbox: Mailbox | None = None
        self._highest_seen = 0
        self._told_highest: int | None = None

    async def run(self, command: str | bytes) -> tuple[list[bytes], bytes]:
        """Run a command and check what is said; the untagged responses and the tagged one."""
        tag = self.client.start(command)
        name = (command if isinstance(command, bytes) else command.encode()).split()[0]
        untagged: list[bytes] = []
        while True:
            response = await self.client.response()
            assert response, "the connection is gone"
            if response.startswith(tag + b" "):
                break
            line = response.removesuffix(b"\r\n")
            untagged.append(line)
            self.receive(line, frozen=name in _FROZEN)
        self.end_command()
        return untagged, response[len(tag) + 1 :].rstrip(b"\r\n")

    def end_command(self) -> None:
        """End of a command: the responses so far can be relied on (RFC 7162 3.2)."""
        if self.mailbox is not None:
            if self._told_highest is not None:
                self.mailbox.modseq = self._told_highest
            else:
                self.mailbox.modseq = max(self.mailbox.modseq, self._highest_seen)
        self._highest_seen, self._told_highest = 0, None

    def receive(self, line: bytes, *, frozen: bool) -> None:
        if code := _CODE.match(line):
            self._hear_code(code)
        elif (announced := _ANNOUNCED.match(line)) and self.mailbox is not None:
            self.mailbox.announced = frozenset(announced[1].split())
        elif (recent := _RECENT.match(line)) and self.mailbox is not None:
            assert int(recent[1]) <= len(self.mailbox.uids), f"RECENT {recent[1]!r} of {len(self.mailbox.uids)}"
        elif (numbered := _NUMBERED.match(line)) and self.mailbox is not None:
            number = int(numbered[1])
            assert not self.uid_only or numbered[2] == b"EXISTS", "a number under UIDONLY"
            if numbered[2] == b"EXISTS":
                self._exists(number)
            elif numbered[2] == b"EXPUNGE":
                assert not self.qresync, "EXPUNGE in a session with QRESYNC"
                assert not frozen, "EXPUNGE while numbers must not change"
                self._expunge(number)
            else:
                self._fetch(number, numbered[3])
        elif (by_uid := _BY_UID.match(line)) and self.mailbox is not None:
            assert self.uid_only, "UIDFETCH without UIDONLY"
            self._fetch(self._number_of(int(by_uid[1])), b"UID %b %b" % by_uid.groups())
        elif (vanished := _VANISHED.match(line)) and self.mailbox is not None:
            assert self.qresync or self.uid_only, "VANISHED without QRESYNC"
            assert not frozen or vanished[1], "VANISHED while numbers must not change"
            self._vanished(expand(vanished[2]), earlier=bool(vanished[1]))
        else:
            assert line.startswith((b"* ", b"+ ")), line

    def _hear_code(self, code: re.Match[bytes]) -> None:
        if self.mailbox is None:
            return
        if code[1] == b"UIDVALIDITY":
            self.mailbox.uidvalidity = int(code[2])
        else:
            self._told_highest = int(code[2])

    def _exists(self, count: int) -> None:
        assert self.mailbox is not None
        before = len(self.mailbox.uids)
        assert count >= before, f"EXISTS {count} after {before} without an expunge"
        self.mailbox.uids += [None] * (count - before)

    def _expunge(self, number: int) -> None:
        assert self.mailbox is not None
        assert 1 <= number <= len(self.mailbox.uids), f"EXPUNGE {number} of {len(self.mailbox.uids)}"
        uid = self.mailbox.uids.pop(number - 1)
        if uid is not None:
            self.mailbox.flags.pop(uid, None)

    def _vanished(self, uids: list[int], *, earlier: bool) -> None:
        assert self.mailbox is not None
        for uid in uids:
            if uid in self.mailbox.uids:
                assert not earlier, f"VANISHED (EARLIER) {uid}, which is there"
                self.mailbox.uids.remove(uid)
                self.mailbox.flags.pop(uid, None)
            elif not earlier:
                # The UID was never fetched: the message must be one of the unknown ones.
                assert None in self.mailbox.uids, f"VANISHED {uid}, which was never there"
                self._forget_unknown(uid)

    def _forget_unknown(self, uid: int) -> None:
        """Of the unknown messages, the first after all known UIDs below this one."""
        assert self.mailbox is not None
        uids = self.mailbox.uids
        if self.uid_only:
            uids.remove(None)
            return
        below = max((at for at, other in enumerate(uids) if other is not None and other < uid), default=-1)
        place = next(at for at in range(below + 1, len(uids)) if uids[at] is None)
        del uids[place]

    def _number_of(self, uid: int) -> int:
        """Return the index of a UIDFETCH's message. A new UID must belong to one of the unknown messages; without
        numbers there is no telling which, so these are kept at the end."""
        assert self.mailbox is not None
        uids = self.mailbox.uids
        if uid not in uids:
            assert None in uids, f"UIDFETCH of {uid}, which is not there"
            uids.remove(None)
            uids.insert(sum(other is not None and other < uid for other in uids), uid)
        return 1 + uids.index(uid)

    def _fetch(self, number: int, items: bytes) -> None:
        assert self.mailbox is not None
        uids = self.mailbox.uids
        assert 1 <= number <= len(uids), f"FETCH of {number}, there are {len(uids)}"
        if match := _UID.search(items):
            uid = int(match[1])
            assert uids[number - 1] in (None, uid), f"number {number} was UID {uids[number - 1]} and is {uid}"
            uids[number - 1] = uid
            fetched = [each for each in uids if each is not None]
            assert fetched == sorted(set(fetched)), "UIDs do not ascend"
        if match := _MODSEQ.search(items):
            self._highest_seen = max(self._highest_seen, int(match[1]))
        known_uid = uids[number - 1]
        if (match := _FLAGS.search(items)) and known_uid is not None:
            self._see_flags(known_uid, frozenset(match[1].split()))

    def _see_flags(self, uid: int, flags: frozenset[bytes]) -> None:
        assert self.mailbox is not None
        if b"\\Recent" in flags:
            flags -= {b"\\Recent"}
            first = self._recent_to.setdefault((self.mailbox.name, uid), self.mailbox)
            assert first is self.mailbox, f"UID {uid} of {self.mailbox.name} is recent to two sessions"
        assert flags <= self.mailbox.announced, f"{flags - self.mailbox.announced} was not announced"
        self.mailbox.flags[uid] = flags

    # --- commands --------------------------------------------------------------------------------------------------

    async def select(self, name: str) -> None:
        """Select a mailbox and learn all of it."""
        self.mailbox = Mailbox(name)
        _, status = await self.run(f"SELECT {name}")
        assert status.startswith(b"OK"), status
        await self.learn()

    async def resume(self, before: Mailbox) -> None:
        """Select a mailbox that was known once, and learn only what is new (RFC 7162 3.2.5)."""
        uids = [uid for uid in before.uids if uid is not None]
        assert uids
        self.mailbox = Mailbox(before.name)
        resync = f"{before.uidvalidity} {before.modseq} 1:{max(uids)}"
        tag = self.client.start(f"SELECT {before.name} (QRESYNC ({resync}))")
        untagged, status = await self.client.finish(tag)
        assert status.startswith(b"OK"), status
        gone: set[int] = set()
        for line in untagged:
            if vanished := _VANISHED.match(line):
                assert vanished[1], "VANISHED without EARLIER in the answer to SELECT"
                gone.update(expand(vanished[2]))
        still = [uid for uid in uids if uid not in gone]
        for line in untagged:
            if line.endswith(b" EXISTS"):
                count = int(line.split()[1])
                assert len(still) <= count, (still, count, untagged)
                self.mailbox.uids = [*still, *[None] * (count - len(still))]
                self.mailbox.flags = {uid: before.flags[uid] for uid in still if uid in before.flags}
            elif not _VANISHED.match(line):
                self.receive(line, frozen=True)
        self.end_command()
        # New messages are fetched; the others are trusted.
        if None in self.mailbox.uids:
            await self.run(f"UID FETCH {max(uids) + 1}:* (FLAGS)")

    async def learn(self) -> None:
        if self.mailbox is not None and self.mailbox.uids:
            await self.run("UID FETCH 1:* (FLAGS)")
