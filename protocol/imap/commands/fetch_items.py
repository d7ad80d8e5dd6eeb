"""FETCH data items (RFC 3501 6.4.5 and extensions) as immutable values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from protocol.mime.sections import Section


class Attribute(Enum):
    """Items without parameters (RFC 3501 6.4.5; RFC 7162 3.1.4; RFC 8474 5; RFC 8514 4.2)."""

    BODY = "BODY"
    BODYSTRUCTURE = "BODYSTRUCTURE"
    ENVELOPE = "ENVELOPE"
    FLAGS = "FLAGS"
    INTERNALDATE = "INTERNALDATE"
    RFC822_SIZE = "RFC822.SIZE"
    UID = "UID"
    MODSEQ = "MODSEQ"
    EMAILID = "EMAILID"
    THREADID = "THREADID"
    SAVEDATE = "SAVEDATE"


@dataclass(frozen=True, slots=True)
class BodyPart:
    """BODY[…], BODY.PEEK[…], RFC822, RFC822.HEADER, RFC822.TEXT (RFC 3501 6.4.5)"""

    label: bytes  #: its name in the response: ``BODY[1.MIME]<0>``, ``RFC822``
    section: Section
    partial: tuple[int, int] | None  #: first octet and number of octets
    peek: bool


@dataclass(frozen=True, slots=True)
class BinaryPart:
    """BINARY[…], BINARY.PEEK[…] (RFC 3516 4.2)"""

    label: bytes
    path: tuple[int, ...]
    partial: tuple[int, int] | None
    peek: bool
    section: Section | None = None  #: HEADER, TEXT, MIME …, which the grammar does not allow: sent undecoded


@dataclass(frozen=True, slots=True)
class BinarySize:
    """BINARY.SIZE[…] (RFC 3516 4.2)"""

    label: bytes
    path: tuple[int, ...]
    section: Section | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """RFC 8970 3.1, 3.2"""

    lazy: bool = False


FetchItem: TypeAlias = Attribute | BodyPart | BinaryPart | BinarySize | Preview
