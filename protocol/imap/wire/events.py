"""The events of the framer, and its limits (RFC 3501 2.2, RFC 7888)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Size limits of one command. The session replaces ``Framer.limits`` when it logs in or out."""

    line: int  #: octets of one run of text
    literal: int  #: octets of one argument literal
    command: int  #: octets buffered for one command, text and argument literals together
    message: int | None  #: octets of one message literal; None if no literal is a message
    drain: int  #: octets of a refused command that are skipped to stay in sync; more is a fatal error
    non_sync: int | None = None  #: octets of one non-synchronising literal: 4096 under LITERAL- (RFC 7888 5)


BEFORE_LOGIN: Final = CommandLimits(line=1 << 16, literal=4096, command=1 << 17, message=None, drain=1 << 20)
AFTER_LOGIN: Final = CommandLimits(line=1 << 16, literal=1 << 16, command=1 << 18, message=1 << 26, drain=1 << 30)


class Literal(NamedTuple):
    """An argument literal (RFC 3501 4.3), or a literal8 if ``binary`` (RFC 3516 4.4)."""

    data: bytes
    binary: bool


#: Text, Literal, text, …: begins and ends with text, which may be empty. Markers and line ends are removed.
Pieces: TypeAlias = tuple[bytes | Literal, ...]


class NeedData(NamedTuple):
    """More octets are needed."""


class CommandLine(NamedTuple):
    """A complete command: the text and literals after its name, or after the last of its message literals."""

    tag: bytes
    name: str  #: upper case; UID commands as "UID FETCH"
    pieces: Pieces


class LiteralStart(NamedTuple):
    """The peer announces a literal of ``size`` octets; call ``accept`` or ``refuse``."""

    tag: bytes
    name: str
    size: int
    sync: bool  #: the peer waits for a "+" line before it sends them
    binary: bool  #: literal8
    message: bool  #: a message literal: its octets follow as LiteralChunk
    pieces: Pieces  #: for a message literal: the arguments since the command's name or the previous message


class LiteralChunk(NamedTuple):
    """Octets of a message literal, in order."""

    data: bytes
    last: bool


class Refused(NamedTuple):
    """A command was skipped: respond ``tag status [code] text``. The tag is "*" if it could not be parsed."""

    tag: bytes
    status: str
    code: str | None
    text: str


class Line(NamedTuple):
    """The line requested by ``expect_line``, without its line end."""

    data: bytes

    # RFC 2177 3
    @property
    def done(self) -> bool:
        return self.data.strip().upper() == b"DONE"


Event: TypeAlias = NeedData | CommandLine | LiteralStart | LiteralChunk | Refused | Line

NEED_DATA: Final = NeedData()
