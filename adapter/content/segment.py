"""Segment a message: decide which octets become the body, which become blobs and which stay text.

Leaves are cut out of the message one by one; the octets between the cuts stay text. Every cut is exact: a blob or body
is used only after encoding it again has reproduced the octets it replaces. Large parts are processed in chunks.
"""

from __future__ import annotations

from binascii import a2b_qp
from collections.abc import Iterator
from typing import NamedTuple

from adapter.content.blobs import LARGE_PART_BYTES, BlobDrafts, release_pages
from adapter.content.encodings import base64_lines, quoted_printable
from adapter.content.encodings.base64_lines import InexactError
from adapter.content.encodings.codings import CHUNK_BYTES, LINE_ENDS, Coding, encode_blob, encode_text, quoted_coding
from adapter.content.front_matter import AttachmentMeta
from adapter.content.parts import Leaf, Leaves, is_text
from adapter.content.text_segments import coded_text, is_literal, newline_of, segment_text
from adapter.content.wire import BLOB, BODY, TEXT
from adapter.content.wire_encoding import SegmentDraft
from adapter.content.yaml import fits_yaml
from protocol.mime.encoding import decode_base64
from protocol.mime.parser import Buffer, Part

#: A text part up to this size stays in the file.
SMALL_TEXT_BYTES = 8 * 1024
#: A larger readable text becomes a blob.
MAX_BODY_BYTES = 1 << 20
#: Limit for all text segments of a file, indentation included.
TEXT_BUDGET_BYTES = 1 << 20
_MAX_TEXT_REGION_BYTES = 256 * 1024
_MAX_TYPE_CHARACTERS = 120


class Cut(NamedTuple):
    start: int
    end: int
    draft: SegmentDraft


class Segmented(NamedTuple):
    """The segments of a message. Without a ``body``, ``ingest`` derives a readable text."""

    segments: list[SegmentDraft]
    body: bytes | None
    attachments: tuple[AttachmentMeta, ...]


