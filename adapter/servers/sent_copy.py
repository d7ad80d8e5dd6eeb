"""The copy a client uploads to Sent of a message that submission has put there already.

Two copies are the same message if their Message-ID is the same and so are all octets but those that submission itself
changes: trace fields, Bcc, a Date or Message-ID that was missing, and the HTML alternative that the account asks for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from adapter.servers.smtp import html_alternative
from adapter.servers.smtp.incoming import MAX_REWRITTEN
from adapter.store import queries
from adapter.transport.transport import Transport
from protocol.errors import MailError
from protocol.mime.headers import parse_headers
from protocol.mime.scanner import Buffer

_IGNORED = frozenset({"return-path", "received", "bcc", "resent-bcc"})
_ADDED = frozenset({"date", "message-id"})
_MAX_HEADER = 1 << 20
_MESSAGE_ID = re.compile(rb"<[^<>\s]+>")

#: Messages of the folder with this Message-ID; the client's copy comes soon after, so the last are looked at.
#: The condition ``<> ''`` lets SQLite use the partial index.
_CANDIDATES = """
SELECT p.uid, p.message_id, m.size FROM messages m JOIN mailbox_projections p USING (message_id)
JOIN mailbox_state s USING (folder_id, uid)
WHERE m.header_id = ? AND m.header_id <> '' AND p.folder_id = ? AND NOT s.flags & 8 ORDER BY p.uid DESC LIMIT 5
"""


class Existing(NamedTuple):
    uidvalidity: int
    uid: int


def find(transport: Transport, address: str, folder: str, octets: Buffer) -> Existing | None:
    """The message in ``folder`` that ``octets``, about to be appended to it, are a copy of. Blocks."""
    copy = _Copy(octets)
    message_id = _MESSAGE_ID.search(parse_headers(copy.header, 0, len(copy.header)).first("Message-ID") or b"")
    if message_id is None:
        return None
    with transport.reading() as connection:
        try:
            place = queries.folder(connection, queries.active_registration(connection, address).id, folder)
        except MailError:
            return None
        rows = connection.execute(_CANDIDATES, (message_id[0].decode("utf-8", "replace"), place.id)).fetchall()
    for uid, stored, size in rows:
        try:
            if _same(transport, stored, size, copy):
                return Existing(place.uidvalidity, uid)
        except (MailError, OSError):
            continue
    return None


class _Copy:
    """What a client uploads: ``start`` is where its body begins, ``essence`` the fields that make the message."""

    def __init__(self, octets: Buffer) -> None:
        self.octets = octets
        self.header, self.start = _split(bytes(octets[:_MAX_HEADER]))
        self.essence = _essence(self.header)

    def with_html(self, boundary: bytes) -> _Copy | None:
        """As submission rewrites it, to the octet; None if it does not rewrite such a message."""
        header = bytes(self.octets[: self.start])
        if len(self.octets) - self.start > MAX_REWRITTEN or not html_alternative.is_markdown(header):
            return None
        return _Copy(html_alternative.add_html(header, bytes(self.octets[self.start :]), boundary))


def _same(transport: Transport, stored: str, size: int, copy: _Copy) -> bool:
    header, start = _split(b"".join(transport.content.stream(stored, 0, min(size, _MAX_HEADER))))
    boundary = html_alternative.boundary_of(header)
    found = copy if boundary is None else copy.with_html(boundary) or copy
    if size - start != len(found.octets) - found.start or not _matches(_essence(header), found.essence):
        return False
    position = found.start
    for chunk in transport.content.stream(stored, start, size):
        if bytes(found.octets[position : position + len(chunk)]) != chunk:
            return False
        position += len(chunk)
    return True


def _split(head: bytes) -> tuple[bytes, int]:
    """The header block, and where the body begins."""
    end = head.find(b"\r\n\r\n")
    return (head, len(head)) if end < 0 else (head[: end + 2], end + 4)


def _essence(header: bytes) -> list[tuple[str, bytes]]:
    """The fields that make the message, in order, each with its octets."""
    return [
        (field.lower, header[field.start : field.end])
        for field in parse_headers(header, 0, len(header)).fields
        if field.lower not in _IGNORED
    ]


def _matches(stored: list[tuple[str, bytes]], uploaded: list[tuple[str, bytes]]) -> bool:
    """Submission adds what was missing before all other fields."""
    extra = len(stored) - len(uploaded)
    if extra < 0 or stored[extra:] != uploaded:
        return False
    names = {name for name, _ in uploaded}
    return all(name in _ADDED and name not in names for name, _ in stored[:extra])
