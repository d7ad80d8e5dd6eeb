"""Response codes: the bracketed part of a status response, before its text.

Codes without arguments are constants, those with arguments functions. Each names the RFC that defines it. A code is
bytes without the brackets; :mod:`protocol.imap.responses.status` adds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.imap.sequence_set import format_set
from protocol.imap.wire.strings import quoted

# RFC 3501 7.1
READ_ONLY = b"READ-ONLY"
READ_WRITE = b"READ-WRITE"
TRYCREATE = b"TRYCREATE"
# RFC 7162 3.2.11
CLOSED = b"CLOSED"
# RFC 5530 3
UNAVAILABLE = b"UNAVAILABLE"
AUTHENTICATIONFAILED = b"AUTHENTICATIONFAILED"
PRIVACYREQUIRED = b"PRIVACYREQUIRED"
NOPERM = b"NOPERM"
INUSE = b"INUSE"
EXPUNGEISSUED = b"EXPUNGEISSUED"
CORRUPTION = b"CORRUPTION"
SERVERBUG = b"SERVERBUG"
CANNOT = b"CANNOT"
LIMIT = b"LIMIT"
OVERQUOTA = b"OVERQUOTA"
ALREADYEXISTS = b"ALREADYEXISTS"
NONEXISTENT = b"NONEXISTENT"
# RFC 4469 4.2, RFC 7889 4 (APPENDLIMIT)
TOOBIG = b"TOOBIG"
# RFC 4978 3 (COMPRESS)
COMPRESSIONACTIVE = b"COMPRESSIONACTIVE"
# RFC 9586 3 (UIDONLY)
UIDREQUIRED = b"UIDREQUIRED"
# RFC 6154 3 (CREATE-SPECIAL-USE)
USEATTR = b"USEATTR"
# RFC 3516 4.3 (BINARY)
UNKNOWN_CTE = b"UNKNOWN-CTE"


# RFC 3501 7.1
def capability(capabilities: Sequence[bytes]) -> bytes:
    return b"CAPABILITY " + b" ".join(capabilities)


# RFC 3501 7.1
def permanentflags(flags: bytes) -> bytes:
    """``flags`` is the parenthesised list."""
    return b"PERMANENTFLAGS " + flags


# RFC 3501 7.1
def uidnext(uid: int) -> bytes:
    return b"UIDNEXT %d" % uid


# RFC 3501 7.1
def uidvalidity(value: int) -> bytes:
    return b"UIDVALIDITY %d" % value


# RFC 3501 7.1; removed in RFC 9051
def unseen(number: int) -> bytes:
    return b"UNSEEN %d" % number


# RFC 4315 3
def appenduid(validity: int, uids: Sequence[int]) -> bytes:
    """``uids``: ascending; one, or those of a MULTIAPPEND."""
    return b"APPENDUID %d %b" % (validity, format_set(uids))


# RFC 4315 3
def copyuid(validity: int, source: Sequence[int], destination: Sequence[int]) -> bytes:
    """``source`` and ``destination``: ascending and of equal length, the n-th UID copied to the n-th."""
    return b"COPYUID %d %b %b" % (validity, format_set(source), format_set(destination))


# RFC 7162 3.1.2.1
def highestmodseq(modseq: int) -> bytes:
    return b"HIGHESTMODSEQ %d" % modseq


# RFC 7162 3.1.3
def modified(numbers: Sequence[int]) -> bytes:
    """``numbers``: ascending; message numbers for STORE, UIDs for UID STORE."""
    return b"MODIFIED " + format_set(numbers)


# RFC 8474 4.1 (OBJECTID)
def mailboxid(mailbox_id: str) -> bytes:
    return b"MAILBOXID (" + mailbox_id.encode("ascii") + b")"


# RFC 9585 4 (INPROGRESS)
def inprogress(tag: bytes, done: int | None = None, goal: int | None = None) -> bytes:
    return b"INPROGRESS (%b %b %b)" % (
        quoted(tag),
        b"NIL" if done is None else b"%d" % done,
        b"NIL" if goal is None else b"%d" % goal,
    )


# RFC 9738 3 (MESSAGELIMIT)
def messagelimit(limit: int, lowest_processed: int | None = None) -> bytes:
    if lowest_processed is None:
        return b"MESSAGELIMIT %d" % limit
    return b"MESSAGELIMIT %d %d" % (limit, lowest_processed)