class Segmenter:
    def __init__(self, buffer: Buffer, drafts: BlobDrafts) -> None:
        self._buffer = buffer
        self._drafts = drafts
        self._text_budget = TEXT_BUDGET_BYTES

    def run(self, leaves: Leaves) -> Segmented:
        cuts: list[Cut] = []
        body: bytes | None = None
        attachments: list[AttachmentMeta] = []
        for leaf in leaves.all:
            part = leaf.part
            if part is leaves.body and part.body < part.end <= part.body + MAX_BODY_BYTES:
                cut_and_text = self._body_cut(part)
                if cut_and_text is not None:
                    cut, body = cut_and_text
                    cuts.append(cut)
                    continue
            if leaf.name:
                attachments.append(self._attachment(leaf, cuts))
            elif part.body < part.end:
                cut_or_none = self._leaf_cut(part, in_file=part is leaves.body)
                if cut_or_none is not None:
                    cuts.append(cut_or_none)
        return Segmented(self._assemble(cuts), body, tuple(attachments))

    def single_blob(self) -> list[SegmentDraft]:
        """The whole message as one blob: the fallback that always works."""
        size = len(self._buffer)
        return [self._identity(0, size)] if size else []

    # -- leaves -------------------------------------------------------------------------------------------------

    def _body_cut(self, part: Part) -> tuple[Cut, bytes] | None:
        """Cut out the readable part as the body of the file, including the newline before the delimiter if possible."""
        start, end = part.body, part.end
        label = part.params.get("charset", "")
        encoding = part.encoding if part.type == "text" else "8bit"
        if encoding == "base64":
            start, end, _, _ = base64_lines.detect(self._buffer, start, end)
            ends = [end]
        else:
            after = bytes(self._buffer[end : end + 2])
            more = 2 if after == b"\r\n" else 1 if after[:1] == b"\n" else 0
            ends = [end + more, end] if more else [end]
        for stop in ends:
            raw = bytes(self._buffer[start:stop])
            text_and_coding = coded_text(raw, encoding, label)
            if text_and_coding is not None:
                text, coding = text_and_coding
                if len(text) <= 2 * MAX_BODY_BYTES:
                    return Cut(start, stop, SegmentDraft(BODY, len(raw), b"", coding)), text
        return None

    def _attachment(self, leaf: Leaf, cuts: list[Cut]) -> AttachmentMeta:
        part = leaf.part
        cut = self._blob_cut(part) if part.body < part.end else None
        kind = f"{part.type}/{part.subtype}"[:_MAX_TYPE_CHARACTERS]
        if cut is not None and (cut.draft.coding or Coding("identity")).encoding != "identity":
            cuts.append(cut)
            digest = cut.draft.ref
        else:
            # Decoding is not reversible here: store the raw octets, and a decoded blob that people can open.
            if cut is not None:
                cuts.append(cut)
            digest = self._readable_blob(part, cut)
        return AttachmentMeta(digest, leaf.name, kind, self._drafts.size(digest))

    def _readable_blob(self, part: Part, cut: Cut | None) -> str:
        if part.encoding == "base64":
            if part.end - part.body <= LARGE_PART_BYTES:
                return self._drafts.add(decode_base64(bytes(self._buffer[part.body : part.end])))
            return self._drafts.add_chunks(base64_lines.decode_tolerant(self._buffer, part.body, part.end))[0]
        if part.encoding == "quoted-printable" and part.end - part.body <= LARGE_PART_BYTES:
            return self._drafts.add(a2b_qp(bytes(self._buffer[part.body : part.end])))
        if cut is not None:
            return cut.draft.ref
        return self._drafts.add(bytes(self._buffer[part.body : part.end]))

    def _leaf_cut(self, part: Part, *, in_file: bool) -> Cut | None:
        """Cut out a leaf that is neither body nor attachment; None if it stays text.

        ``in_file``: the leaf is the readable part, so its encoded text stays in the file while the budget allows.
        """
        size = part.end - part.body
        if not is_text(part) or size > (_MAX_TEXT_REGION_BYTES // 4 if in_file else SMALL_TEXT_BYTES):
            return self._blob_cut(part)
        if part.encoding == "base64" and not in_file:
            return self._blob_cut(part)
        raw = bytes(self._buffer[part.body : part.end])
        if part.encoding != "quoted-printable" and not is_literal(raw):
            text_and_coding = coded_text(raw, "8bit", part.params.get("charset", ""))
            if text_and_coding is not None and text_and_coding[1].charset and fits_yaml(text_and_coding[0]):
                text, coding = text_and_coding
                coding = Coding("8bit", coding.charset, coding.newline)
                if encode_text(text, coding) == raw and self._reserve(len(text) + 8 * text.count(b"\n")):
                    return Cut(part.body, part.end, SegmentDraft(TEXT, size, text, coding))
        return None

    def _blob_cut(self, part: Part) -> Cut | None:
        """Cut out a leaf as a blob, decoded if reversible; None for a short text that cannot be decoded exactly."""
        start, end, encoding = part.body, part.end, part.encoding
        try:
            if encoding == "base64":
                return self._base64_cut(start, end)
            if encoding == "quoted-printable":
                return self._quoted_cut(start, end)
        except InexactError:
            if end - start <= SMALL_TEXT_BYTES:
                return None
            return Cut(start, end, self._identity(start, end))
        is_plain = encoding in ("7bit", "8bit", "binary")
        if not is_plain and end - start <= SMALL_TEXT_BYTES:
            return None
        return Cut(start, end, self._identity(start, end, encoding if is_plain else "identity"))

    def _base64_cut(self, start: int, end: int) -> Cut | None:
        first, last, line, eol = base64_lines.detect(self._buffer, start, end)
        if first >= last:
            return None
        chunks = base64_lines.decode_exact(self._buffer, first, last, line, eol)
        if last - first <= LARGE_PART_BYTES:
            digest = self._drafts.add(b"".join(chunks))
        else:
            digest, _ = self._drafts.add_chunks(self._released(chunks, first, last))
        coding = Coding("base64", "", "crlf", line, "lf" if eol == b"\n" else "crlf")
        return Cut(first, last, SegmentDraft(BLOB, last - first, b"", coding, digest))

    def _quoted_cut(self, start: int, end: int) -> Cut:
        if end - start <= LARGE_PART_BYTES:
            raw = bytes(self._buffer[start:end])
            data, coding = _unquote(raw)
            return Cut(start, end, SegmentDraft(BLOB, end - start, b"", coding, self._drafts.add(data)))
        marks: list[int] = []
        codings: list[Coding] = []
        digest, _ = self._drafts.add_chunks(self._unquote_chunks(start, end, marks, codings))
        coding = codings[0]._replace(marks=tuple(marks))
        return Cut(start, end, SegmentDraft(BLOB, end - start, b"", coding, digest))

    def _unquote_chunks(self, start: int, end: int, marks: list[int], codings: list[Coding]) -> Iterator[bytes]:
        """Decode a long quoted-printable part in chunks of whole lines; append to ``marks`` and ``codings``."""
        at, decoded = start, 0
        while at < end:
            raw = bytes(self._buffer[at : min(at + CHUNK_BYTES, end)])
            if at + len(raw) < end:
                raw = raw[: _last_hard_break(raw)]
            if not codings:
                data, coding = _unquote(raw)
                if coding.breaks or coding.extra:
                    raise InexactError
                codings.append(coding)
            else:
                marks += decoded, at - start
                data = a2b_qp(raw.replace(b"=" + LINE_ENDS[codings[0].newline], b""))
                if encode_blob(data, codings[0]) != raw:
                    raise InexactError
            yield data
            at += len(raw)
            decoded += len(data)
        release_pages(self._buffer, start, end)

    def _identity(self, start: int, end: int, encoding: str = "identity") -> SegmentDraft:
        """A blob of undecoded octets."""
        if end - start <= LARGE_PART_BYTES:
            digest = self._drafts.add(bytes(self._buffer[start:end]))
        else:
            chunks = (bytes(self._buffer[at : min(at + CHUNK_BYTES, end)]) for at in range(start, end, CHUNK_BYTES))
            digest, _ = self._drafts.add_chunks(self._released(chunks, start, end))
        return SegmentDraft(BLOB, end - start, b"", Coding(encoding), digest)

    def _released(self, chunks: Iterator[bytes], start: int, end: int) -> Iterator[bytes]:
        yield from chunks
        release_pages(self._buffer, start, end)

    # -- text between the cuts ------------------------------------------------------------------------------------

    def _assemble(self, cuts: list[Cut]) -> list[SegmentDraft]:
        """All segments in order: the cuts, and the text before, between and after them."""
        segments: list[SegmentDraft] = []
        at = 0
        for cut in cuts:
            segments += self._text(at, cut.start)
            segments.append(cut.draft)
            at = cut.end
        segments += self._text(at, len(self._buffer))
        return segments

    def _text(self, start: int, end: int) -> list[SegmentDraft]:
        if start >= end:
            return []
        if end - start <= _MAX_TEXT_REGION_BYTES:
            raw = bytes(self._buffer[start:end])
            segments = segment_text(raw)
            if segments is not None and self._reserve(len(raw) + 8 * (raw.count(b"\n") + len(segments))):
                return segments
        return [self._identity(start, end)]

    def _reserve(self, size: int) -> bool:
        """Take ``size`` octets from the text budget, or return False."""
        if size > self._text_budget:
            return False
        self._text_budget -= size
        return True


def _last_hard_break(raw: bytes) -> int:
    """Offset after the last newline that is not a soft line break."""
    at = len(raw)
    while True:
        at = raw.rfind(b"\n", 0, at)
        if at < 0:
            raise InexactError
        if not raw[max(at - 2, 0) : at].rstrip(b"\r").endswith(b"="):
            return at + 1


def _unquote(raw: bytes) -> tuple[bytes, Coding]:
    """Decode a quoted-printable part; return its octets and the coding that reproduces ``raw``."""
    newline = newline_of(raw)
    if newline is None:
        raise InexactError
    analysed = quoted_printable.analyse(raw.replace(b"\r\n", b"\n"))
    if analysed is None:
        raise InexactError
    text, quoting = analysed
    coding = quoted_coding(quoting, "", newline)
    data = text.replace(b"\n", b"\r\n") if newline == "crlf" else text
    if encode_blob(data, coding) != raw:
        raise InexactError
    return data, coding
