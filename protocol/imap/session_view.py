r"""What one session knows of its selected folder, and when it learns more (RFC 3501 5.2, 5.5, 7.4.1; RFC 7162;
RFC 9586).

Invariants, which the client relies on:

* message numbers are positions in the list of UIDs the client was told of; that list changes only when this
  class hands out the EXPUNGE, VANISHED or EXISTS that says so;
* EXPUNGE and VANISHED come out only of ``flush(Emission.ALL)`` and name only messages the client was told of;
  a message that comes and goes in between is never mentioned;
* several changes of one message are one FETCH, with the state at the time it is sent;
* a keyword is in a FLAGS response before the first FETCH response that shows it (RFC 3501 7.2.6);
* ``$`` never holds a message that is gone (RFC 5182 2.1).

The list of UIDs is not the view's own: it is the folder's immutable snapshot, shared by all sessions that are up
to date. Only a session that may not yet hear of an expunge keeps a list of its own, until it may.
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
    """What may be sent at this point of the conversation."""

    NO_EXPUNGE = 1
    ALL = 2


# RFC 3501 7.4.1, RFC 5256 3, RFC 7162 3.2.10
def emission(spec: CommandSpec | None, *, uses_numbers: bool = False) -> Emission:
    """What the response to a command may carry; None: no command is in progress.

    ``uses_numbers``: of a search program. With message numbers in its criteria not even UID SEARCH may carry
    an expunge (RFC 7162 3.2.10, RFC 9051 7.5.1).
    """
    if spec is None or uses_numbers or not spec.announces_expunge:
        return Emission.NO_EXPUNGE
    return Emission.ALL


class Report(Enum):
    """How a session is told of changed flags."""

    FLAGS = 1  # changed by others, or by itself without .SILENT
    SILENT = 2  # by its own .SILENT: at most the new mod-sequence (RFC 3501 6.4.6, RFC 7162 3.1.3)


@dataclass(frozen=True, slots=True)
class FolderChange:
    """One committed change of a folder."""

    uids: Uids  # every UID after the change, ascending: one array for all views, never modified
    modseq: int  # highest mod-sequence after the change
    expunged: Sequence[int] = ()
    flagged: Sequence[int] = ()  # UIDs whose flags changed


class FolderState(Protocol):
    """The folder's state now, for the responses that report it."""

    @property
    def flags(self) -> FlagTable: ...

    def masks(self, uids: Sequence[int]) -> Sequence[int]: ...

    def modseqs(self, uids: Sequence[int]) -> Sequence[int]: ...


class Rows(NamedTuple):
    """Messages a command named: their numbers and UIDs, ascending, one for one."""

    numbers: Sequence[int]
    uids: Sequence[int]
    gone: bool  # some that were named are expunged, which the client does not know yet (RFC 2180 4.1)


