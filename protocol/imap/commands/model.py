"""Each command as an immutable value: built by a parser, executed by a handler.

Text is decoded, keywords are enumerations, mailbox names are plain text with ``/`` between levels. ``uid`` marks the
UID form of a command: its sequence set contains UIDs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from protocol.imap.commands.fetch_items import BinaryPart, BodyPart, FetchItem
from protocol.imap.search.keys import SearchKey
from protocol.imap.search.sort import SortCriterion
from protocol.imap.sequence_set import SequenceSet


class Command:
    """The base of all commands."""

    __slots__ = ()


# --- any state ---


@dataclass(frozen=True, slots=True)
class Capability(Command):
    """RFC 3501 6.1.1"""


@dataclass(frozen=True, slots=True)
class Noop(Command):
    """RFC 3501 6.1.2"""


@dataclass(frozen=True, slots=True)
class Logout(Command):
    """RFC 3501 6.1.3"""


@dataclass(frozen=True, slots=True)
class Id(Command):
    """RFC 2971 3.1"""

    fields: tuple[tuple[str, str | None], ...]  #: empty for NIL; names in lower case


# --- not authenticated ---


@dataclass(frozen=True, slots=True)
class StartTls(Command):
    """RFC 3501 6.2.1"""


@dataclass(frozen=True, slots=True)
class Authenticate(Command):
    """RFC 3501 6.2.2, RFC 4959"""

    mechanism: str
    initial: bytes | None = field(default=None, repr=False)  #: the initial response, decoded


@dataclass(frozen=True, slots=True)
class Login(Command):
    """RFC 3501 6.2.3"""

    user: str
    password: bytes = field(repr=False)


# --- authenticated ---


@dataclass(frozen=True, slots=True)
class Enable(Command):
    """RFC 5161 3.1"""

    capabilities: tuple[str, ...]  #: in upper case, otherwise as sent


class SeqMatch(NamedTuple):
    """RFC 7162 3.2.5.2: message numbers and the UIDs that the client has for them."""

    numbers: SequenceSet
    uids: SequenceSet


@dataclass(frozen=True, slots=True)
class QResync:
    """RFC 7162 3.2.5"""

    uid_validity: int
    modseq: int
    known_uids: SequenceSet | None = None
    seq_match: SeqMatch | None = None


@dataclass(frozen=True, slots=True)
class Select(Command):
    """SELECT and EXAMINE: RFC 3501 6.3.1, 6.3.2; RFC 7162 3.1.8, 3.2.5"""

    mailbox: str
    read_only: bool
    condstore: bool = False
    qresync: QResync | None = None


@dataclass(frozen=True, slots=True)
class Create(Command):
    """RFC 3501 6.3.3, RFC 6154 3"""

    mailbox: str
    use: tuple[str, ...] = ()  #: special uses, in lower case: ``\\sent``


@dataclass(frozen=True, slots=True)
class Delete(Command):
    """RFC 3501 6.3.4"""

    mailbox: str


@dataclass(frozen=True, slots=True)
class Rename(Command):
    """RFC 3501 6.3.5"""

    mailbox: str
    new_name: str


@dataclass(frozen=True, slots=True)
class Subscribe(Command):
    """RFC 3501 6.3.6"""

    mailbox: str


@dataclass(frozen=True, slots=True)
class Unsubscribe(Command):
    """RFC 3501 6.3.7"""

    mailbox: str


class StatusItem(Enum):
    """RFC 3501 6.3.10; RFC 9051 6.3.11; RFC 7162 3.1.7; RFC 8474 4.3; RFC 7889 3; RFC 9208 4.1.4"""

    MESSAGES = "MESSAGES"
    RECENT = "RECENT"
    UIDNEXT = "UIDNEXT"
    UIDVALIDITY = "UIDVALIDITY"
    UNSEEN = "UNSEEN"
    DELETED = "DELETED"
    DELETED_STORAGE = "DELETED-STORAGE"
    SIZE = "SIZE"
    HIGHESTMODSEQ = "HIGHESTMODSEQ"
    MAILBOXID = "MAILBOXID"
    APPENDLIMIT = "APPENDLIMIT"


class ListSelect(Enum):
    """RFC 5258 3.1; RFC 6154 2"""

    SUBSCRIBED = "SUBSCRIBED"
    REMOTE = "REMOTE"
    RECURSIVEMATCH = "RECURSIVEMATCH"
    SPECIAL_USE = "SPECIAL-USE"


class ListReturn(Enum):
    """RFC 5258 3.2; RFC 6154 2. STATUS (RFC 5819) is ``List.status``."""

    SUBSCRIBED = "SUBSCRIBED"
    CHILDREN = "CHILDREN"
    SPECIAL_USE = "SPECIAL-USE"


@dataclass(frozen=True, slots=True)
class List(Command):
    """RFC 3501 6.3.8, RFC 5258, RFC 5819, RFC 6154"""

    reference: str
    patterns: tuple[str, ...]
    select: frozenset[ListSelect] = frozenset()
    returns: frozenset[ListReturn] = frozenset()
    status: tuple[StatusItem, ...] = ()
    extended: bool = False  #: the command uses syntax of RFC 5258: a single empty pattern then matches nothing


@dataclass(frozen=True, slots=True)
class Lsub(Command):
    """RFC 3501 6.3.9"""

    reference: str
    pattern: str | None  #: None: not a valid mailbox name, matches nothing


@dataclass(frozen=True, slots=True)
class Namespace(Command):
    """RFC 2342 5"""


@dataclass(frozen=True, slots=True)
class Status(Command):
    """RFC 3501 6.3.10"""

    mailbox: str
    items: tuple[StatusItem, ...]


@dataclass(frozen=True, slots=True)
class AppendMessage:
    """One message of an APPEND or REPLACE, without its octets, which are streamed."""

    size: int
    flags: tuple[str, ...] = ()
    date: datetime | None = None
    binary: bool = False  #: literal8 (RFC 3516 4.4)
    utf8: bool = False  #: wrapped in UTF8 (…) (RFC 6855 4)


@dataclass(frozen=True, slots=True)
class Append(Command):
    """RFC 3501 6.3.11, RFC 3502 6.3.11"""

    mailbox: str
    messages: tuple[AppendMessage, ...]


@dataclass(frozen=True, slots=True)
class Replace(Command):
    """RFC 8508 3"""

    uid: bool
    number: int  #: STAR for "*"
    mailbox: str
    message: AppendMessage


@dataclass(frozen=True, slots=True)
class Idle(Command):
    """RFC 2177 3"""


@dataclass(frozen=True, slots=True)
class GetQuota(Command):
    """RFC 9208 4.1.2"""

    root: str


@dataclass(frozen=True, slots=True)
class GetQuotaRoot(Command):
    """RFC 9208 4.1.3"""

    mailbox: str


@dataclass(frozen=True, slots=True)
class SetQuota(Command):
    """RFC 9208 4.1.1"""

    root: str
    limits: tuple[tuple[str, int], ...]  #: resource names in upper case


@dataclass(frozen=True, slots=True)
class Compress(Command):
    """RFC 4978 3"""

    mechanism: str


@dataclass(frozen=True, slots=True)
class Unauthenticate(Command):
    """RFC 8437 3"""


# --- selected ---


@dataclass(frozen=True, slots=True)
class Check(Command):
    """RFC 3501 6.4.1"""


@dataclass(frozen=True, slots=True)
class Close(Command):
    """RFC 3501 6.4.2"""


@dataclass(frozen=True, slots=True)
class Unselect(Command):
    """RFC 3691 2"""


@dataclass(frozen=True, slots=True)
class Expunge(Command):
    """RFC 3501 6.4.3; RFC 4315 2.1 with ``uids``"""

    uids: SequenceSet | None = None


class Partial(NamedTuple):
    """RFC 9394 3.1: from the first to the last result, both counted from 1; negative numbers count from the end."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SearchReturn:
    """RFC 4731 3.1, RFC 5182 2.1, RFC 9394 3.1; RFC 5267 4.2 for SORT"""

    min: bool = False
    max: bool = False
    all: bool = False
    count: bool = False
    save: bool = False
    partial: Partial | None = None


