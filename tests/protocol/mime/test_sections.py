"""Sections of a message: BODY[section] and partial."""

from __future__ import annotations

import pytest

from protocol.errors import ProtocolError
from protocol.mime.parser import scan
from protocol.mime.sections import Section, find_part, parse_section, partial, section_bytes, section_ranges

INNER = b"Subject: inner\r\nTo: in@x.test\r\nContent-Type: multipart/alternative; boundary=c\r\n\r\n"
INNER_TEXT = b"--c\r\nX: 1\r\n\r\nplain\r\n--c\r\n\r\nsecond\r\n--c--"
MESSAGE = (
    b"From: a@x.test\r\nTo: b@x.test,\r\n c@x.test\r\nSubject: outer\r\n"
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/plain\r\n\r\nfirst\r\n"
    b"--b\r\nContent-Type: message/rfc822\r\n\r\n" + INNER + INNER_TEXT + b"\r\n"
    b"--b\r\nContent-Type: message/rfc822\r\n\r\nSubject: leaf\r\n\r\nleaf body\r\n"
    b"--b--\r\n"
)
HEADER = MESSAGE[: MESSAGE.index(b"--b")]


def fetch(spec: bytes, message: bytes = MESSAGE) -> bytes | None:
    return section_bytes(message, scan(message), parse_section(spec))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (b"", MESSAGE),
        (b"HEADER", HEADER),
        (b"TEXT", MESSAGE[len(HEADER) :]),
        (b"1", b"first"),
        (b"1.MIME", b"Content-Type: text/plain\r\n\r\n"),
        (b"2", INNER + INNER_TEXT),
        (b"2.MIME", b"Content-Type: message/rfc822\r\n\r\n"),
        (b"2.HEADER", INNER),
        (b"2.TEXT", INNER_TEXT),
        (b"2.1", b"plain"),
        (b"2.1.MIME", b"X: 1\r\n\r\n"),
        (b"2.2", b"second"),
        (b"2.2.MIME", b"\r\n"),
        (b"2.HEADER.FIELDS (to)", b"To: in@x.test\r\n\r\n"),
        (b"3", b"Subject: leaf\r\n\r\nleaf body"),
        (b"3.1", b"leaf body"),
        (b"3.1.MIME", b"Subject: leaf\r\n\r\n"),
        (b"HEADER.FIELDS (TO Subject X-None)", b"To: b@x.test,\r\n c@x.test\r\nSubject: outer\r\n\r\n"),
        (b"header.fields (X-None)", b"\r\n"),
        (
            b"HEADER.FIELDS.NOT (From To content-type)",
            b"Subject: outer\r\n\r\n",
        ),
        (b"HEADER.FIELDS.NOT (X-None)", HEADER),
        # no such part
        (b"4", None),
        (b"1.1", None),
        (b"1.TEXT", None),
        (b"1.HEADER", None),
        (b"2.3", None),
        (b"3.2", None),
        (b"3.1.1", None),
        (b"3.1.HEADER", None),
    ],
)
def test_sections(spec: bytes, expected: bytes | None) -> None:
    assert fetch(spec) == expected


def test_part_one_of_a_plain_message_is_its_body() -> None:
    message = b"Subject: x\r\n\r\nbody"
    assert fetch(b"1", message) == b"body"
    assert fetch(b"1.MIME", message) == b"Subject: x\r\n\r\n"
    assert fetch(b"2", message) is None
    assert fetch(b"1.1", message) is None


def test_root_that_is_a_message() -> None:
    message = b"Content-Type: message/rfc822\n\nSubject: in\n\nbody"
    assert fetch(b"1", message) == b"Subject: in\n\nbody"
    assert fetch(b"1.HEADER", message) == b"Subject: in\n\n"
    assert fetch(b"1.1", message) == b"body"


def test_empty_section_is_not_missing() -> None:
    message = b"Subject: x\r\n\r\n"
    root = scan(message)
    assert section_ranges(message, root, Section(what="TEXT")) == []
    assert section_bytes(message, root, Section(path=(1,))) == b""


def test_header_without_a_blank_line_gets_none() -> None:
    assert fetch(b"HEADER.FIELDS (a)", b"A: 1\r\nB: 2\r\n") == b"A: 1\r\n"
    assert fetch(b"HEADER.FIELDS (b)", b"A: 1\r\nB: 2") == b"B: 2"


def test_bare_line_feeds_are_kept() -> None:
    assert fetch(b"HEADER.FIELDS (b)", b"A: 1\nB: 2\n\nx") == b"B: 2\n\n"


def test_invalid_lines_are_in_the_complement() -> None:
    assert fetch(b"HEADER.FIELDS.NOT (a)", b"From x y\nA: 1\nB: 2\n\nx") == b"From x y\nB: 2\n\n"


def test_find_part() -> None:
    root = scan(MESSAGE)
    assert find_part(root, ()) is root
    part = find_part(root, (2, 1))
    assert part is not None
    assert part.number == "2.1"
    assert find_part(root, (9,)) is None


@pytest.mark.parametrize(
    ("spec", "section"),
    [
        (b"1.2.text", Section((1, 2), "TEXT")),
        (b'HEADER.FIELDS (a "b c" {3}\r\nd)e f])', Section((), "HEADER.FIELDS", ("a", "b c", "d)e", "f]"))),
        (b"1.Header.Fields.Not (X-A)", Section((1,), "HEADER.FIELDS.NOT", ("X-A",))),
        (b'HEADER.FIELDS ("\\"q\\\\")', Section((), "HEADER.FIELDS", ('"q\\',))),
    ],
)
def test_parse(spec: bytes, section: Section) -> None:
    assert parse_section(spec) == section


@pytest.mark.parametrize(
    "spec",
    [
        b"0", b"1.0", b"1.", b".1", b"1..2", b"01", b"x", b"1.x", b"MIME", b"TEXT.1", b"HEADER.", b" HEADER",
        b"HEADER ", b"HEADER.FIELDS", b"HEADER.FIELDS ()", b"HEADER.FIELDS (a", b"HEADER.FIELDS (a  b)",
        b"HEADER.FIELDS a", b"HEADER.FIELDS (a) ", b"HEADER.FIELDS(a)", b"HEADER.FIELDS (a\r\nb)", b"1" * 5000,
        b"HEADER.FIELDS ({9}\r\na)", b'HEADER.FIELDS ("a)', b"HEADERX", b"1MIME", b"1.HEADER.FIELDSX (a)",
    ],
)  # fmt: skip
def test_parse_errors(spec: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_section(spec)


@pytest.mark.parametrize(
    ("origin", "length", "expected"),
    [
        (0, 100, [(0, 3), (10, 12)]),
        (0, 2, [(0, 2)]),
        (2, 2, [(2, 3), (10, 11)]),
        (3, 1, [(10, 11)]),
        (4, 9, [(11, 12)]),
        (5, 1, []),
        (1, 0, []),
    ],
)
def test_partial(origin: int, length: int, expected: list[tuple[int, int]]) -> None:
    assert partial([(0, 3), (10, 12)], origin, length) == expected
