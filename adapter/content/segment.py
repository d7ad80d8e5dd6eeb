"""Take a message apart: which octets become the body, which a blob, and which stay text.

Leaves are cut out of the message one by one; what lies between the cuts is text. Every cut is exact: a blob or body is
only used after its encoding has given back the octets it replaces. Large parts go through in chunks.
"""

from __future__ import annotations

from binascii import a2b_qp
from collections.abc import Iterator
from typing import NamedTuple

from adapter.content.blobs import LARGE, Drafts, release_pages
from adapter.content.encodings import base64_lines, quoted_printable
from adapter.content.encodings.base64_lines import InexactError
from adapter.content.encodings.codings import CHUNK, LINE_ENDS, Coding, encode_blob, encode_text, quoted_coding
from adapter.content.front_matter import AttachmentMeta
from adapter.content.parts import Leaf, Leaves, is_text
from adapter.content.text_segments import coded_text, is_literal, newline_of, text_pieces
from adapter.content.wire import BLOB, BODY, TEXT
from adapter.content.wire_encoding import Piece
from adapter.content.yaml import fits_yaml
from protocol.mime.encoding import decode_base64
from protocol.mime.parser import Buffer, Part

#: A text part of at most this many octets stays in the file.
SMALL_TEXT = 8 * 1024
#: A readable text of more octets goes to a blob.
MAX_BODY = 1 << 20
#: Room for text segments in one file, indentation included.
TEXT_BUDGET = 1 << 20
_MAX_REGION = 256 * 1024
_TYPE_LENGTH = 120


class Cut(NamedTuple):
    start: int
    end: int
    piece: Piece


class Segmented(NamedTuple):
    """``body`` is None if no segment is the body: then what people read is derived."""

    pieces: list[Piece]
    body: bytes | None
    attachments: tuple[AttachmentMeta, ...]


