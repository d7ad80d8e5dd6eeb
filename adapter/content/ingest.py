"""Ingest: convert the octets of a message into a canonical file and blobs.

Invariants:
- Every input is accepted and preserved. The octets rebuilt from the file and the blobs are compared with the input
  before ``ingest`` returns. A part that cannot be rebuilt exactly is stored undecoded; as a last resort the whole
  message is stored as one blob.
- The size of the file is bounded for any message: text segments, body and front matter have their own limits.
- Ingest is deterministic: the same input gives the same file.
- A Bcc header left by the sender stays in the octets, and no field of the result contains it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from adapter.content import front_matter
from adapter.content.blobs import LARGE_PART_BYTES, BlobDraft, BlobDrafts, BlobSink, BlobWriter, release_pages
from adapter.content.encodings.codings import CHUNK_BYTES
from adapter.content.front_matter import AttachmentMeta, CanonicalFile, FrontMatter
from adapter.content.html.html_to_markdown import CUT_MARK, MAX_HTML_CHARACTERS, html_to_markdown
from adapter.content.parts import Leaves, classify, encode_outline, image_names
from adapter.content.segment import MAX_BODY_BYTES, Segmented, Segmenter
from adapter.content.summary import ThreadKeys, default_thread, summarise_headers
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

#: How much of an overlong text is copied to the file.
EXCERPT_BYTES = 64 * 1024
PREVIEW_CHARACTERS = 200
_MAX_DERIVED_BYTES = 256 * 1024
_NOT_TEXT = re.compile("[\x00\r]")


class Ingested(NamedTuple):
    """A message ready to be stored, with its index entries."""

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
    id: str,  # noqa: A002 - the store's term
    arrived: str,
    thread: Callable[[ThreadKeys], str] = default_thread,
    sink: BlobSink | None = None,
) -> Ingested:
    """Convert the octets of a message for storage. ``arrived`` (ISO) is the fallback for a missing Date header."""
    size = len(octets)
    if size <= LARGE_PART_BYTES and not isinstance(octets, bytes):
        octets = bytes(octets)
    root = scan(octets)
    headers = root.headers
    drafts = BlobDrafts(sink)
    wire_sha256 = _hash(octets)
    leaves = classify(octets, root)
    segmenter = Segmenter(octets, drafts)
    segmented = segmenter.run(leaves)
    body = segmented.body
    if body is None:
        body = _derived_body(octets, leaves, segmented)

    header_envelope = envelope(headers)
    head = summarise_headers(header_envelope, headers.first("references"))
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
    canonical = front_matter.write(matter, wire_sha256, size, segmented.segments, body)
    if not _rebuilds(canonical, octets, drafts):
        canonical = front_matter.write(matter, wire_sha256, size, segmenter.single_blob(), body)
        drafts.retain((*canonical.recipe.blobs, *(a.sha256 for a in segmented.attachments)))
    return Ingested(
        id,
        canonical.file,
        canonical.recipe,
        drafts.all(),
        size,
        wire_sha256,
        canonical.sha256,
        head.message_id,
        head.in_reply_to,
        head.references,
        thread_id,
        "" if head.sender is None else head.sender.address,
        head.subject,
        (*[("to", person.address) for person in head.to], *[("cc", person.address) for person in head.cc]),
        head.date,
        segmented.attachments,
        encode_envelope(header_envelope),
        encode_structure(structure(octets, root), True),
        encode_outline(root),
        preview_of(body),
    )


def _hash(octets: Buffer) -> str:
    if isinstance(octets, bytes):
        return sha256(octets).hexdigest()
    hasher = sha256()
    for at in range(0, len(octets), CHUNK_BYTES):
        hasher.update(octets[at : at + CHUNK_BYTES])
    release_pages(octets, 0, len(octets))
    return hasher.hexdigest()


def _rebuilds(canonical: CanonicalFile, octets: Buffer, drafts: BlobDrafts) -> bool:
    """Compare the octets rebuilt from file and blobs with the original.

    Base64 and blobs in the sink are skipped: they were compared while they were decoded.
    """
    at = 0
    try:
        for segment in canonical.recipe.segments:
            if segment.start != at:
                return False
            at += segment.size
            if segment.kind == BLOB and (_is_base64(segment) or not drafts.in_memory(segment.ref)):
                continue
            position = segment.start
            for chunk in segment_octets(canonical.file, segment, drafts, 0, segment.size):
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


# -- the readable text --------------------------------------------------------------------------------------------


def _derived_body(octets: Buffer, leaves: Leaves, segmented: Segmented) -> bytes:
    """Derive a readable text that is not part of the octets. A truncated text ends with a mark."""
    part = leaves.body or leaves.html
    if part is None or part.body >= part.end:
        return b""
    if part is leaves.html:
        html = decode_text(octets, part, MAX_HTML_CHARACTERS + 4)
        return _clip(html_to_markdown(html, image_names(leaves)), _MAX_DERIVED_BYTES, "")
    limit = EXCERPT_BYTES if part.end - part.body > MAX_BODY_BYTES else _MAX_DERIVED_BYTES
    # A character of the file can take up to four octets of the message (a line ending in UTF-16).
    return _clip(decode_text(octets, part, 4 * limit + 4), limit, _blob_of(part, segmented))


def _blob_of(part: Part, segmented: Segmented) -> str:
    """The digest of a blob that overlaps a part, or ""."""
    at = 0
    for segment in segmented.segments:
        if segment.kind == BLOB and part.body <= at + segment.size and at < part.end:
            return segment.ref
        at += segment.size
    return ""


def _clip(text: str, limit: int, blob: str) -> bytes:
    raw = _NOT_TEXT.sub("", text).encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw
    cut = raw[:limit].decode("utf-8", "ignore").encode()
    where = f" attachments/{blob[:2]}/{blob}" if blob else ""
    return cut + f"\n\n{CUT_MARK}{where}\n".encode()


def preview_of(body: bytes) -> str:
    """The first words of the text (RFC 8970 section 3)."""
    start = body[: PREVIEW_CHARACTERS * 6].decode("utf-8", "ignore")[: PREVIEW_CHARACTERS * 3 // 2]
    return " ".join(start.split())[:PREVIEW_CHARACTERS]