@dataclass(frozen=True, slots=True)
class Search(Command):
    """RFC 3501 6.4.4, RFC 4731"""

    uid: bool
    key: SearchKey
    returns: SearchReturn | None = None  #: None if there is no RETURN
    uses_modseq: bool = False  #: RFC 7162 3.1.5: the response includes the highest mod-sequence


@dataclass(frozen=True, slots=True)
class Sort(Command):
    """RFC 5256 3, RFC 5957, RFC 5267 3"""

    uid: bool
    criteria: tuple[SortCriterion, ...]
    key: SearchKey
    returns: SearchReturn | None = None
    uses_modseq: bool = False


class ThreadAlgorithm(Enum):
    ORDEREDSUBJECT = "ORDEREDSUBJECT"
    REFERENCES = "REFERENCES"


@dataclass(frozen=True, slots=True)
class Thread(Command):
    """RFC 5256 3"""

    uid: bool
    algorithm: ThreadAlgorithm
    key: SearchKey
    uses_modseq: bool = False


@dataclass(frozen=True, slots=True)
class Fetch(Command):
    """RFC 3501 6.4.5; RFC 7162 3.1.4, 3.2.6; RFC 9394 3.3"""

    uid: bool
    messages: SequenceSet
    items: tuple[FetchItem, ...]  #: without duplicates; with UID and MODSEQ where the response must include them
    changed_since: int | None = None
    vanished: bool = False
    partial: Partial | None = None

    @property
    def sets_seen(self) -> bool:
        return any(isinstance(item, (BodyPart, BinaryPart)) and not item.peek for item in self.items)


class StoreMode(Enum):
    REPLACE = "FLAGS"
    ADD = "+FLAGS"
    REMOVE = "-FLAGS"


@dataclass(frozen=True, slots=True)
class Store(Command):
    """RFC 3501 6.4.6, RFC 7162 3.1.3"""

    uid: bool
    messages: SequenceSet
    mode: StoreMode
    flags: tuple[str, ...]
    silent: bool = False
    unchanged_since: int | None = None


@dataclass(frozen=True, slots=True)
class Copy(Command):
    """RFC 3501 6.4.7"""

    uid: bool
    messages: SequenceSet
    mailbox: str


@dataclass(frozen=True, slots=True)
class Move(Command):
    """RFC 6851 3"""

    uid: bool
    messages: SequenceSet
    mailbox: str
