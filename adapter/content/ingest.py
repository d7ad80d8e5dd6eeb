"""Octets in, canonical file and blobs out.

Invariants:
- No input is refused, and none is changed: the file and the blobs give back the very octets, which is checked for
  every message before it is returned. A part that would not come back is kept as it is; if all else fails the whole
  message is one blob.
- The file stays small whatever the message: text segments, body and front matter have limits of their own.
- The same input gives the same file.
- Bcc is in the octets if the sender left it there, but in no field of the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from adapter.content import front_matter
from adapter.content.blobs import LARGE, BlobDraft, BlobSink, BlobWriter, Drafts, release_pages
from adapter.content.encodings.codings import CHUNK
from adapter.content.front_matter import AttachmentMeta, FrontMatter, Written
from adapter.content.html_to_markdown import CUT_MARK, MAX_HTML, html_to_markdown
from adapter.content.parts import Leaves, classify, encode_outline
from adapter.content.segment import MAX_BODY, Segmented, Segmenter
from adapter.content.summary import ThreadKeys, default_thread, headline
from adapter.content.wire import BLOB, Recipe, Segment, segment_octets
from protocol.errors import MailError
from protocol.imap.responses.envelope import encode_envelope, encode_structure
from protocol.mime.parser import Buffer, Part, scan
from protocol.mime.structure import envelope, structure
from protocol.mime.text import decode_text

__all__ = [
    "AttachmentMeta",
    "BlobDraft",
    "BlobSink",
    "BlobWriter",
    "Buffer",
    "Ingested",
    "ThreadKeys",
    "default_thread",
    "ingest",
]

#: What is shown of a text that is too long for the file.
EXCERPT = 64 * 1024
PREVIEW = 200
_MAX_DERIVED = 256 * 1024
_NOT_TEXT = re.compile("[\x00\r]")


class Ingested(NamedTuple):
    """A message ready to be stored, and what the index wants to know of it."""

    id: str
    file: bytes
    recipe: Recipe
    blobs: tuple[BlobDraft, ...]
    size: int
    wire_sha256: str
    file_sha256: str
    message_id: str | None
    in_reply_to: str | None
    references: tuple[str, ...]
    thread: str
    sender: str
    subject: str
    recipients: tuple[tuple[str, str], ...]
    date: str | None
    attachments: tuple[AttachmentMeta, ...]
    envelope: bytes
    structure: bytes
    outline: bytes
    preview: str


def ingest(
    octets: Buffer,
    *,
    id: str,  # noqa: A002 - the word of the store
    arrived: str,
    thread: Callable[[ThreadKeys], str] = default_thread,
    sink: BlobSink | None = None,
) -> Ingested:
    """Take a message in. ``arrived`` (ISO) stands in for a Date the message does not have."""
    size = len(octets)
    if size <= LARGE and not isinstance(octets, bytes):
        octets = bytes(octets)
    root = scan(octets)
    headers = root.headers
    drafts = Drafts(sink)
    wire_sha256 = _hash(octets)
    leaves = classify(octets, root)
    segmenter = Segmenter(octets, drafts)
    segmented = segmenter.run(leaves)
    body = segmented.body
    if body is None:
        body = _derived_body(octets, leaves, segmented)

    summary = envelope(headers)
    head = headline(summary, headers.first("references"))
    thread_id = thread(ThreadKeys(head.message_id, head.in_reply_to, head.references, id))
    matter = FrontMatter(
        id,
        head.date or arrived,
        head.sender,
        head.to,
        head.cc,
        head.reply_to,
        head.subject,
        head.message_id or "",
        head.in_reply_to or "",
        head.references,
        thread_id,
        segmented.attachments,
    )
    written = front_matter.write(matter, wire_sha256, size, segmented.pieces, body)
    if not _verified(written, octets, drafts):
        written = front_matter.write(matter, wire_sha256, size, segmenter.whole(), body)
        drafts.keep((*written.recipe.blobs, *(a.sha256 for a in segmented.attachments)))
    return Ingested(
        id,
        written.file,
        written.recipe,
        drafts.all(),
        size,
        wire_sha256,
        written.sha256,
        head.message_id,
        head.in_reply_to,
        head.references,
        thread_id,
        "" if head.sender is None else head.sender.address,
        head.subject,
        (*[("to", person.address) for person in head.to], *[("cc", person.address) for person in head.cc]),
        head.date,
        segmented.attachments,
        encode_envelope(summary),
        encode_structure(structure(octets, root), True),
        encode_outline(root),
        preview_of(body),
    )


def _hash(octets: Buffer) -> str:
    if isinstance(octets, bytes):
        return sha256(octets).hexdigest()
    whole = sha256()
    for at in range(0, len(octets), CHUNK):
        whole.update(octets[at : at + CHUNK])
    release_pages(octets, 0, len(octets))
    return whole.hexdigest()


def _verified(written: Written, octets: Buffer, drafts: Drafts) -> bool:
    """Whether file and blobs give the octets back. Base64, and what is in the sink, was compared as it was decoded."""
    at = 0
    try:
        for segment in written.recipe.segments:
            if segment.start != at:
                return False
            at += segment.size
            if segment.kind == BLOB and (_is_base64(segment) or not drafts.in_memory(segment.ref)):
                continue
            position = segment.start
            for chunk in segment_octets(written.file, segment, drafts, 0, segment.size):
                if bytes(octets[position : position + len(chunk)]) != chunk:
                    return False
                position += len(chunk)
            if position != at:
                return False
    except MailError:
        return False
    return at == len(octets)


def _is_base64(segment: Segment) -> bool:
    return segment.coding is not None and segment.coding.encoding == "base64"


# -- what people read ---------------------------------------------------------------------------------------------


def _derived_body(octets: Buffer, leaves: Leaves, segmented: Segmented) -> bytes:
    """A text to read that is no part of the octets; marked where it is cut short."""
    part = leaves.body or leaves.html
    if part is None or part.body >= part.end:
        return b""
    if part is leaves.html:
        return _clip(html_to_markdown(decode_text(octets, part, MAX_HTML + 4)), _MAX_DERIVED, "")
    limit = EXCERPT if part.end - part.body > MAX_BODY else _MAX_DERIVED
    # A character in the file may have been four octets in the message: a line end in UTF-16.
    return _clip(decode_text(octets, part, 4 * limit + 4), limit, _blob_of(part, segmented))


def _blob_of(part: Part, segmented: Segmented) -> str:
    """The blob that holds a part, if there is one that starts with it or within it."""
    at = 0
    for piece in segmented.pieces:
        if piece.kind == BLOB and part.body <= at + piece.size and at < part.end:
            return piece.ref
        at += piece.size
    return ""


def _clip(text: str, limit: int, blob: str) -> bytes:
    raw = _NOT_TEXT.sub("", text).encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw
    cut = raw[:limit].decode("utf-8", "ignore").encode()
    where = f" attachments/{blob[:2]}/{blob}" if blob else ""
    return cut + f"\n\n{CUT_MARK}{where}\n".encode()


def preview_of(body: bytes) -> str:
    """RFC 8970 section 3: the first words."""
    start = body[: PREVIEW * 6].decode("utf-8", "ignore")[: PREVIEW * 3 // 2]
    return " ".join(start.split())[:PREVIEW]
