r"""One session's view of its selected folder: message numbers, and the changes to announce (RFC 3501 5.2, 5.5, 7.4.1;
RFC 7162; RFC 9586).

Invariants, which the client relies on:

* message numbers are positions in the list of announced UIDs; that list changes only when this class returns the
  EXPUNGE, VANISHED or EXISTS response that announces the change;
* EXPUNGE and VANISHED are returned only by ``flush(Emission.ALL)`` and name only announced messages; a message that
  is added and expunged between two flushes is never mentioned;
* several changes of one message are one FETCH response, with the state at the time it is sent;
* a keyword is in a FLAGS response before the first FETCH response that contains it (RFC 3501 7.2.6);
* ``$`` never contains an announced expunge (RFC 5182 2.1).

The list of UIDs belongs to the folder: an immutable snapshot, shared by all sessions that are up to date. Only a
session with unannounced expunges keeps a list of its own, until they can be announced.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from protocol.errors import ProtocolError
from protocol.imap.flags import FlagTable, with_recent
from protocol.imap.responses import fetch, status
from protocol.imap.responses.codes import highestmodseq, permanentflags
from protocol.imap.sequence_set import SequenceSet, Spans, contains, merge
from protocol.imap.wire.lexer import Dialect

if TYPE_CHECKING:
    from protocol.imap.commands.registry import CommandSpec

Uids: TypeAlias = "array[int]"


class Emission(Enum):
    """The updates that may be sent at this point of the session."""

    NO_EXPUNGE = 1
    ALL = 2


# RFC 3501 7.4.1, RFC 5256 3, RFC 7162 3.2.10
def emission(spec: CommandSpec | None, *, uses_numbers: bool = False) -> Emission:
    """Return the updates that the response to a command may carry; None: no command is in progress.

    ``uses_numbers``: the search criteria contain message numbers. Then not even UID SEARCH may announce an expunge
    (RFC 7162 3.2.10, RFC 9051 7.5.1).
    """
    if spec is None or uses_numbers or not spec.announces_expunge:
        return Emission.NO_EXPUNGE
    return Emission.ALL


class FlagUpdate(Enum):
    """The announcement of changed flags."""

    FLAGS = 1  # changed by another session, or by this one without .SILENT
    SILENT = 2  # by this session's .SILENT: at most the new mod-sequence (RFC 3501 6.4.6, RFC 7162 3.1.3)


@dataclass(frozen=True, slots=True)
class FolderChange:
    """One committed change of a folder."""

    uids: Uids  # every UID after the change, ascending: one array for all views, never modified
    modseq: int  # highest mod-sequence after the change
    expunged: Sequence[int] = ()
    flagged: Sequence[int] = ()  # UIDs with changed flags


class FolderState(Protocol):
    """The current state of the folder, for the responses that contain it."""

    @property
    def flags(self) -> FlagTable: ...

    def masks(self, uids: Sequence[int]) -> Sequence[int]: ...

    def modseqs(self, uids: Sequence[int]) -> Sequence[int]: ...


class Rows(NamedTuple):
    """The messages that a command names: their numbers and UIDs, in parallel, ascending."""

    numbers: Sequence[int]
    uids: Sequence[int]
    has_expunged: bool  # some of those named are expunged, which is not announced yet (RFC 2180 4.1)


class View:
    """One session's view of one folder, created by each SELECT."""

    __slots__ = (
        "_announced",
        "_announced_flags",
        "_announced_recent",
        "_changed",
        "_current",
        "_exists_overlooked",
        "_expunged",
        "_expunged_modseq",
        "_highest_announced",
        "_modseq",
        "_modseq_held_back",
        "_read_only",
        "_recent",
        "_saved",
        "dialect",
    )

    def __init__(self, uids: Uids, modseq: int, flags: FlagTable, dialect: Dialect, *, read_only: bool = False) -> None:
        self.dialect = dialect  # replaced when the session enables something
        self._read_only = read_only
        self._announced = uids  # shared, never modified in place
        self._current = uids  # of the folder
        self._modseq = modseq
        self._highest_announced = uids[-1] if uids else 0
        self._expunged: set[int] = set()  # UIDs of announced messages, to be announced as expunged
        self._expunged_modseq = 0  # mod-sequence of the first of these expunges
        self._modseq_held_back = False  # the last HIGHESTMODSEQ response was below that (RFC 7162 3.2)
        self._changed: dict[int, FlagUpdate] = {}
        self._announced_flags = len(flags)
        self._saved: Sequence[int] = ()
        self._recent: Spans = []  # UIDs that are recent to this session, expunged ones included
        self._announced_recent = 0  # the number in the last RECENT response
        self._exists_overlooked = False  # the last EXISTS was in the response to another command than NOOP or IDLE

    def __len__(self) -> int:
        """The number of announced messages."""
        return len(self._announced)

    @property
    def uids(self) -> Uids:
        """The announced UIDs, by message number minus one; read-only."""
        return self._announced

    @property
    def announced_modseq(self) -> int:
        """The mod-sequence up to which every change is announced once ``flush`` has returned its responses."""
        return self._expunged_modseq - 1 if self._expunged else self._modseq

    # RFC 3501 2.3.2, 7.3.2; IMAP4rev2 has no \Recent

    @property
    def last_new_uid(self) -> int:
        """The highest UID of the folder if it is not announced yet, else 0."""
        return self._current[-1] if self._current and self._current[-1] > self._highest_announced else 0

    def add_recent(self, first: int, last: int) -> None:
        """Mark the messages from ``first`` to ``last`` as recent to this session."""
        if first <= last:
            self._recent = merge([*self._recent, (first, last)])

    @property
    def recent(self) -> Spans:
        """The UIDs that are recent to this session; some of them may be expunged."""
        return [] if self.dialect.rev2 else self._recent

    @property
    def recent_count(self) -> int:
        """The number of announced messages that are recent to this session."""
        uids = self._announced
        return sum(bisect_right(uids, last) - bisect_left(uids, first) for first, last in self.recent)

    def announce_recent(self) -> int:
        """Return the number for a RECENT response that is sent now."""
        self._announced_recent = self.recent_count
        return self._announced_recent

    def _send_recent(self, out: list[bytes]) -> None:
        if self._recent and not self.dialect.rev2 and self.recent_count != self._announced_recent:
            out.append(status.recent(self.announce_recent()))

    # --- changes of the folder ---

    def apply(self, change: FolderChange, update: FlagUpdate = FlagUpdate.FLAGS) -> None:
        """Apply a change, which ``flush`` announces. Each change is applied once, in the order of commits."""
        self._current = change.uids
        self._modseq = change.modseq
        if change.expunged:
            expunged = self._announced_of(change.expunged)
            if expunged and not self._expunged:
                self._expunged_modseq = change.modseq
            self._expunged.update(expunged)
            for uid in self._changed.keys() & expunged:
                del self._changed[uid]
        self.touch(change.flagged, update)

    # RFC 3501 6.4.6
    def touch(self, uids: Iterable[int], update: FlagUpdate = FlagUpdate.FLAGS) -> None:
        """Announce the flags of these messages at the next ``flush``, as STORE does even if it changed nothing.

        Messages that are not announced are left out: the client will fetch them itself.
        """
        if update is FlagUpdate.SILENT and not self.dialect.condstore:
            return
        highest, expunged = self._highest_announced, self._expunged
        changed = [uid for uid in uids if uid <= highest and uid not in expunged]
        if update is FlagUpdate.FLAGS:
            self._changed.update(dict.fromkeys(changed, update))
        else:
            # A change by another session is announced with its flags, even if this session changed the message, too.
            for uid in changed:
                self._changed.setdefault(uid, update)

    def mark_fetched_flags(self, uids: Sequence[int]) -> None:
        """Note that a FETCH response carries the current flags of these messages (and MODSEQ under CONDSTORE)."""
        if self._changed:
            for uid in self._changed.keys() & set(uids):
                del self._changed[uid]

    @property
    def pending(self) -> bool:
        """``flush(Emission.ALL)`` would return more than new keywords."""
        return bool(self._expunged or self._changed or (self._current and self._current[-1] > self._highest_announced))

    # --- updates for the client ---

    def flush(
        self,
        point: Emission,
        state: FolderState,
        *,
        modseq_sent: bool = False,
        exists_first: bool = False,
        exists_overlooked: bool = False,
    ) -> bytes:
        """Return the untagged responses that may be sent now.

        ``modseq_sent``: the command that ends here has sent FETCH responses with MODSEQ. ``exists_first``: EXISTS
        precedes EXPUNGE, as REPLACE requires. ``exists_overlooked``: the responses are part of the response to a
        command for something else, in which some clients overlook an EXISTS.
        """
        out = [self.new_keywords(state.flags)]
        if exists_first:
            self._announce_new(out, exists_overlooked)
        if self._expunged and point is Emission.ALL:
            out.append(self._announce_expunges())
        self._announce_new(out, exists_overlooked)
        self._send_recent(out)
        if self._changed:
            self._announce_flags(out, state)
            modseq_sent = True
        if not self._expunged:
            # The UIDs are equal, but this is the shared array: messages may have been added and expunged since.
            self._announced = self._current
            if self._modseq_held_back:
                self._modseq_held_back = False
                out.append(status.ok(None, "Highest", highestmodseq(self._modseq)))
        elif modseq_sent and self.dialect.qresync:
            # RFC 7162 3.2: a client that disconnects here must not assume that it knows the expunges.
            self._modseq_held_back = True
            out.append(status.ok(None, "Expunges pending", highestmodseq(self.announced_modseq)))
        return b"".join(out)

    # RFC 3501 7.2.6
    def new_keywords(self, flags: FlagTable) -> bytes:
        """Return the FLAGS response if there are unannounced keywords: due before a message that has them."""
        if len(flags) == self._announced_flags:
            return b""
        self._announced_flags = len(flags)
        code = permanentflags(flags.permanent_flags(self._read_only))
        return flags.flags_response() + status.ok(None, "Flags permitted", code)

    def note_fetch(self, uids: Sequence[int]) -> None:
        """Note that the client fetches these messages (ascending): with the newest, it has noticed the EXISTS."""
        if self._exists_overlooked and uids and uids[-1] == self._highest_announced:
            self._exists_overlooked = False

    # RFC 2177 1: IDLE is there to learn of new mail
    def repeat_exists(self) -> bytes:
        """Return EXISTS again, once, if the client may have overlooked the last one."""
        if not self._exists_overlooked:
            return b""
        self._exists_overlooked = False
        out = [status.exists(len(self._announced))]
        if not self.dialect.rev2:
            out.append(status.recent(self.announce_recent()))
        return b"".join(out)

    # RFC 3501 7.4.1, RFC 7162 3.2.10, RFC 9586 3
    def _announce_expunges(self) -> bytes:
        expunged = sorted(self._expunged)
        if self.dialect.qresync or self.dialect.uid_only:
            line = status.vanished(expunged)
        else:
            # From the highest number down, so that no expunge changes the number of another.
            numbers = self.numbers(expunged)[::-1]
            line = b"* %d EXPUNGE\r\n" * len(numbers) % tuple(numbers)
        if self._saved:
            self.save_result([uid for uid in self._saved if uid not in self._expunged])
        self._announced = self._current[: bisect_right(self._current, self._highest_announced)]
        self._expunged = set()
        return line

    # RFC 3501 7.3.1
    def _announce_new(self, out: list[bytes], exists_overlooked: bool) -> None:
        current, highest = self._current, self._highest_announced
        if not current or current[-1] <= highest:
            return
        self._announced = self._announced + current[bisect_right(current, highest) :] if self._expunged else current
        self._highest_announced = current[-1]
        self._exists_overlooked = exists_overlooked
        out.append(status.exists(len(self._announced)))

    # RFC 3501 7.4.2; RFC 7162 3.2.4: with CONDSTORE both UID and MODSEQ; RFC 9051 7.5.2: UID always
    def _announce_flags(self, out: list[bytes], state: FolderState) -> None:
        dialect = self.dialect
        changed, self._changed = self._changed, {}
        flagged = sorted([uid for uid, update in changed.items() if update is FlagUpdate.FLAGS])
        silent = sorted([uid for uid, update in changed.items() if update is FlagUpdate.SILENT])
        for uids, with_flags in ((flagged, True), (silent, False)):
            if not uids:
                continue
            modseqs: Sequence[int] = ()
            if dialect.condstore:
                # In the order of commits: if the connection is lost here, only the highest mod-sequences are missing.
                modseqs = state.modseqs(uids)
                in_order = sorted(range(len(uids)), key=modseqs.__getitem__)
                modseqs, uids = [modseqs[i] for i in in_order], [uids[i] for i in in_order]
            formats: list[bytes] = []
            columns: list[Iterable[int] | Iterable[bytes]] = []
            if not dialect.uid_only:
                formats.append(fetch.UID)
                columns.append(uids)
            if with_flags:
                formats.append(fetch.FLAGS)
                columns.append(self.encoded_flags(uids, state.masks(uids), state.flags))
            if dialect.condstore:
                formats.append(fetch.MODSEQ)
                columns.append(modseqs)
            numbers = uids if dialect.uid_only else self.numbers(uids)
            out.append(fetch.fetch_rows(fetch.row_format(formats, uid_only=dialect.uid_only), numbers, columns))

    def encoded_flags(self, uids: Sequence[int], masks: Iterable[int], flags: FlagTable) -> Iterable[bytes]:
        r"""Encode the flags of these messages as this session sees them: with ``\Recent``."""
        encoded = map(flags.encoded.__getitem__, masks)
        recent = self.recent
        if not recent or not uids or max(uids) < recent[0][0]:
            return encoded
        return [with_recent(each) if contains(recent, uid) else each for uid, each in zip(uids, encoded, strict=True)]

    # --- messages named by the client ---

    # RFC 3501 6.4 and 9, sequence-set; RFC 5182 2.1
    def by_number(self, numbers: SequenceSet, *, beyond: bool = False, with_expunged: bool = False) -> Rows:
        """Resolve message numbers. Raises ProtocolError for a number that no message has, unless ``beyond``.

        ``with_expunged``: include messages with an unannounced expunge.
        """
        if numbers.saved:
            return self.saved_result()
        size = len(self._announced)
        if not beyond:
            for first, last in numbers.ranges:
                # ``*`` (0) is always valid, even in an empty folder; a range may end beyond the last message but not
                # begin there.
                if first and last and min(first, last) > size:
                    raise ProtocolError("No message has that number")
        return self._rows(numbers.positions(size), with_expunged=with_expunged)

    # RFC 3501 6.4.8: a UID that does not exist is ignored
    def by_uid(self, uids: SequenceSet) -> Rows:
        return self.saved_result() if uids.saved else self._rows(uids.uid_positions(self._announced))

    def _rows(self, positions: list[range], *, with_expunged: bool = False) -> Rows:
        announced = self._announced
        numbers: Sequence[int]
        uids: Sequence[int]
        if len(positions) == 1:
            (only,) = positions
            numbers = range(only.start + 1, only.stop + 1)
            uids = announced if len(only) == len(announced) else announced[only.start : only.stop]
        else:
            flat = list(chain.from_iterable(positions))
            numbers = [position + 1 for position in flat]
            uids = [announced[position] for position in flat]
        expunged = self._expunged
        if expunged and not with_expunged and not expunged.isdisjoint(uids):
            present = [(number, uid) for number, uid in zip(numbers, uids, strict=True) if uid not in expunged]
            return Rows([number for number, _ in present], [uid for _, uid in present], True)
        return Rows(numbers, uids, False)

    # RFC 5182 2.1
    def save_result(self, uids: Sequence[int]) -> None:
        """Set ``$`` (ascending UIDs); empty after a SEARCH with SAVE that failed."""
        self._saved = array("I", uids)

    def saved_result(self) -> Rows:
        """Return ``$``, without expunged messages."""
        uids = [uid for uid in self._saved if uid not in self._expunged]
        return Rows(self.numbers(uids), uids, False)

    def has_expunged(self, uids: Iterable[int]) -> bool:
        """Return True if any of these announced messages is expunged."""
        return not self._expunged.isdisjoint(uids)

    def visible(self, uids: Sequence[int]) -> Sequence[int]:
        """Filter the folder's ascending ``uids`` to announced ones, which a search may return."""
        highest = self._highest_announced
        return uids if not uids or uids[-1] <= highest else uids[: bisect_right(uids, highest)]

    def numbers(self, uids: Sequence[int]) -> Sequence[int]:
        """Map announced UIDs to message numbers, in the same order."""
        announced = self._announced
        if len(uids) * 16 > len(announced):
            if len(uids) == len(announced) and (uids is announced or array("I", uids) == announced):
                return range(1, len(announced) + 1)
            return list(map(dict(zip(announced, count(1))).__getitem__, uids))
        return [bisect_left(announced, uid) + 1 for uid in uids]

    def _announced_of(self, uids: Sequence[int]) -> set[int]:
        """Filter ``uids`` to announced ones."""
        announced = self._announced
        if len(uids) * 16 > len(announced):
            return set(uids).intersection(announced)
        positions = [(uid, bisect_left(announced, uid)) for uid in uids]
        return {uid for uid, position in positions if position < len(announced) and announced[position] == uid}
