"""The text of a part: transfer encodings, charsets, format=flowed."""

from __future__ import annotations

import base64
import encodings
import mmap
import tracemalloc

import pytest

from protocol.mime.parser import scan
from protocol.mime.text import decode_body, decode_charset, decode_text, unflow


def text_of(head: bytes, body: bytes, limit: int | None = None) -> str:
    message = head + b"\r\n\r\n" + body
    return decode_text(message, scan(message), limit)


def octets_of(encoding: bytes, body: bytes, limit: int | None = None) -> bytes:
    message = b"Content-Transfer-Encoding: " + encoding + b"\r\n\r\n" + body
    return decode_body(message, scan(message), limit)


@pytest.mark.parametrize(
    ("body", "octets"),
    [
        (b"aGVsbG8=\r\n", b"hello"),
        (b"aGVs\r\nbG8=\r\n", b"hello"),
        (b"aGVsbG8", b"hello"),
        (b"aGVsbG8===", b"hello"),
        (b"aG!V-s_bG8=", b"hello"),
        (b"aGVsbG8=aGVsbG8=\n", b"hellohello"),
        (b"aGVsbG8=\r\n--\r\nsome footer", b"hello" + base64.b64decode("somefooter==")),
        (b"a", b""),
        (b"aGVsb", b"hel"),
        (b"====", b""),
        (b"", b""),
    ],
)
def test_base64(body: bytes, octets: bytes) -> None:
    assert octets_of(b"base64", body) == octets


@pytest.mark.parametrize(
    ("body", "octets"),
    [
        (b"caf=C3=A9", b"caf\xc3\xa9"),
        (b"a=\r\nb=\nc", b"abc"),
        (b"a= \t\r\nb", b"ab"),
        (b"trailing  \t\r\nb \n", b"trailing\r\nb\n"),
        (b"lower=c3=a9", b"lower\xc3\xa9"),
        (b"not = an =ZZ escape=", b"not = an =ZZ escape"),
        (b"=41=", b"A"),
        (b"", b""),
    ],
)
def test_quoted_printable(body: bytes, octets: bytes) -> None:
    assert octets_of(b"quoted-printable", body) == octets


@pytest.mark.parametrize("encoding", [b"7bit", b"8bit", b"binary", b"x-uuencode", b"nonsense"])
def test_unknown_encodings_are_unchanged(encoding: bytes) -> None:
    assert octets_of(encoding, b"=41 aGVsbG8=") == b"=41 aGVsbG8="
    assert octets_of(encoding, b"=41 aGVsbG8=", 3) == b"=41"


@pytest.mark.parametrize(
    ("raw", "charset", "text"),
    [
        (b"abc", None, "abc"),
        ("ü".encode(), None, "ü"),
        (b"\xfc", None, "ü"),
        (b"\xfc", "us-ascii", "ü"),
        (b"\x93q\x94", "iso-8859-1", "“q”"),
        (b"\x93q\x94", "unknown-8bit", "“q”"),
        (b"\x81", "windows-1252", "\x81"),
        (b"\xff", "utf-8", "\ufffd"),
        (b"\xc3\xbc", "UTF8", "ü"),
        (b"\xc3\xbc", '"utf-8"', "ü"),
        (b"\xa4", "ISO_8859-15", "€"),
        (b"\xc4\xe3\x80", "gb2312", "你\ufffd"),
        (b"\x87\x40", "shift_jis", "①"),
        (b"\xb0\xa1", "ks_c_5601-1987", "가"),
        (b"\xd0\xc9", "x-koi8-r", "пи"),
        (b"\xa4", "KOI8-U", "є"),
        (b"\xfc", "ANSI_X3.4-1968", "ü"),
        (b"a\x00b\x00", "utf-16le", "ab"),
        (b"+AOQ-", "unicode-1-1-utf-7", "ä"),
        (b"+2AA-x", "utf-7", "\ufffdx"),
        (b"abc", "no-such", "abc"),
        (b"abc", "zlib", "abc"),
        (b"abc-", "punycode", "abc-"),
        (b"abc", "unicode_escape", "abc"),
        (b"abc", "\x00", "abc"),
        (b"abc", "../x", "abc"),
        (b"abc", "x" * 100000, "abc"),
    ],
)
def test_charsets(raw: bytes, charset: str | None, text: str) -> None:
    assert decode_charset(raw, charset) == text


def test_unknown_charset_labels_are_not_cached() -> None:
    cache: dict[str, object] = vars(encodings)["_cache"]
    before = len(cache)
    for number in range(100):
        decode_charset(b"x", f"made-up-{number}")
    assert len(cache) == before


def test_text_of_a_part() -> None:
    head = b"Content-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable"
    assert text_of(head, b"caf=E9=\r\n!\r\n") == "café!\n"
    assert text_of(b"A: b", b"\xef\xbb\xbfx\r\ny\rz") == "x\ny\rz"


@pytest.mark.parametrize("limit", range(9))
def test_limit_does_not_split_a_character(limit: int) -> None:
    cut = {0: "", 1: "a", 2: "a", 3: "aü", 4: "aü", 5: "aü", 6: "aü€", 7: "aü€b", 8: "aü€b"}[limit]
    assert text_of(b"Content-Type: text/plain; charset=utf-8", "aü€b".encode(), limit) == cut
    assert text_of(b"A: b", "aü€b".encode(), limit) == cut


def test_limit_with_other_charsets() -> None:
    head = b"Content-Type: text/plain; charset=gb2312"
    assert text_of(head, "你好".encode("gb18030"), 3) == "你"


@pytest.mark.parametrize("encoding", [b"base64", b"quoted-printable", b"8bit"])
def test_start_of_a_large_part_is_cheap(encoding: bytes) -> None:
    size = 16 << 20
    head = b"Content-Transfer-Encoding: " + encoding + b"\r\n\r\n"
    with mmap.mmap(-1, size) as buffer:
        buffer[:] = b"QUJD" * 15 + b"QUI\n" + b"QUJD" * ((size - 64) // 4)
        buffer[: len(head)] = head
        part = scan(buffer)
        for at in range(128, 200_000, 64):
            buffer[at : at + 1] = b"\n"
        tracemalloc.start()
        assert len(decode_body(buffer, part, 65536)) == 65536
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


FLOWED = (
    "This is a \n"
    "paragraph that \n"
    "flows.\n"
    "\n"
    " From stuffed\n"
    "> quoted \n"
    "> text\n"
    ">> deeper \n"
    "> back\n"
    "hard line \n"
    "-- \n"
    "signature \n"
)


def test_flowed_text() -> None:
    assert unflow(FLOWED, delete_space=False) == (
        "This is a paragraph that flows.\n\nFrom stuffed\n> quoted text\n>> deeper \n> back\n"
        "hard line \n-- \nsignature \n"
    )


def test_empty_line_ends_a_paragraph() -> None:
    assert unflow("a \n\nb \n> \n", delete_space=False) == "a \n\nb \n> \n"


def test_flowed_text_with_deleted_space() -> None:
    assert unflow("日本 \n語\n", delete_space=True) == "日本語\n"


def test_text_is_flowed_only_if_declared() -> None:
    flowed = b"Content-Type: text/plain; format=Flowed; delsp=Yes"
    assert text_of(flowed, b"a \r\nb\r\n") == "ab\n"
    assert text_of(b"Content-Type: text/plain; format=flowed", b"a \r\nb\r\n") == "a b\n"
    assert text_of(b"Content-Type: text/plain", b"a \r\nb\r\n") == "a \nb\n"
    assert text_of(b"Content-Type: text/html; format=flowed", b"a \r\nb\r\n") == "a \nb\n"