class Segmenter:
    def __init__(self, buffer: Buffer, drafts: Drafts) -> None:
        self._buffer = buffer
        self._drafts = drafts
        self._room = TEXT_BUDGET

    def run(self, leaves: Leaves) -> Segmented:
        cuts: list[Cut] = []
        body: bytes | None = None
        attachments: list[AttachmentMeta] = []
        for leaf in leaves.all:
            part = leaf.part
            if part is leaves.body and part.body < part.end <= part.body + MAX_BODY:
                found = self._body_cut(part)
                if found is not None:
                    cut, body = found
                    cuts.append(cut)
                    continue
            if leaf.name:
                attachments.append(self._attachment(leaf, cuts))
            elif part.body < part.end:
                cut_or_none = self._leaf_cut(part, in_file=part is leaves.body)
                if cut_or_none is not None:
                    cuts.append(cut_or_none)
        return Segmented(self._assemble(cuts), body, tuple(attachments))

    def whole(self) -> list[Piece]:
        """The message as one blob: always possible, never wrong."""
        size = len(self._buffer)
        return [self._identity(0, size)] if size else []

    # -- leaves -------------------------------------------------------------------------------------------------

    def _body_cut(self, part: Part) -> tuple[Cut, bytes] | None:
        """The readable part as the body of the file; with the line end before the delimiter, if that may be."""
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
            found = coded_text(raw, encoding, label)
            if found is not None:
                text, coding = found
                if len(text) <= 2 * MAX_BODY:
                    return Cut(start, stop, Piece(BODY, len(raw), b"", coding)), text
        return None

    def _attachment(self, leaf: Leaf, cuts: list[Cut]) -> AttachmentMeta:
        part = leaf.part
        cut = self._blob_cut(part) if part.body < part.end else None
        kind = f"{part.type}/{part.subtype}"[:_TYPE_LENGTH]
        if cut is not None and (cut.piece.coding or Coding("identity")).encoding != "identity":
            cuts.append(cut)
            digest = cut.piece.ref
        else:
            # The octets cannot be had back from the decoded form; people still get a file they can open.
            if cut is not None:
                cuts.append(cut)
            digest = self._readable_blob(part, cut)
        return AttachmentMeta(digest, leaf.name, kind, self._drafts.size(digest))

    def _readable_blob(self, part: Part, cut: Cut | None) -> str:
        if part.encoding == "base64":
            if part.end - part.body <= LARGE:
                return self._drafts.add(decode_base64(bytes(self._buffer[part.body : part.end])))
            return self._drafts.add_chunks(base64_lines.decode_tolerant(self._buffer, part.body, part.end))[0]
        if part.encoding == "quoted-printable" and part.end - part.body <= LARGE:
            return self._drafts.add(a2b_qp(bytes(self._buffer[part.body : part.end])))
        if cut is not None:
            return cut.piece.ref
        return self._drafts.add(bytes(self._buffer[part.body : part.end]))

    def _leaf_cut(self, part: Part, *, in_file: bool) -> Cut | None:
        """A leaf that is neither body nor attachment; None if it stays text as it is.

        ``in_file``: the readable part, whose encoded text stays in the file as long as there is room.
        """
        size = part.end - part.body
        if not is_text(part) or size > (_MAX_REGION // 4 if in_file else SMALL_TEXT):
            return self._blob_cut(part)
        if part.encoding == "base64" and not in_file:
            return self._blob_cut(part)
        raw = bytes(self._buffer[part.body : part.end])
        if part.encoding != "quoted-printable" and not is_literal(raw):
            found = coded_text(raw, "8bit", part.params.get("charset", ""))
            if found is not None and found[1].charset and fits_yaml(found[0]):
                text, coding = found
                coding = Coding("8bit", coding.charset, coding.newline)
                if encode_text(text, coding) == raw and self._take_room(len(text) + 8 * text.count(b"\n")):
                    return Cut(part.body, part.end, Piece(TEXT, size, text, coding))
        return None

    def _blob_cut(self, part: Part) -> Cut | None:
        """A leaf as a blob, decoded if that is exact; None if it is short text that cannot be decoded exactly."""
        start, end, encoding = part.body, part.end, part.encoding
        try:
            if encoding == "base64":
                return self._base64_cut(start, end)
            if encoding == "quoted-printable":
                return self._quoted_cut(start, end)
        except InexactError:
            if end - start <= SMALL_TEXT:
                return None
            return Cut(start, end, self._identity(start, end))
        known = encoding in ("7bit", "8bit", "binary")
        if not known and end - start <= SMALL_TEXT:
            return None
        return Cut(start, end, self._identity(start, end, encoding if known else "identity"))

    def _base64_cut(self, start: int, end: int) -> Cut | None:
        first, last, line, eol = base64_lines.detect(self._buffer, start, end)
        if first >= last:
            return None
        chunks = base64_lines.decode_exact(self._buffer, first, last, line, eol)
        if last - first <= LARGE:
            digest = self._drafts.add(b"".join(chunks))
        else:
            digest, _ = self._drafts.add_chunks(self._released(chunks, first, last))
        coding = Coding("base64", "", "crlf", line, "lf" if eol == b"\n" else "crlf")
        return Cut(first, last, Piece(BLOB, last - first, b"", coding, digest))

    def _quoted_cut(self, start: int, end: int) -> Cut:
        if end - start <= LARGE:
            raw = bytes(self._buffer[start:end])
            data, coding = _unquote(raw)
            return Cut(start, end, Piece(BLOB, end - start, b"", coding, self._drafts.add(data)))
        marks: list[int] = []
        codings: list[Coding] = []
        digest, _ = self._drafts.add_chunks(self._unquote_chunks(start, end, marks, codings))
        coding = codings[0]._replace(marks=tuple(marks))
        return Cut(start, end, Piece(BLOB, end - start, b"", coding, digest))

    def _unquote_chunks(self, start: int, end: int, marks: list[int], codings: list[Coding]) -> Iterator[bytes]:
        """Decoded chunks of a long quoted-printable part, each ending with a line; fills the two lists."""
        at, decoded = start, 0
        while at < end:
            raw = bytes(self._buffer[at : min(at + CHUNK, end)])
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

    def _identity(self, start: int, end: int, encoding: str = "identity") -> Piece:
        """Octets as they are, in a blob."""
        if end - start <= LARGE:
            digest = self._drafts.add(bytes(self._buffer[start:end]))
        else:
            chunks = (bytes(self._buffer[at : min(at + CHUNK, end)]) for at in range(start, end, CHUNK))
            digest, _ = self._drafts.add_chunks(self._released(chunks, start, end))
        return Piece(BLOB, end - start, b"", Coding(encoding), digest)

    def _released(self, chunks: Iterator[bytes], start: int, end: int) -> Iterator[bytes]:
        yield from chunks
        release_pages(self._buffer, start, end)

    # -- what lies between ----------------------------------------------------------------------------------------

    def _assemble(self, cuts: list[Cut]) -> list[Piece]:
        """All octets in order: the cuts, and text before, between and after them."""
        pieces: list[Piece] = []
        at = 0
        for cut in cuts:
            pieces += self._text(at, cut.start)
            pieces.append(cut.piece)
            at = cut.end
        pieces += self._text(at, len(self._buffer))
        return pieces

    def _text(self, start: int, end: int) -> list[Piece]:
        if start >= end:
            return []
        if end - start <= _MAX_REGION:
            raw = bytes(self._buffer[start:end])
            found = text_pieces(raw)
            if found is not None and self._take_room(len(raw) + 8 * (raw.count(b"\n") + len(found))):
                return found
        return [self._identity(start, end)]

    def _take_room(self, size: int) -> bool:
        if size > self._room:
            return False
        self._room -= size
        return True


def _last_hard_break(raw: bytes) -> int:
    """Just after the last line end that is not a soft one."""
    at = len(raw)
    while True:
        at = raw.rfind(b"\n", 0, at)
        if at < 0:
            raise InexactError
        if not raw[max(at - 2, 0) : at].rstrip(b"\r").endswith(b"="):
            return at + 1


def _unquote(raw: bytes) -> tuple[bytes, Coding]:
    """The decoded octets of a quoted-printable part and the coding that gives ``raw`` back."""
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
