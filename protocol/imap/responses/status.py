"""Status responses, and data about the server, the account and its folders.

Every function returns whole lines, ready to be sent; a tag of None makes an untagged response. Message data is in
:mod:`protocol.imap.responses.fetch`, search results in :mod:`protocol.imap.responses.search` and
:mod:`protocol.imap.search.thread`, changes of the selected folder in :mod:`protocol.imap.session_view`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from protocol.imap.flags import FlagTable
from protocol.imap.responses import codes
from protocol.imap.sequence_set import format_set
from protocol.imap.wire.lexer import Dialect
from protocol.imap.wire.strings import mailbox, nstring, quoted, string, text

DELIMITER = b"/"


# RFC 3501 7.1
def status(tag: bytes | None, condition: bytes, line: str, code: bytes = b"") -> bytes:
    lead = b"*" if tag is None else tag
    if code:
        return b"%b %b [%b] %b\r\n" % (lead, condition, code, text(line))
    return b"%b %b %b\r\n" % (lead, condition, text(line))


# RFC 3501 7.1.1
def ok(tag: bytes | None, line: str, code: bytes = b"") -> bytes:
    return status(tag, b"OK", line, code)


# RFC 3501 7.1.2
def no(tag: bytes | None, line: str, code: bytes = b"") -> bytes:
    return status(tag, b"NO", line, code)


# RFC 3501 7.1.3
def bad(tag: bytes | None, line: str, code: bytes = b"") -> bytes:
    return status(tag, b"BAD", line, code)


# RFC 3501 7.1.5
def bye(line: str, code: bytes = b"") -> bytes:
    return status(None, b"BYE", line, code)


# RFC 3501 7.5
def continuation(line: str) -> bytes:
    return b"+ " + text(line) + b"\r\n"


# RFC 3501 7.5, 6.2.2: a challenge of the authentication exchange; an empty one keeps the space
def challenge(base64: bytes) -> bytes:
    return b"+ " + base64 + b"\r\n"


# RFC 3501 7.2.1
def capability(names: Iterable[bytes]) -> bytes:
    return b"* CAPABILITY " + b" ".join(names) + b"\r\n"


# RFC 5161 3.2
def enabled(names: Iterable[bytes]) -> bytes:
    return b" ".join([b"* ENABLED", *names]) + b"\r\n"


# RFC 2971 3.2
def id_response(fields: Mapping[str, str | None]) -> bytes:
    pairs = [
        string(name.encode()) + b" " + nstring(None if value is None else value.encode())
        for name, value in fields.items()
    ]
    return b"* ID " + (b"(" + b" ".join(pairs) + b")" if pairs else b"NIL") + b"\r\n"


# RFC 2342 5
def namespace(
    personal: Sequence[str], others: Sequence[str] = (), shared: Sequence[str] = (), *, dialect: Dialect
) -> bytes:
    """Encode the prefixes of the three kinds of namespaces; a kind without prefixes is NIL."""
    kinds = [_namespaces(prefixes, dialect) for prefixes in (personal, others, shared)]
    return b"* NAMESPACE " + b" ".join(kinds) + b"\r\n"


def _namespaces(prefixes: Sequence[str], dialect: Dialect) -> bytes:
    if not prefixes:
        return b"NIL"
    # The grammar requires strings here, not atoms.
    names = [mailbox(prefix, dialect) for prefix in prefixes]
    names = [name if name[:1] in b'"{' else quoted(name) for name in names]
    return b"(" + b"".join([b"(%b %b)" % (name, quoted(DELIMITER)) for name in names]) + b")"


# RFC 3501 7.2.2, RFC 5258 5 (LIST-EXTENDED), RFC 9051 7.3.1
def list_response(
    name: str,
    attributes: Iterable[bytes],
    dialect: Dialect,
    *,
    child_info: Sequence[bytes] = (),
    old_name: str | None = None,
) -> bytes:
    r"""``* LIST (\HasNoChildren) "/" name``.

    ``child_info``: the selection options that only children matched (RFC 5258 3.5, ``SUBSCRIBED``). ``old_name``: the
    previous name of the folder, or the name that the client used for it (RFC 9051 6.3.9.7).
    """
    extended = []
    if child_info:
        extended.append(b'"CHILDINFO" (' + b" ".join(map(quoted, child_info)) + b")")
    if old_name is not None:
        extended.append(b'"OLDNAME" (' + mailbox(old_name, dialect) + b")")
    tail = b" (" + b" ".join(extended) + b")" if extended else b""
    return b'* LIST (%b) "%b" %b%b\r\n' % (b" ".join(attributes), DELIMITER, mailbox(name, dialect), tail)


# RFC 3501 7.2.3
def lsub_response(name: str, attributes: Iterable[bytes], dialect: Dialect) -> bytes:
    return b'* LSUB (%b) "%b" %b\r\n' % (b" ".join(attributes), DELIMITER, mailbox(name, dialect))


# RFC 3501 7.2.4; RFC 7889 (APPENDLIMIT), 8438 (SIZE), 8474 (MAILBOXID), 9208 (DELETED) add items
def status_response(name: str, items: Iterable[tuple[bytes, int | bytes]], dialect: Dialect) -> bytes:
    """``items``: in the order requested; bytes are encoded values (``NIL``, ``(F123)``)."""
    values = [b"%b %b" % (item, value if isinstance(value, bytes) else b"%d" % value) for item, value in items]
    return b"* STATUS %b (%b)\r\n" % (mailbox(name, dialect), b" ".join(values))


# RFC 9208 4.2.1
def quota(root: str, resources: Iterable[tuple[bytes, int, int]]) -> bytes:
    """``resources``: name, usage and limit; STORAGE counts units of 1,024 octets (RFC 9208 5.1)."""
    triplets = b" ".join([b"%b %d %d" % resource for resource in resources])
    return b"* QUOTA %b (%b)\r\n" % (string(root.encode()), triplets)


# RFC 9208 4.2.2
def quota_root(name: str, roots: Iterable[str], dialect: Dialect) -> bytes:
    return b" ".join([b"* QUOTAROOT", mailbox(name, dialect), *[string(r.encode()) for r in roots]]) + b"\r\n"


# RFC 3501 7.3.1
def exists(count: int) -> bytes:
    return b"* %d EXISTS\r\n" % count


# RFC 3501 7.3.2
def recent(count: int) -> bytes:
    return b"* %d RECENT\r\n" % count


# RFC 7162 3.2.10
def vanished(uids: Sequence[int], *, earlier: bool = False) -> bytes:
    """``uids``: ascending, not empty."""
    return b"* VANISHED %b%b\r\n" % (b"(EARLIER) " if earlier else b"", format_set(uids))


@dataclass(frozen=True, slots=True)
class SelectedFolder:
    """The data in the responses to SELECT and EXAMINE."""

    name: str
    exists: int
    flags: FlagTable
    uidvalidity: int
    uidnext: int
    highestmodseq: int
    mailbox_id: str
    first_unseen: int | None  # message number
    read_only: bool = False
    recent: int = 0  # messages that are recent to the session (RFC 3501 2.3.2)


# RFC 3501 6.3.1 and 6.3.2, RFC 9051 6.3.2 and 6.3.3
def selected(folder: SelectedFolder, dialect: Dialect) -> bytes:
    """Encode the untagged responses to SELECT or EXAMINE."""
    flags = folder.flags
    lines = [
        flags.flags_response(),
        ok(None, "Flags permitted", codes.permanentflags(flags.permanent_flags(folder.read_only))),
        exists(folder.exists),
    ]
    if not dialect.rev2:
        lines.append(recent(folder.recent))
        # RFC 9586 3: no message number may be sent under UIDONLY.
        if folder.first_unseen is not None and not dialect.uid_only:
            lines.append(ok(None, "First unseen", codes.unseen(folder.first_unseen)))
    lines += [
        ok(None, "UIDs valid", codes.uidvalidity(folder.uidvalidity)),
        ok(None, "Predicted next UID", codes.uidnext(folder.uidnext)),
        ok(None, "Highest", codes.highestmodseq(folder.highestmodseq)),  # RFC 7162 3.1.2.1
        ok(None, "Ok", codes.mailboxid(folder.mailbox_id)),  # RFC 8474 4.2
    ]
    if dialect.rev2:
        lines.append(list_response(folder.name, (), dialect))
    return b"".join(lines)
