"""ENVELOPE, BODY and BODYSTRUCTURE: the values and their IMAP form."""

from __future__ import annotations

import mmap

import pytest

from protocol.imap.responses.envelope import encode_envelope, encode_structure
from protocol.imap.wire.strings import nstring
from protocol.mime.parser import ParserLimits, scan
from protocol.mime.structure import count_lines, envelope, structure


def body(message: bytes, *, extended: bool = False, limits: ParserLimits | None = None) -> bytes:
    part = scan(message) if limits is None else scan(message, limits)
    return encode_structure(structure(message, part), extended)


def envelope_of(message: bytes) -> bytes:
    return encode_envelope(envelope(scan(message).headers))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, b"NIL"),
        (b"", b'""'),
        (b"plain", b'"plain"'),
        (b'a "b" \\c', b'"a \\"b\\" \\\\c"'),
        (b"NIL", b'"NIL"'),
        (b"tab\t\x1b", b'"tab\t\x1b"'),
        (b"a\rb", b"{3}\r\na\rb"),
        (b"a\nb", b"{3}\r\na\nb"),
        ("ü".encode(), b"{2}\r\n\xc3\xbc"),
        (b"a\x00b", b'"ab"'),
        (b"\x00\xff\x00", b"{1}\r\n\xff"),
        (b"x" * 1000, b'"' + b"x" * 1000 + b'"'),
        (b"x" * 1001, b"{1001}\r\n" + b"x" * 1001),
    ],
)
def test_nstring(value: bytes | None, encoded: bytes) -> None:
    assert nstring(value) == encoded


def test_empty_envelope() -> None:
    assert envelope_of(b"\r\nbody") == b"(NIL NIL NIL NIL NIL NIL NIL NIL NIL NIL)"


def test_envelope_defaults_sender_and_reply_to() -> None:
    ada = b'(("Ada" NIL "a" "x.test"))'
    assert envelope_of(
        b"Date: Sun, 15 Nov 2026 23:06:01 +0000\r\nSubject: =?utf-8?q?x?=\r\nFrom: Ada <a@x.test>\r\n"
        b"Sender:\r\nTo: b@y.test, c@z.test\r\nBcc: g:;\r\nIn-Reply-To: <1@x>\r\n <2@x>\r\nMessage-ID:\r\n\r\n"
    ) == b" ".join(
        [
            b'("Sun, 15 Nov 2026 23:06:01 +0000"',
            b'"=?utf-8?q?x?="',
            ada,
            ada,
            ada,
            b'((NIL NIL "b" "y.test")(NIL NIL "c" "z.test"))',
            b"NIL",
            b'((NIL NIL "g" NIL)(NIL NIL NIL NIL))',
            b'"<1@x> <2@x>"',
            b'"")',
        ]
    )


def test_envelope_keeps_its_own_sender_and_reply_to() -> None:
    encoded = envelope_of(b"From: a@x\nSender: b@x\nReply-To: c@x\nCc: d@x\nSubject: \xfc\n\n")
    assert encoded == (
        b'(NIL {1}\r\n\xfc ((NIL NIL "a" "x")) ((NIL NIL "b" "x")) ((NIL NIL "c" "x")) NIL '
        b'((NIL NIL "d" "x")) NIL NIL NIL)'
    )


def test_text_leaf() -> None:
    assert body(b"\r\nline\r\nline\r\n") == b'("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 12 2)'


def test_all_extension_fields() -> None:
    message = (
        b'Content-Type: image/png; name="a b.png"\r\n'
        b"Content-ID: <id@x>\r\nContent-Description: a picture\r\nContent-Transfer-Encoding: base64\r\n"
        b"Content-MD5: Q2hlY2sgSW50ZWdyaXR5IQ==\r\nContent-Language: en, de-CH (Swiss)\r\n"
        b"Content-Location: http://x.test/a.png\r\n"
        b"Content-Disposition: inline; filename*=utf-8''gr%C3%BCn.png\r\n\r\nAAAA\r\n"
    )
    basic = b'"image" "png" ("name" "a b.png") "<id@x>" "a picture" "base64" 6'
    assert body(message) == b"(" + basic + b")"
    assert body(message, extended=True) == (
        b"(" + basic + b' "Q2hlY2sgSW50ZWdyaXR5IQ==" '
        b'("inline" ("filename*" "utf-8\'\'gr%C3%BCn.png")) ("en" "de-CH") "http://x.test/a.png")'
    )


def test_multipart_with_message() -> None:
    message = (
        b"Content-Type: multipart/mixed; boundary=b\nContent-Disposition: inline\n\n"
        b"--b\nContent-Type: text/html; charset=utf-8\n\n<p>\n\n"
        b"--b\nContent-Type: message/rfc822\n\nSubject: in\n\nx\ny\n--b--\n"
    )
    envelope_in = b'(NIL "in" NIL NIL NIL NIL NIL NIL NIL NIL)'
    assert body(message) == (
        b'(("text" "html" ("charset" "utf-8") NIL NIL "7bit" 4 1)'
        b'("message" "rfc822" NIL NIL NIL "7bit" 16 ' + envelope_in + b" "
        b'("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 3 1) 3) "mixed")'
    )
    assert body(message, extended=True) == (
        b'(("text" "html" ("charset" "utf-8") NIL NIL "7bit" 4 1 NIL NIL NIL NIL)'
        b'("message" "rfc822" NIL NIL NIL "7bit" 16 ' + envelope_in + b" "
        b'("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 3 1 NIL NIL NIL NIL) 3 NIL NIL NIL NIL) '
        b'"mixed" ("boundary" "b") ("inline" NIL) NIL NIL)'
    )


def test_multipart_without_parts_is_text() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\nno\ndelimiter\n"
    assert body(message) == b'("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 13 2)'


def test_unparsed_message_keeps_its_type() -> None:
    empty = b'(NIL NIL NIL NIL NIL NIL NIL NIL NIL NIL) ("text" "plain" ("charset" "us-ascii") NIL NIL "7bit" 0 0)'
    encoded = b"Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\nU3ViamVjdA==\n"
    assert body(encoded) == b'("message" "rfc822" NIL NIL NIL "base64" 13 ' + empty + b" 1)"
    plain = b"Content-Type: message/rfc822\n\nSubject: x\n"
    assert body(plain, limits=ParserLimits(depth=0)) == b'("message" "rfc822" NIL NIL NIL "7bit" 11 ' + empty + b" 1)"


def test_other_messages_are_basic() -> None:
    assert body(b"Content-Type: message/delivery-status\n\nx\n") == (
        b'("message" "delivery-status" NIL NIL NIL "7bit" 2)'
    )


def test_hostile_values_stay_inside_their_strings() -> None:
    message = b'Content-Type: te"xt/pl\x00a)in; na\\me="x\\") EVIL ("\r\nContent-ID: a\rb\r\n\r\n'
    assert body(message) == b'("te\\"xt" "pla)in" ("na\\\\me" "x\\") EVIL (") {3}\r\na\rb NIL "7bit" 0)'


def test_lines_of_a_mapped_file_are_counted_in_chunks() -> None:
    with mmap.mmap(-1, 1 << 20) as buffer:
        buffer[:] = b"0123456\n" * (1 << 17)
        assert count_lines(buffer, 4, 1 << 20) == 1 << 17
        assert count_lines(memoryview(b"a\nb\n"), 0, 3) == 1
