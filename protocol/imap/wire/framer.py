"""Framing: bytes in, IMAP commands out (RFC 3501 2.2, RFC 9051 2.2), without I/O.

Call ``feed`` with received octets, then ``next_event`` until it returns NEED_DATA. A command is runs of text
with literals between them; every octet is scanned once, nothing is parsed again after a literal.

- Every literal is announced by a :class:`LiteralStart`. The caller must call ``accept`` (and send the ``+`` line if the
  literal is synchronising) or ``refuse`` before it asks for the next event.
- Argument literals are buffered and part of the :class:`CommandLine`. Message literals (APPEND, REPLACE) are never
  buffered: their octets are returned as :class:`LiteralChunk`, and the text before each with its announcement.
- A command that exceeds a limit ends in :class:`Refused`, once all of it is skipped: send it as the tagged response and
  continue. ProtocolError is fatal: send BYE and close.

Invariants: after NEED_DATA the buffer holds less than one line or one argument literal; the events depend only on the
octets, not on how they were split, except for the boundaries between the chunks of one literal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Final

from protocol.errors import ProtocolError
from protocol.imap.wire.events import (
    BEFORE_LOGIN,
    NEED_DATA,
    CommandLimits,
    CommandLine,
    Event,
    Line,
    Literal,
    LiteralChunk,
    LiteralStart,
    Refused,
)


class _State(IntEnum):
    COMMAND = 0  # at the start of a command
    TEXT = 1  # in the text after a literal
    OFFERED = 2  # a literal is announced and neither accepted nor refused
    COLLECT = 3  # in an argument literal
    STREAM = 4  # in a message literal
    SKIP_TEXT = 5  # in the text of a refused command
    SKIP_LITERAL = 6  # in a literal of a refused command
    SKIP_LINE = 7  # in a requested line that is too long
    REFUSED = 8  # all of a refused command is skipped
    LINE = 9  # the next line is requested
    BROKEN = 10  # the peer sent too much to skip


#: RFC 3501 9 tag; command names are atoms. A tag is echoed, so its length is bounded.
_TAG = rb'([^\x00-\x20\x7f-\xff(){%*"\\+]{1,255})'
_HEAD = re.compile(_TAG + rb' +(?:(UID) +)?([^\x00-\x20\x7f-\xff(){%*"\\]+)', re.IGNORECASE)
_TAG_ALONE = re.compile(_TAG + rb"(?: |\Z)")
#: RFC 3501 9 literal; RFC 7888 8 for "+"; RFC 3516 7 for "~"
_MARKER = re.compile(rb"(~?)\{([0-9]{1,20})(\+?)\}\Z")
_MARKER_ROOM: Final = 32
#: Commands with message literals: the number of arguments before the mailbox name, which may be a literal itself.
MESSAGE_COMMANDS: Final = {"APPEND": 0, "REPLACE": 1, "UID REPLACE": 1}
_NO_REFUSAL: Final = Refused(b"*", "BAD", None, "")


@lru_cache(128)
def _name(name: bytes, uid: bool) -> str:
    written = name.upper().decode("ascii")
    return f"UID {written}" if uid else written


class Framer:
    """The framing of one connection's input."""

    __slots__ = (
        "_buffer",
        "_kept",
        "_literal",
        "_literals",
        "_name",
        "_pieces",
        "_refusal",
        "_remaining",
        "_searched",
        "_skipped",
        "_start",
        "_state",
        "_tag",
        "limits",
    )

    def __init__(self, limits: CommandLimits = BEFORE_LOGIN) -> None:
        self.limits = limits
        self._buffer: bytes | bytearray = b""
        self._start = 0  # first octet not consumed
        self._searched = 0  # first octet not yet searched for a line end
        self._state = _State.COMMAND
        self._refusal = _NO_REFUSAL
        self._tag = b"*"
        self._name = ""
        self._pieces: list[bytes | Literal] = []
        self._kept = 0  # octets in _pieces, markers included
        self._literals = 0  # announced in this command
        self._literal: LiteralStart | None = None  # announced last
        self._remaining = 0  # octets of the literal not yet consumed
        self._skipped = 0  # octets skipped in this command

    @property
    def buffered(self) -> int:
        """Octets fed and not consumed; the caller stops reading while there are many."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes) -> None:
        """Add received octets, without a copy if all previous ones are consumed."""
        if self._start == len(self._buffer):
            self._buffer, self._start, self._searched = data, 0, 0
            return
        if isinstance(self._buffer, bytes):
            self._buffer = bytearray(memoryview(self._buffer)[self._start :])
            self._searched -= self._start
            self._start = 0
        self._buffer += data

    def take_buffered(self) -> bytes:
        """Remove and return the unconsumed octets: STARTTLS discards them, COMPRESS inflates them."""
        rest = bytes(self._buffer[self._start :])
        self._buffer, self._start, self._searched = b"", 0, 0
        return rest

    def expect_line(self) -> None:
        """Return the next line as a Line: DONE of IDLE, a response in AUTHENTICATE. Call it once per line."""
        if self._state is not _State.COMMAND:
            raise RuntimeError("expect_line in the middle of a command")
        self._state = _State.LINE

    def accept(self) -> None:
        """Accept the announced literal."""
        if self._state is not _State.OFFERED or self._literal is None:
            raise RuntimeError("no literal to accept")
        self._state = _State.STREAM if self._literal.message else _State.COLLECT

    def refuse(self, status: str, text: str, code: str | None = None) -> None:
        """Refuse the command at its announced literal, or within a message literal that is being received."""
        if self._state not in (_State.OFFERED, _State.STREAM) or self._literal is None:
            raise RuntimeError("no literal to refuse")
        self._refusal = Refused(self._tag, status, code, text)
        if self._state is _State.OFFERED and self._literal.sync:
            self._state = _State.REFUSED  # RFC 3501 7.5: without a "+" line the client sends no more of the command
        else:
            self._skip_literal()

    def next_event(self) -> Event:
        """Return the next event. Raises ProtocolError if the peer sent more than can be skipped."""
        event: Event | None = NEED_DATA if self._start == len(self._buffer) and self._state is _State.COMMAND else None
        while event is None:
            event = _STEPS[self._state](self)
        if event is NEED_DATA and self._start:
            self._release_consumed()
        return event

    # --- reading ---

    def _release_consumed(self) -> None:
        """Free consumed octets: there may be thousands of idle connections."""
        if self._start == len(self._buffer):
            self._buffer = b""
        elif isinstance(self._buffer, bytearray):
            del self._buffer[: self._start]
        else:
            return
        self._searched -= self._start
        self._start = 0

    def _read_line(self, limit: int) -> bytes | None:
        """Return the next line without its end, None if it is incomplete. Raises _TooLong as soon as that is certain.

        A lone LF ends a line, too: no client means anything else by it.
        """
        end = self._buffer.find(b"\n", self._searched)
        if (len(self._buffer) if end < 0 else end) - self._start > limit + 1:
            raise _TooLong
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(self._buffer[self._start : end])
        self._start = self._searched = end + 1
        return line[:-1] if line.endswith(b"\r") else line

    def _skip_line(self) -> bytes | None:
        """Skip a line of any length; None if it is incomplete, else its end, which may hold a marker."""
        end = self._buffer.find(b"\n", self._searched)
        stop = len(self._buffer) if end < 0 else end
        kept = max(self._start, stop - _MARKER_ROOM)
        self._skipped += kept - self._start
        self._start, self._searched = kept, stop
        if self._skipped + stop - kept > self.limits.drain:
            self._state = _State.BROKEN
            return None
        if end < 0:
            return None
        self._skipped += stop - kept
        return self._read_line(_MARKER_ROOM)

    def _consume(self, size: int) -> bytes:
        """Return the next octets, without a copy if they are a whole bytes object, as with large literals."""
        stop = self._start + size
        data = bytes(self._buffer[self._start : stop])
        self._start = self._searched = stop
        return data

    # --- one step for each state; None: continue with the next step ---

    def _step_command(self) -> Event | None:
        try:
            line = self._read_line(self.limits.line)
        except _TooLong:
            self._begin(bytes(self._buffer[self._start : self._start + self.limits.line + 1]))
            self._skip_text("Command line is too long")
            return None
        if line is None:
            return NEED_DATA
        if not line:
            return None
        arguments = self._begin(line)
        if arguments is None:
            self._skipped_text(line)
            return None
        if not line.endswith(b"}"):
            return CommandLine(self._tag, self._name, (arguments,))
        return self._text(arguments)

    def _step_text(self) -> Event | None:
        try:
            line = self._read_line(self.limits.line)
        except _TooLong:
            self._skip_text("Command line is too long")
            return None
        return NEED_DATA if line is None else self._text(line)

    def _step_offered(self) -> Event | None:
        raise RuntimeError("the announced literal was neither accepted nor refused")

    def _step_collect(self) -> Event | None:
        if self.buffered < self._remaining:
            return NEED_DATA
        binary = self._literal is not None and self._literal.binary
        self._pieces.append(Literal(self._consume(self._remaining), binary))
        self._state = _State.TEXT
        return None

    def _step_stream(self) -> Event | None:
        size = min(self._remaining, self.buffered)
        if not size and self._remaining:
            return NEED_DATA
        self._remaining -= size
        if not self._remaining:
            self._state = _State.TEXT
        return LiteralChunk(self._consume(size), not self._remaining)

    def _step_skip_text(self) -> Event | None:
        line = self._skip_line()
        if line is not None:
            self._skipped_text(line)
            return None
        return None if self._state is _State.BROKEN else NEED_DATA

    def _step_skip_literal(self) -> Event | None:
        size = min(self._remaining, self.buffered)
        self._start = self._searched = self._start + size
        self._remaining -= size
        if self._remaining:
            return NEED_DATA
        self._state = _State.SKIP_TEXT
        return None

    def _step_skip_line(self) -> Event | None:
        if self._skip_line() is not None:
            self._state = _State.REFUSED
            return None
        return None if self._state is _State.BROKEN else NEED_DATA

    def _step_refused(self) -> Event | None:
        self._state = _State.COMMAND
        self._pieces, self._literal = [], None
        return self._refusal

    def _step_line(self) -> Event | None:
        try:
            line = self._read_line(self.limits.line)
        except _TooLong:
            self._refusal = Refused(self._tag, "BAD", None, "Line is too long")
            self._skipped = 0
            self._state = _State.SKIP_LINE
            return None
        if line is None:
            return NEED_DATA
        self._state = _State.COMMAND
        return Line(line)

    def _step_broken(self) -> Event | None:
        raise ProtocolError("Command is far too long")

    # --- the parts of a command ---

    def _begin(self, line: bytes) -> bytes | None:
        """Parse tag and name of a command and return the rest of the line; None if they are invalid."""
        self._pieces = []
        self._kept = self._literals = self._skipped = 0
        head = _HEAD.match(line)
        if head is not None:
            self._tag, uid, name = head.groups()
            self._name = _name(name, uid is not None)
            return line[head.end() :]
        tag = _TAG_ALONE.match(line)
        self._tag = tag[1] if tag else b"*"
        what = "Command name" if tag else "Tag"
        self._refusal = Refused(self._tag, "BAD", None, f"{what} is missing or invalid")
        return None

    def _text(self, text: bytes) -> Event | None:
        """Handle a complete run of text: a literal follows, or the command ends."""
        marker = _MARKER.search(text) if text.endswith(b"}") else None
        if marker is not None:
            text = text[: marker.start()]
        self._pieces.append(text)
        self._kept += len(text) + _MARKER_ROOM
        if marker is not None:
            return self._announce(int(marker[2]), sync=not marker[3], binary=bool(marker[1]))
        self._state = _State.COMMAND
        pieces = tuple(self._pieces)
        self._pieces, self._literal = [], None
        if self._kept > self.limits.command + _MARKER_ROOM:
            return Refused(self._tag, "BAD", None, "Command is too long")
        return CommandLine(self._tag, self._name, pieces)

    def _announce(self, size: int, *, sync: bool, binary: bool) -> Event | None:
        """Announce a literal, or refuse it at once if it exceeds a limit."""
        limits = self.limits
        message = self._is_message()
        pieces = tuple(self._pieces) if message else ()
        start = LiteralStart(self._tag, self._name, size, sync, binary, message, pieces)
        self._literal = start
        self._literals += 1
        self._remaining = size
        self._state = _State.OFFERED
        if not message:
            self._kept += size
        if not sync and limits.non_sync is not None and size > limits.non_sync:
            self.refuse("BAD", f"Non-synchronising literals may hold {limits.non_sync} octets", "TOOBIG")
        elif message and limits.message is not None and size > limits.message:
            self.refuse("NO", f"Messages may hold {limits.message} octets", "TOOBIG")
        elif not message and size > limits.literal:
            self.refuse("NO", f"Literals may hold {limits.literal} octets here", "LIMIT")
        elif self._kept > limits.command:
            self.refuse("BAD", "Command is too long")
        else:
            if message:
                self._pieces, self._kept = [], 0
            return start
        return None

    def _is_message(self) -> bool:
        before = MESSAGE_COMMANDS.get(self._name)
        if before is None or self.limits.message is None:
            return False
        text = self._pieces[0]
        return self._literals > 0 or not isinstance(text, bytes) or len(text.split(None, before + 1)) > before

    # --- skipping the rest of a refused command ---

    def _skip_text(self, text: str) -> None:
        self._refusal = Refused(self._tag, "BAD", None, text)
        self._state = _State.SKIP_TEXT

    def _skipped_text(self, line: bytes) -> None:
        """Continue after a skipped line of a refused command: more of the command follows if it announces a literal."""
        marker = _MARKER.search(line)
        if marker is None or not marker[3]:
            self._state = _State.REFUSED
        else:
            self._remaining = int(marker[2])
            self._skip_literal()

    def _skip_literal(self) -> None:
        self._skipped += self._remaining
        self._state = _State.BROKEN if self._skipped > self.limits.drain else _State.SKIP_LITERAL


#: By the number of the state.
_STEPS: Final[tuple[Callable[[Framer], Event | None], ...]] = (
    Framer._step_command,
    Framer._step_text,
    Framer._step_offered,
    Framer._step_collect,
    Framer._step_stream,
    Framer._step_skip_text,
    Framer._step_skip_literal,
    Framer._step_skip_line,
    Framer._step_refused,
    Framer._step_line,
    Framer._step_broken,
)


class _TooLong(Exception):  # noqa: N818
    """A line is longer than its limit."""
