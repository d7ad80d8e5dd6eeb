"""Filling gaps in ``cache_messages``: rows are computed from the canonical files and written back.

A cache row changes nothing that was ever promised, so it needs no operation and no journal record. For the same reason
recovery does not know of it: the transaction has to be safe by itself against a power loss, and is synced.
"""

from __future__ import annotations

from collections.abc import Iterable

from adapter.content import front_matter, wire
from adapter.content.ingest import preview_of
from adapter.content.parts import encode_outline
from adapter.store.queries import content_rows
from adapter.store.queries.content_rows import CacheRow
from adapter.transport.content import ContentReader
from adapter.transport.transport import Transport
from protocol.errors import MailError
from protocol.imap.responses.envelope import encode_envelope, encode_structure
from protocol.mime.parser import scan
from protocol.mime.structure import envelope, structure


def derive(content: ContentReader, message_id: str) -> CacheRow:
    """Compute the cache row of a message. Reads all of it: keep this off an event loop. Raises MailError."""
    file = content.file(message_id)
    recipe = content.derive_recipe(message_id, file)
    octets = wire.rebuild(file, recipe, content)
    root = scan(octets)
    try:
        _, body = front_matter.split(file)
    except MailError:  # a damaged file: all of it may be text
        body = 0
    return CacheRow(
        message_id,
        recipe.encode(),
        encode_envelope(envelope(root.headers)),
        encode_structure(structure(octets, root), True),
        encode_outline(root),
        preview_of(file[body:]),
    )


def write(transport: Transport, rows: Iterable[CacheRow]) -> None:
    """Store rows of messages that still have content. Takes the index lock; blocks."""
    with transport.quiesced(), transport.index.durable_transaction() as connection:
        content_rows.cache_existing(connection, rows)
