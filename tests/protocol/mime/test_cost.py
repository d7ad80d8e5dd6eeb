"""Linear cost for hostile input: sixteen times the size takes about sixteen times as long, not 256 times."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from protocol.imap.responses.envelope import encode_envelope, encode_structure
from protocol.mime.addresses import mailboxes
from protocol.mime.dates import parse_date
from protocol.mime.headers import decode_words, parse_headers, parse_parameters
from protocol.mime.parser import ParserLimits, scan, walk
from protocol.mime.sections import Section, section_bytes
from protocol.mime.structure import envelope, structure
from protocol.mime.text import decode_charset, decode_text

_FACTOR = 16
_ALLOWED = _FACTOR * 5  # a quadratic cost would be _FACTOR ** 2
_MULTIPART = b"Content-Type: multipart/mixed; boundary=b\n\n"


def _seconds(work: Callable[[bytes], object], raw: bytes, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work(raw)
        best = min(best, time.process_time() - start)
    return best


def _assert_linear(work: Callable[[bytes], object], make: Callable[[int], bytes], size: int) -> None:
    small = max(_seconds(work, make(size), 5), 0.0005)
    for _ in range(3):
        large = _seconds(work, make(size * _FACTOR), 1)
        if large < small * _ALLOWED:
            return
    pytest.fail(f"{small * 1e3:.1f} ms for {size}, {large * 1e3:.1f} ms for {_FACTOR} times as much")


def _everything(raw: bytes) -> None:
    root = scan(raw, ParserLimits(depth=500, parts=100_000))
    encode_envelope(envelope(root.headers))
    encode_structure(structure(raw, root), True)
    for part in walk(root):
        decode_text(raw, part, 4096)
    section_bytes(raw, root, Section((), "HEADER.FIELDS", ("to",)))


def _nested(count: int) -> bytes:
    """As many open multiparts as the depth allows, then many lines that could be delimiters of any."""
    opened = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(min(count, 400))
    )
    return opened + b"\n" + b"--b399\n--b\n--b0x\n" * count


@pytest.mark.parametrize(
    ("make", "size"),
    [
        pytest.param(lambda n: _MULTIPART + b"--b\n" * n, 500, id="delimiters and no header"),
        pytest.param(lambda n: _MULTIPART + b"--b\nx\n" * n, 500, id="headers without end"),
        pytest.param(lambda n: _MULTIPART + b"--c\n" * n, 5000, id="dashes that delimit nothing"),
        pytest.param(lambda n: _MULTIPART + b"--b\n\n--b--\n" * n, 1000, id="closed again and again"),
        pytest.param(lambda n: (_MULTIPART + b"--b\n") * n, 100, id="nested with one boundary"),
        pytest.param(_nested, 300, id="nested with many boundaries"),
        pytest.param(lambda n: b"Content-Type: message/rfc822\n\n" * n, 300, id="messages in messages"),
        pytest.param(lambda n: b"To: " + b"a" * n, 50_000, id="one long field"),
        pytest.param(lambda n: b"To: x\n" + b" \n" * n, 20_000, id="one long fold"),
        pytest.param(lambda n: b"a:\n" * n, 5000, id="many fields"),
        pytest.param(lambda n: b"a" * n, 50_000, id="no field at all"),
        pytest.param(lambda n: b"\n" * n, 50_000, id="blank lines"),
        pytest.param(lambda n: b"A: b\n\n--" + b"-" * n, 50_000, id="a long line of dashes"),
        pytest.param(lambda n: _MULTIPART + b"--" + b"b" * n, 50_000, id="a delimiter without end"),
        pytest.param(
            lambda n: b"Content-Type: text/plain; format=flowed\n\n" + b"> a \n" * n, 2000, id="one flowed paragraph"
        ),
    ],
)
def test_cost_of_messages_is_linear(make: Callable[[int], bytes], size: int) -> None:
    _assert_linear(_everything, make, size)


def _header_value(raw: bytes) -> None:
    decode_words(raw)
    parse_parameters(raw)
    mailboxes(raw)
    parse_date(raw)
    parse_headers(b"a: " + raw, 0, len(raw) + 3).text("a")


@pytest.mark.parametrize(
    "piece",
    [
        b"(", b")", b"()", b"<", b">", b"<>", b'"', b'""', b'\\"', b'"\\",', b"\\", b"[", b"[]", b"@", b"a@", b"a@b,",
        b",", b", ", b";", b":", b"a:", b"a:;", b"=", b"a=", b";a=", b';a="', b"; a*0=b", b"a*0*=", b"%41", b" ", b" (",
        b" (a", b"a ", b". ", b"=?", b"=?a?q?", b"=?a?q?b?=", b"=?a?q?=41?= ", b"=?a*b", b"?", b"\t\r\n", b"\xff",
        b"\x00", b"1", b"1 Jan ", b"<@a:", b'<"', b"<(", b"<a,", b'"a" <', b"a <b@c>, ",
    ],
)  # fmt: skip
def test_cost_of_header_values_is_linear(piece: bytes) -> None:
    _assert_linear(_header_value, lambda count: piece * (count // len(piece)), 6000)


@pytest.mark.parametrize("encoding", [b"base64", b"quoted-printable"])
@pytest.mark.parametrize("piece", [b"=", b" ", b"= ", b"=\n", b" \n", b"A", b"A=", b"\xff", b"=41", b" \t\r"])
def test_cost_of_transfer_encodings_is_linear(encoding: bytes, piece: bytes) -> None:
    head = b"Content-Transfer-Encoding: " + encoding + b"\n\n"
    for limit in (None, 1000):
        _assert_linear(
            lambda raw, limit=limit: decode_text(raw, scan(raw), limit),  # type: ignore[misc]
            lambda count: head + piece * (count // len(piece)),
            30_000,
        )


@pytest.mark.parametrize(
    "charset", ["utf-7", "utf-8", "iso-2022-jp", "hz", "gb2312", "big5", "utf-16", "punycode", "idna"]
)
@pytest.mark.parametrize("piece", [b"\xff", b"+A", b"\x1b$", b"~{a", b"a-"])
def test_cost_of_charsets_is_linear(charset: str, piece: bytes) -> None:
    _assert_linear(lambda raw: decode_charset(raw, charset), lambda count: piece * (count // len(piece)), 10_000)
