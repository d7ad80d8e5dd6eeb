"""Header fields, encoded words and parameters."""

from __future__ import annotations

import pytest

from protocol.mime.headers import decode_words, parse_headers, parse_parameters

BLOCK = (
    b"Received: one\r\n"
    b"received : two\r\n"
    b" folded\r\n"
    b"\tagain\r\n"
    b"Subject:\r\n"
    b" =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"
    b"Empty:\r\n"
    b"X-Bare-LF:  a\n"
    b"no field here\r\n"
    b"Last: z\r\n"
    b"\r\n"
)


def test_lookup_is_unfolded_trimmed_and_case_insensitive() -> None:
    headers = parse_headers(BLOCK, 0, len(BLOCK))
    assert headers.first("RECEIVED") == b"one"
    assert headers.all("Received") == [b"one", b"two folded\tagain"]
    assert headers.first("subject") == b"=?utf-8?q?Gr=C3=BC=C3=9Fe?="
    assert headers.text("Subject") == "Grüße"
    assert headers.first("empty") == b""
    assert headers.first("absent") is None
    assert headers.all("absent") == []
    assert headers.text("absent") is None


def test_fields_have_exact_offsets() -> None:
    message = b"--\n" + BLOCK
    fields = parse_headers(message, 3, len(message)).fields
    assert [(field.name, field.lower) for field in fields] == [
        ("Received", "received"),
        ("received", "received"),
        ("Subject", "subject"),
        ("Empty", "empty"),
        ("X-Bare-LF", "x-bare-lf"),
        ("Last", "last"),
    ]
    assert [message[field.value_start : field.end] for field in fields] == [
        b"one",
        b"two\r\n folded\r\n\tagain",
        b"\r\n =?utf-8?q?Gr=C3=BC=C3=9Fe?=",
        b"",
        b"a",
        b"z",
    ]
    for field in fields:
        assert message[field.start : field.end].startswith(field.name.encode())


def test_header_block_is_independent_of_the_buffer() -> None:
    buffer = bytearray(BLOCK)
    headers = parse_headers(buffer, 0, len(buffer))
    buffer[:] = b"\x00" * len(buffer)
    assert headers.first("last") == b"z"
    assert headers.fields[-1].name == "Last"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        (b"=?iso-8859-1?Q?caf=E9?=", "café"),
        (b"=?UTF-8?B?R3LDvMOfZQ==?= and more", "Grüße and more"),
        # RFC 2047 section 8
        (b"(=?ISO-8859-1?Q?a?=)", "(a)"),
        (b"(=?ISO-8859-1?Q?a?= b)", "(a b)"),
        (b"(=?ISO-8859-1?Q?a?=  =?ISO-8859-1?Q?b?=)", "(ab)"),
        (b"(=?ISO-8859-1?Q?a?=\r\n    =?ISO-8859-1?Q?b?=)", "(ab)"),
        (b"(=?ISO-8859-1?Q?a_b?=)", "(a b)"),
        (b"(=?ISO-8859-1?Q?a?= =?ISO-8859-2?Q?_b?=)", "(a b)"),
        # a character split between two words
        (b"=?utf-8?B?w7zD?= =?utf-8?B?nw==?=", "üß"),
        (b"=?utf-8?Q?=C3?= =?UTF-8?Q?=BC?=", "ü"),
        # RFC 2231 section 5
        (b"=?US-ASCII*EN?Q?Keith_Moore?=", "Keith Moore"),
        # invalid but common
        (b"=?utf-8?Q?with space?=", "with space"),
        (b"=?utf-8?B?R3LDvMOfZQ?=", "Grüße"),
        (b"=?utf-8?Q?=ZZ=4?=", "=ZZ=4"),
        (b"=?no-such-charset?Q?=C3=BC?=", "ü"),
        (b"=?unknown-8bit?Q?=FC?=", "ü"),
        (b"=?gb2312?B?xOO6ww==?=", "你好"),
        (b"=?iso-2022-jp?B?GyRCRnxLXBsoQg==?=", "日本"),
        (b"=?utf-8?Q?unfinished", "=?utf-8?Q?unfinished"),
        (b"=?utf-8?X?a?=", "=?utf-8?X?a?="),
        (b"=?utf-8?Q??=", ""),
        # raw octets
        ("Grüße".encode(), "Grüße"),
        (b"Gr\xfc\xdfe \x93x\x94", "Grüße “x”"),
        (b"\x81", ""),
        # no control characters
        (b"a\x00b\x07c\td", "abc d"),
        (b"=?utf-8?Q?a=0D=0Ab=00?=", "a  b"),
        # a lone surrogate cannot be written to any file
        (b"=?utf-7?Q?+2AA-?=", "\ufffd"),
    ],
)
def test_encoded_words_are_decoded(raw: bytes, text: str) -> None:
    assert decode_words(raw) == text


@pytest.mark.parametrize(
    ("raw", "value", "params"),
    [
        (b"text/plain", "text/plain", {}),
        (b"TEXT/HTML; Charset=UTF-8", "text/html", {"charset": "UTF-8"}),
        (b'multipart/mixed;\r\n boundary="a;b"; x=y', "multipart/mixed", {"boundary": "a;b", "x": "y"}),
        (b'attachment; filename="a \\"q\\".txt"', "attachment", {"filename": 'a "q".txt'}),
        (b"text/plain (a comment); charset=us-ascii (Plain)", "text/plain", {"charset": "us-ascii"}),
        (b"attachment; filename=report (1).pdf", "attachment", {"filename": "report (1).pdf"}),
        (b"attachment; filename=my file.pdf; size=3", "attachment", {"filename": "my file.pdf", "size": "3"}),
        (b"multipart/mixed boundary=b", "multipart/mixed", {"boundary": "b"}),
        (b"text/plain;; ;charset = x ;", "text/plain", {"charset": "x"}),
        (b'text/plain; name="unfinished', "text/plain", {"name": "unfinished"}),
        (b"text/plain; novalue; =x; a=b", "text/plain", {"a": "b"}),
        (b"text/plain; a=1; a=2", "text/plain", {"a": "1"}),
        (b"text/plain; empty=; a=b", "text/plain", {"empty": "", "a": "b"}),
        (b"", "", {}),
        # RFC 2231
        (b"a; title*=us-ascii'en-us'This%20is%20%2A%2A%2Afun%2A%2A%2A", "a", {"title": "This is ***fun***"}),
        (b"a; f*0*=utf-8''%C3%BC; f*1*=%20x; f*2=\" y.txt\"", "a", {"f": "ü x y.txt"}),
        (b"a; f*0*=utf-8''%C3; f*1*=%BC", "a", {"f": "ü"}),
        (b"a; f*1=b; f*0=a; f*3=d", "a", {"f": "ab"}),
        (b"a; f=plain; f*=utf-8''%C3%BC", "a", {"f": "ü"}),
        (b"a; f*=no-charset-at-all", "a", {"f": "no-charset-at-all"}),
        (b"a; f*=''%zz%41", "a", {"f": "%zzA"}),
        (b"a; f*1=lost", "a", {}),
        ("a; f=grün".encode(), "a", {"f": "grün"}),
        (b"a; f=gr\xfcn", "a", {"f": "grün"}),
    ],
)
def test_parameters_are_parsed(raw: bytes, value: str, params: dict[str, str]) -> None:
    assert parse_parameters(raw) == (value, params)