class View:
    """One session's view of one folder; a new one for every SELECT."""

    __slots__ = (
        "_changed",
        "_current",
        "_exists_buried",
        "_flags_told",
        "_gone",
        "_gone_modseq",
        "_held_back",
        "_known",
        "_modseq",
        "_read_only",
        "_recent",
        "_recent_sent",
        "_saved",
        "_top",
        "dialect",
    )

    def __init__(self, uids: Uids, modseq: int, flags: FlagTable, dialect: Dialect, *, read_only: bool = False) -> None:
        self.dialect = dialect  # replaced when the session enables something
        self._read_only = read_only
        self._known = uids  # what the client was told of; shared, never modified in place
        self._current = uids  # what there is
        self._modseq = modseq
        self._top = uids[-1] if uids else 0  # highest UID the client was ever told of
        self._gone: set[int] = set()  # known, but expunged
        self._gone_modseq = 0  # mod-sequence of the first expunge not told yet
        self._held_back = False  # the client was told a HIGHESTMODSEQ below that (RFC 7162 3.2)
        self._changed: dict[int, Report] = {}
        self._flags_told = len(flags)
        self._saved: Sequence[int] = ()
        self._recent: Spans = []  # UIDs that are recent to this session, gone ones included
        self._recent_sent = 0  # the number of the last RECENT response
        self._exists_buried = False  # the last EXISTS was part of the response to another command than NOOP or IDLE

    def __len__(self) -> int:
        """EXISTS as the client knows it."""
        return len(self._known)

    @property
    def uids(self) -> Uids:
        """UIDs by message number minus one; not to be modified."""
        return self._known

    @property
    def settled(self) -> int:
        """The mod-sequence up to which the client knows of everything, once it was told what it may be told."""
        return self._gone_modseq - 1 if self._gone else self._modseq

    # RFC 3501 2.3.2, 7.3.2; IMAP4rev2 has no \Recent

    @property
    def arrived(self) -> int:
        """The highest UID of the folder if the client does not know that message yet, else 0."""
        return self._current[-1] if self._current and self._current[-1] > self._top else 0

    def add_recent(self, first: int, last: int) -> None:
        """Messages from ``first`` to ``last`` are recent to this session."""
        if first <= last:
            self._recent = merge([*self._recent, (first, last)])

    @property
    def recent(self) -> Spans:
        """UIDs that are recent to this session; some of them may be gone."""
        return [] if self.dialect.rev2 else self._recent

    @property
    def recent_count(self) -> int:
        """Messages known to the client that are recent to this session."""
        known = self._known
        return sum(bisect_right(known, last) - bisect_left(known, first) for first, last in self.recent)

    def sending_recent(self) -> int:
        """The number for a RECENT response that is sent now."""
        self._recent_sent = self.recent_count
        return self._recent_sent

    def _report_recent(self, out: list[bytes]) -> None:
        if self._recent and not self.dialect.rev2 and self.recent_count != self._recent_sent:
            out.append(status.recent(self.sending_recent()))

    # What happened

    def apply(self, change: FolderChange, report: Report = Report.FLAGS) -> None:
        """Take note of a change; nothing is sent before ``flush``. Every change once, in the order of commits."""
        self._current = change.uids
        self._modseq = change.modseq
        if change.expunged:
            known = self._known_of(change.expunged)
            if known and not self._gone:
                self._gone_modseq = change.modseq
            self._gone.update(known)
            for uid in self._changed.keys() & known:
                del self._changed[uid]
        self.touch(change.flagged, report)

    # RFC 3501 6.4.6
    def touch(self, uids: Iterable[int], report: Report = Report.FLAGS) -> None:
        """Report these messages at the next ``flush``: what a STORE named even if it changed nothing.

        Messages the client was not told of are left out: it will ask for them itself.
        """
        if report is Report.SILENT and not self.dialect.condstore:
            return
        top, gone = self._top, self._gone
        news = [uid for uid in uids if uid <= top and uid not in gone]
        if report is Report.FLAGS:
            self._changed.update(dict.fromkeys(news, report))
        else:
            # What others changed is told whole, whatever the session itself did to the same message.
            for uid in news:
                self._changed.setdefault(uid, report)

    def told(self, uids: Sequence[int]) -> None:
        """A FETCH response had the flags of these messages, as they are now (and MODSEQ under CONDSTORE)."""
        if self._changed:
            for uid in self._changed.keys() & set(uids):
                del self._changed[uid]

    @property
    def pending(self) -> bool:
        """Whether ``flush(Emission.ALL)`` would send anything but new keywords."""
        return bool(self._gone or self._changed or (self._current and self._current[-1] > self._top))

    # What the client is told

    def flush(
        self,
        point: Emission,
        state: FolderState,
        *,
        modseq_sent: bool = False,
        exists_first: bool = False,
        buried: bool = False,
    ) -> bytes:
        """The untagged responses that may be sent now.

        ``modseq_sent``: the command that ends here sent FETCH responses with MODSEQ itself. ``exists_first``: EXISTS
        comes before EXPUNGE, as REPLACE has it. ``buried``: the responses are part of the response to a command that
        asks for something else, where clients overlook an EXISTS.
        """
        out = [self.new_keywords(state.flags)]
        if exists_first:
            self._announce(out, buried=buried)
        if self._gone and point is Emission.ALL:
            out.append(self._expunges())
        self._announce(out, buried=buried)
        self._report_recent(out)
        if self._changed:
            self._fetches(out, state)
            modseq_sent = True
        if not self._gone:
            # The same UIDs, but also the same array as everyone's: messages may have come and gone unseen.
            self._known = self._current
            if self._held_back:
                self._held_back = False
                out.append(status.ok(None, "Highest", highestmodseq(self._modseq)))
        elif modseq_sent and self.dialect.qresync:
            # RFC 7162 3.2: a client that breaks off here must not believe it knows of the expunges.
            self._held_back = True
            out.append(status.ok(None, "Expunges wait", highestmodseq(self.settled)))
        return b"".join(out)

    # RFC 3501 7.2.6
    def new_keywords(self, flags: FlagTable) -> bytes:
        """The FLAGS response, if there are keywords the client does not know: due before a message shows them."""
        if len(flags) == self._flags_told:
            return b""
        self._flags_told = len(flags)
        code = permanentflags(flags.permanent_flags(self._read_only))
        return flags.flags_response() + status.ok(None, "Flags permitted", code)

    def asked_for(self, uids: Sequence[int]) -> None:
        """The client fetches these messages (ascending): if the latest is among them it has noticed the EXISTS."""
        if self._exists_buried and uids and uids[-1] == self._top:
            self._exists_buried = False

    # RFC 2177 1: IDLE is there to learn of new mail
    def repeat_exists(self) -> bytes:
        """EXISTS again, if the client may have overlooked the last one; once."""
        if not self._exists_buried:
            return b""
        self._exists_buried = False
        out = [status.exists(len(self._known))]
        if not self.dialect.rev2:
            out.append(status.recent(self.sending_recent()))
        return b"".join(out)

    # RFC 3501 7.4.1, RFC 7162 3.2.10, RFC 9586 3
    def _expunges(self) -> bytes:
        gone = sorted(self._gone)
        if self.dialect.qresync or self.dialect.uid_only:
            line = status.vanished(gone)
        else:
            # From the highest number down, so that none of them moves another.
            numbers = self.numbers(gone)[::-1]
            line = b"* %d EXPUNGE\r\n" * len(numbers) % tuple(numbers)
        if self._saved:
            self.save_result([uid for uid in self._saved if uid not in self._gone])
        # What is left of the known messages is what is left in the folder, up to the last one told.
        self._known = self._current[: bisect_right(self._current, self._top)]
        self._gone = set()
        return line

    # RFC 3501 7.3.1
    def _announce(self, out: list[bytes], *, buried: bool) -> None:
        current = self._current
        if not current or current[-1] <= self._top:
            return
        self._known = self._known + current[bisect_right(current, self._top) :] if self._gone else current
        self._top = current[-1]
        self._exists_buried = buried
        out.append(status.exists(len(self._known)))

    # RFC 3501 7.4.2; RFC 7162 3.2.4: with CONDSTORE both UID and MODSEQ; RFC 9051 7.5.2: UID always
    def _fetches(self, out: list[bytes], state: FolderState) -> None:
        dialect = self.dialect
        changed, self._changed = self._changed, {}
        loud = sorted([uid for uid, report in changed.items() if report is Report.FLAGS])
        quiet = sorted([uid for uid, report in changed.items() if report is Report.SILENT])
        for uids, with_flags in ((loud, True), (quiet, False)):
            if not uids:
                continue
            modseqs: Sequence[int] = ()
            if dialect.condstore:
                # In the order they happened: what a connection that breaks here swallows is above what it told.
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
        r"""The flags of these messages as this session sees them: with ``\Recent``."""
        encoded = map(flags.encoded.__getitem__, masks)
        recent = self.recent
        if not recent or not uids or max(uids) < recent[0][0]:
            return encoded
        return [with_recent(each) if contains(recent, uid) else each for uid, each in zip(uids, encoded, strict=True)]

    # What the client means

    # RFC 3501 6.4 and 9, sequence-set; RFC 5182 2.1
    def by_number(self, wanted: SequenceSet, *, beyond: bool = False, with_gone: bool = False) -> Rows:
        """Messages named by number; ProtocolError for a number that no message has, unless ``beyond``.

        ``with_gone``: also those expunged, as long as the client does not know that.
        """
        if wanted.saved:
            return self.saved()
        size = len(self._known)
        if not beyond:
            for first, last in wanted.ranges:
                # ``*`` (0) is always good, also in an empty folder; a range may reach beyond the end but not lie there.
                if first and last and min(first, last) > size:
                    raise ProtocolError("No message has that number")
        return self._rows(wanted.positions(size), with_gone=with_gone)

    # RFC 3501 6.4.8: a UID that does not exist is ignored
    def by_uid(self, wanted: SequenceSet) -> Rows:
        return self.saved() if wanted.saved else self._rows(wanted.uid_positions(self._known))

    def _rows(self, positions: list[range], *, with_gone: bool = False) -> Rows:
        known = self._known
        numbers: Sequence[int]
        uids: Sequence[int]
        if len(positions) == 1:
            (only,) = positions
            numbers = range(only.start + 1, only.stop + 1)
            uids = known if len(only) == len(known) else known[only.start : only.stop]
        else:
            places = list(chain.from_iterable(positions))
            numbers = [place + 1 for place in places]
            uids = [known[place] for place in places]
        gone = self._gone
        if gone and not with_gone and not gone.isdisjoint(uids):
            alive = [(number, uid) for number, uid in zip(numbers, uids, strict=True) if uid not in gone]
            return Rows([number for number, _ in alive], [uid for _, uid in alive], True)
        return Rows(numbers, uids, False)

    # RFC 5182 2.1
    def save_result(self, uids: Sequence[int]) -> None:
        """Set ``$`` (ascending UIDs); empty after a SEARCH with SAVE that failed."""
        self._saved = array("I", uids)

    def saved(self) -> Rows:
        """``$``, without what is gone."""
        uids = [uid for uid in self._saved if uid not in self._gone]
        return Rows(self.numbers(uids), uids, False)

    def lacks(self, uids: Iterable[int]) -> bool:
        """Whether any of these messages is expunged, which the client does not know yet."""
        return not self._gone.isdisjoint(uids)

    def visible(self, uids: Sequence[int]) -> Sequence[int]:
        """Those of the folder's ascending ``uids`` that the client was told of: what a search may answer."""
        return uids if not uids or uids[-1] <= self._top else uids[: bisect_right(uids, self._top)]

    def numbers(self, uids: Sequence[int]) -> Sequence[int]:
        """The message numbers of UIDs the client was told of, in the same order."""
        known = self._known
        if len(uids) * 16 > len(known):
            if len(uids) == len(known) and (uids is known or array("I", uids) == known):
                return range(1, len(known) + 1)
            return list(map(dict(zip(known, count(1))).__getitem__, uids))
        return [bisect_left(known, uid) + 1 for uid in uids]

    def _known_of(self, uids: Sequence[int]) -> set[int]:
        """Those the client was told of."""
        known = self._known
        if len(uids) * 16 > len(known):
            return set(uids).intersection(known)
        places = [(uid, bisect_left(known, uid)) for uid in uids]
        return {uid for uid, place in places if place < len(known) and known[place] == uid}
