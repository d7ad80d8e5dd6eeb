"""Round trip: generated malformed mail and arbitrary octets are rebuilt octet for octet."""

from __future__ import annotations

import base64
import quopri
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapter.content import front_matter
from adapter.content.ingest import BlobDraft, BlobWriter, Ingested, ingest
from adapter.content.wire import Recipe, octets, rebuild
from protocol.errors import MailError

_ID = "msg-20261115T230601Z-0f3c9a0f3c9a0f3c9a0f"
_ARRIVED = "2026-11-15T23:06:01Z"


class Blobs:
    """Blobs of a message, from memory and from the sink."""

    def __init__(self, drafts: tuple[BlobDraft, ...]) -> None:
        self.data: dict[str, bytes] = {}
        for draft in drafts:
            data = draft.handle if draft.data is None else draft.data
            assert isinstance(data, bytes)
            assert len(data) == draft.size
            self.data[draft.sha256] = data

    def read(self, sha256: str, offset: int, length: int) -> bytes:
        data = self.data[sha256]
        return data[offset:] if length < 0 else data[offset : offset + length]


class Writer:
    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.chunks: list[bytes] = []
        sink.open += 1

    def write(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def finish(self) -> bytes:
        self.sink.open -= 1
        return b"".join(self.chunks)

    def abort(self) -> None:
        self.sink.open -= 1


class Sink:
    def __init__(self) -> None:
        self.open = 0

    def start(self) -> BlobWriter:
        return Writer(self)


@contextmanager
def small_limits() -> Iterator[None]:
    """Lower the size limits to a few dozen octets, so that every test exercises chunks and sinks."""
    with (
        patch("adapter.content.segment.LARGE_PART_BYTES", 64),
        patch("adapter.content.ingest.LARGE_PART_BYTES", 64),
        patch("adapter.content.segment.CHUNK_BYTES", 300),
        patch("adapter.content.segment.SMALL_TEXT_BYTES", 40),
        patch("adapter.content.segment.MAX_BODY_BYTES", 200),
        patch("adapter.content.encodings.codings.CHUNK_BYTES", 90),
        patch("adapter.content.ingest.EXCERPT_BYTES", 50),
        patch("adapter.content.encodings.base64_lines.CHUNK_BYTES", 160),
    ):
        yield


def check(raw: bytes, sink: Sink | None = None) -> Ingested:
    result = ingest(raw, id=_ID, arrived=_ARRIVED, sink=sink)
    blobs = Blobs(result.blobs)
    file, recipe = result.file, result.recipe
    assert rebuild(file, recipe, blobs) == raw
    assert b"".join(octets(file, recipe, blobs, 0, len(raw))) == raw
    assert front_matter.digest_matches(file)
    assert front_matter.recipe_of(file) == recipe
    assert Recipe.decode(recipe.encode()) == recipe
    assert set(recipe.blobs) <= set(blobs.data)
    assert {a.sha256 for a in result.attachments} <= set(blobs.data)
    assert set(blobs.data) == set(recipe.blobs) | {a.sha256 for a in result.attachments}
    matter = front_matter.read(file)
    assert matter.recipe == recipe
    assert matter.attachments == result.attachments
    assert matter.thread == result.thread
    assert b"\x00" not in file
    file.decode()
    return result


eol = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\n", b"\r", b"\r\r\n"])
ascii_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=90).map(str.encode)
any_text = st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))
ugly = st.sampled_from(
    [b"", b" ", b"\t", b".", b"From x", b"---", b"--", b"- a", b"#", b"\x00", b"\x1b[1m", b"\xff\xfe", b"\x85", b"=",
     b"=\t", b"a ", b"\xe2\x80\xa8", b"\xc2\x85", b"\xef\xbb\xbf", b"digest: 0", b"wire:", b"gr\xfc\xdfe", b"\x0c"]
)  # fmt: skip
line = st.one_of(ascii_text, any_text, ugly, st.binary(max_size=30))
plain_line = st.one_of(ascii_text, any_text)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Lines, usually with a single kind of line ending."""
    lines = draw(st.lists(draw(st.sampled_from([ascii_text, plain_line, line])), max_size=12))
    if draw(st.integers(0, 3)):
        end = draw(eol)
        return end.join(lines) + draw(st.sampled_from([b"", end]))
    return b"".join(one + draw(eol) for one in lines)


@st.composite
def encoded(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """(transfer encoding, body), valid or invalid."""
    kind = draw(st.sampled_from(["7bit", "8bit", "binary", "base64", "quoted-printable", "x-odd", "none"]))
    body = draw(st.one_of(texts(), st.binary(max_size=400)))
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    if kind == "base64" and draw(st.integers(0, 9)):
        characters = base64.b64encode(body)
        width = draw(st.sampled_from([76, 76, 72, 64, 60, 75, 7, 1, 1000]))
        lines = [characters[i : i + width] for i in range(0, len(characters), width)]
        body = draw(st.sampled_from([b"", b"", end])) + end.join(lines) + draw(st.sampled_from([b"", end, end + end]))
        if not draw(st.integers(0, 4)):
            at = draw(st.integers(0, len(body)))
            body = body[:at] + draw(st.sampled_from([b" ", b"=", b"\r\n", b"-", b"\x00", b"A"])) + body[at:]
    elif kind == "quoted-printable" and draw(st.integers(0, 9)):
        body = quopri.encodestring(body.replace(b"\r\n", b"\n")).replace(b"\n", end)
        if not draw(st.integers(0, 3)):
            at = draw(st.integers(0, len(body)))
            odd = [b" ", b"=", b"=\r\n", b"=2E", b"=e4", b"=\n", b"=20", b"\t"]
            body = body[:at] + draw(st.sampled_from(odd)) + body[at:]
    return kind.encode(), body


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    names = [b"From", b"To", b"Cc", b"Subject", b"Date", b"Message-ID", b"References", b"X-Odd", b"Received", b"Bcc"]
    values = st.one_of(
        line,
        st.sampled_from(
            [b"Ada <ada@example.test>", b"=?utf-8?q?Gr=C3=BC=C3=9Fe?= <g@example.test>", b"<a@b> <c@d>",
             b"Sun, 15 Nov 2026 23:06:01 +0000", b"a" * 3000, b"folded\r\n\there", b"null", b"team: a@b, c@d;"]
        ),
    )  # fmt: skip
    fields = [draw(st.sampled_from(names)) + b": " + draw(values) + draw(eol) for _ in range(draw(st.integers(0, 6)))]
    return b"".join(fields)


_TYPES = [b"text/plain", b"text/plain; charset=iso-8859-1", b"text/plain; charset=iso-2022-jp", b"text/html",
          b"text/markdown", b"application/pdf; name=a.pdf", b"image/png", b"text/calendar", b"message/delivery-status",
          b"multipart/mixed", b"broken", b"text/plain; charset=utf-16; format=flowed"]  # fmt: skip
_DISPOSITIONS = [b"", b"", b"attachment; filename=../../etc/x", b"inline; filename*=utf-8''a%20%E2%82%AC.txt", b"x"]


@st.composite
def leaves(draw: st.DrawFn) -> bytes:
    kind, body = draw(encoded())
    end = draw(st.sampled_from([b"\r\n"] * 5 + [b"\n"]))
    head = b"Content-Type: " + draw(st.sampled_from(_TYPES)) + end
    if kind != b"none":
        head += b"Content-Transfer-Encoding: " + kind + end
    disposition = draw(st.sampled_from(_DISPOSITIONS))
    if disposition:
        head += b"Content-Disposition: " + disposition + end
    return head + draw(st.sampled_from([end, end, end, b""])) + body


@st.composite
def multiparts(draw: st.DrawFn, children: st.SearchStrategy[bytes]) -> bytes:
    boundary = draw(st.sampled_from([b"b", b"=_x", b"a b", b"--", b"b1"]))
    end = draw(st.sampled_from([b"\r\n"] * 5 + [b"\n"]))
    subtype = draw(st.sampled_from([b"mixed", b"alternative", b"related", b"signed", b"digest", b"report"]))
    out = b"Content-Type: multipart/" + subtype + b'; boundary="' + boundary + b'"' + end + end
    out += draw(st.sampled_from([b"", b"preamble" + end, b"\x00" + end]))
    for child in draw(st.lists(children, min_size=1, max_size=4)):
        out += b"--" + boundary + end + child + draw(st.sampled_from([end, end, end, b""]))
    return out + draw(st.sampled_from([b"--" + boundary + b"--" + end, b"--" + boundary + b"--", b""]))


def nested(children: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    forwarded = st.builds(
        lambda head, child: b"Content-Type: message/rfc822\r\n\r\n" + head + child, headers(), children
    )
    return st.one_of(multiparts(children), forwarded)


messages = st.builds(bytes.__add__, headers(), st.recursive(leaves(), nested, max_leaves=6))


@settings(max_examples=max(1000, settings().max_examples))  # each in three ways: whole, in chunks, from another view
@given(messages)
def test_generated_mail_is_rebuilt_exactly(raw: bytes) -> None:
    check(raw)
    sink = Sink()
    with small_limits():
        result = check(raw, sink)
    assert sink.open == 0
    assert result.file == check_file(raw)


def check_file(raw: bytes) -> bytes:
    """Ingest the same message again under the same limits, from another kind of buffer."""
    with small_limits():
        return ingest(memoryview(bytearray(raw)), id=_ID, arrived=_ARRIVED, sink=Sink()).file


@given(st.binary(max_size=600))
@example(b"")
@example(b"\r\n")
@example(b"\n")
@example(b"\r")
@example(b"a")
@example(b"\r\n\r\n")
@example(b"Subject: x\r\n\r\n---\r\n\r\ndigest: x\r\n---\r\n")
@example(b"\xef\xbb\xbfSubject: x\r\n\r\nx")
def test_arbitrary_octets_are_rebuilt_exactly(raw: bytes) -> None:
    check(raw)
    with small_limits():
        check(raw, Sink())


@given(messages, st.data())
def test_ranges_equal_slices_of_the_message(raw: bytes, data: st.DataObject) -> None:
    with small_limits():
        result = ingest(raw, id=_ID, arrived=_ARRIVED, sink=Sink())
        blobs = Blobs(result.blobs)
        for _ in range(5):
            start = data.draw(st.integers(0, len(raw) + 5))
            stop = data.draw(st.integers(0, len(raw) + 5))
            assert b"".join(octets(result.file, result.recipe, blobs, start, stop)) == raw[start:stop]


@given(messages, st.data())
def test_changed_file_never_passes_verification(raw: bytes, data: st.DataObject) -> None:
    """The digest detects a flipped octet; parsing the changed file raises only the documented error."""
    result = ingest(raw, id=_ID, arrived=_ARRIVED)
    at = data.draw(st.integers(0, len(result.file) - 1))
    broken = bytearray(result.file)
    broken[at] ^= data.draw(st.integers(1, 255))
    file = bytes(broken)
    assert not front_matter.digest_matches(file)
    try:
        front_matter.read(file)
        rebuild(file, front_matter.recipe_of(file), Blobs(result.blobs))
    except (MailError, KeyError):  # KeyError: a blob that does not exist
        pass


def test_size_of_the_file_is_bounded() -> None:
    lines = b"".join(b"%08d" % n + b" text of a log file that somebody sent by mail\r\n" for n in range(60_000))
    giant = b"X-Giant: " + b"\r\n\ta" * 200_000 + b"\r\n"
    many = b"".join(b"--b\r\nContent-Type: text/plain\r\n\r\n" + b"\r\n" * 2000 + b"\r\n" for _ in range(900))
    for raw in (
        b"Content-Type: text/plain\r\n\r\n" + lines,
        b"Content-Type: text/plain\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n" + lines,
        b"Content-Type: text/html\r\n\r\n" + lines,
        giant + b"\r\n" + lines,
        b"To: " + b",".join(b"a%d@example.test" % n for n in range(60_000)) + b"\r\n\r\n",
        b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n' + many,
    ):
        result = check(raw, Sink())
        assert len(result.file) < 3 << 20
