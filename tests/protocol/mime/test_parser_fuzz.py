"""Arbitrary octets: nothing raises, the invariants hold, and the encoded values are valid IMAP."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.imap.responses.envelope import encode_envelope, encode_structure
from protocol.imap.wire.strings import nstring
from protocol.mime.addresses import mailboxes, parse_addresses
from protocol.mime.dates import parse_date
from protocol.mime.headers import decode_words, parse_headers, parse_parameters
from protocol.mime.parser import ParserLimits, Part, scan, walk
from protocol.mime.sections import Section, parse_section, section_bytes
from protocol.mime.structure import envelope, structure
from protocol.mime.text import decode_body, decode_charset, decode_text

_PIECES = [
    b"Content-Type: multipart/mixed; boundary=b\n",
    b"Content-Type: multipart/digest;\r\n boundary=\"bb\"\r\n",
    b"Content-Type: multipart/mixed; boundary=b--\n",
    b"Content-Type: multipart/mixed\n",
    b"Content-Type: message/rfc822\r\n",
    b"Content-Type: message/global\nContent-Transfer-Encoding: base64\n",
    b"Content-Type: text/html; charset=utf-8; format=flowed\n",
    b"Content-Type: \xff/\x00; a=\xfc; b*=utf-8''%FF\n",
    b"Content-Transfer-Encoding: quoted-printable\n",
    b"Content-Disposition: attachment; filename*0=a; filename*1*=%20\n",
    b"Content-Language: en, (x) de\nContent-Location: \x80\nContent-MD5: \"\\\n",
    b"Content-ID: <\r>\n",
    b"Subject: =?utf-8?q?=C3?= =?utf-8?b?vA?=\n",
    b"From: \"A\\\" <a@b>, g: c@d (e;\n",
    b"To: <@r:a@b>,, ;x\n",
    b"Date: Mon, 1 Jan 24 10:00 EST\n",
    b"\n", b"\r\n", b"\r", b"\n\n", b" ", b"\t", b":", b"--", b"--b", b"--b\n", b"--b\r\n", b"--b--\n", b"--bb\n",
    b"--b----\n", b"\n--b\n", b"\n--bb--\n", b"text", b"=41=\n", b"QUJD\n", b"\x00", b"\xff", b"a \n", b"> a \n",
]  # fmt: skip
_MESSAGES = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=30).map(b"".join),
    st.lists(st.one_of(st.sampled_from(_PIECES), st.binary(max_size=8)), max_size=30).map(b"".join),
    st.binary(max_size=200),
)
_LIMITS = st.one_of(
    st.just(ParserLimits()),
    st.builds(ParserLimits, depth=st.integers(0, 4), parts=st.integers(1, 6), header_bytes=st.integers(0, 80)),
)
_HEADER_PIECES = (
    b'" \\ ( ) < > @ , ; : . [ ] = =? ?= =?utf-8?Q? =?x?b? * *0 *0* % %41 a b.c a@b \xc3\xbc \xff \r\n \t'.split(b" ")
)
_HEADER_VALUES = st.one_of(
    st.binary(max_size=60),
    st.lists(st.sampled_from([*_HEADER_PIECES, b" ", b"'"]), max_size=25).map(b"".join),
)
_SECTION_PIECES = b"1,2.,.,0,HEADER,.FIELDS,.NOT, (,a, ,),TEXT,.MIME".split(b",")


def _check_tree(message: bytes, root: Part) -> None:
    assert (root.start, root.end, root.number) == (0, len(message), "")
    for part in walk(root):
        assert part.start <= part.body <= part.end
        position = part.body
        for child in part.children:
            assert position <= child.start
            assert child.end <= part.end
            position = child.end
        if part.type != "multipart":
            assert len(part.children) <= (1 if part.is_message else 0)
        for field in part.headers.fields:
            assert part.start <= field.start < field.value_start <= field.end <= part.body
            assert message[field.start :].startswith(field.name.encode("latin-1"))
            assert part.headers.all(field.lower)


@given(_MESSAGES, _LIMITS)
def test_scan(message: bytes, limits: ParserLimits) -> None:
    root = scan(message, limits)
    _check_tree(message, root)
    parts = list(walk(root))
    assert len(parts) <= limits.parts + limits.depth
    for other in (bytearray(message), memoryview(message)):
        again = [(part.start, part.body, part.end, part.number) for part in walk(scan(other, limits))]
        assert again == [(part.start, part.body, part.end, part.number) for part in parts]


@given(_MESSAGES, _LIMITS)
def test_structure_and_envelope_are_valid_imap(message: bytes, limits: ParserLimits) -> None:
    root = scan(message, limits)
    check_envelope(read_value(encode_envelope(envelope(root.headers))))
    described = structure(message, root)
    for extended in (False, True):
        value = read_value(encode_structure(described, extended))
        check_body(value, extended=extended)
        _check_sizes(message, root, value, ())


def _check_sizes(message: bytes, root: Part, value: Value, path: tuple[int, ...]) -> None:
    """Every size in BODYSTRUCTURE is that of BODY[n]."""
    assert isinstance(value, list)
    if isinstance(value[0], list):
        _check_part_size(message, root, value, path)
    else:
        _check_part_size(message, root, value, (*path, 1))


def _check_part_size(message: bytes, root: Part, value: Value, path: tuple[int, ...]) -> None:
    assert isinstance(value, list)
    if isinstance(value[0], list):
        children = itertools.takewhile(lambda item: isinstance(item, list), value)
        for number, child in enumerate(children, 1):
            _check_part_size(message, root, child, (*path, number))
        return
    octets = section_bytes(message, root, Section(path))
    assert octets is not None
    assert len(octets) == value[6]
    is_message = value[0] == b"message" and value[1] in (b"rfc822", b"global")
    if is_message and section_bytes(message, root, Section(path, "HEADER")) is not None:
        _check_sizes(message, root, value[8], path)


@given(_MESSAGES, st.integers(0, 40))
def test_text(message: bytes, limit: int) -> None:
    for part in walk(scan(message)):
        whole = decode_body(message, part)
        assert decode_body(message, part, limit) == whole[:limit]
        decode_text(message, part).encode()
        decode_text(message, part, limit).encode()


@given(st.binary(max_size=3000), st.sampled_from(["base64", "quoted-printable"]), st.integers(0, 1500))
def test_limit_truncates_the_decoded_body(body: bytes, encoding: str, limit: int) -> None:
    message = b"Content-Transfer-Encoding: " + encoding.encode() + b"\n\n" + body
    part = scan(message)
    assert decode_body(message, part, limit) == decode_body(message, part)[:limit]


@given(_HEADER_VALUES)
def test_header_values(raw: bytes) -> None:
    decode_words(raw).encode()
    value, params = parse_parameters(raw)
    value.encode()
    for name, content in params.items():
        (name + content).encode()
    parse_date(raw)
    depth = 0
    for address in parse_addresses(raw):
        if address.host is None:
            depth += 1 if address.mailbox is not None else -1
            assert (address.name, address.route) == (None, None)
        assert depth in (0, 1)
    assert depth == 0
    for person in mailboxes(raw):
        assert "\n" not in person.name + person.address
        (person.name + person.address).encode()


@given(st.binary(max_size=60), st.text(max_size=12))
def test_charsets(raw: bytes, charset: str) -> None:
    decode_charset(raw, charset).encode()


@given(st.binary(max_size=60))
def test_header_blocks(raw: bytes) -> None:
    headers = parse_headers(raw, 0, len(raw))
    for field in headers.fields:
        assert headers.first(field.name) is not None
        assert headers.text(field.name) is not None


@given(st.binary(max_size=1200))
def test_nstring(raw: bytes) -> None:
    assert read_value(nstring(raw)) == raw.replace(b"\x00", b"")


@given(st.lists(st.sampled_from([*_SECTION_PIECES, b'"'])))
def test_section_specs_are_parsed_or_refused(pieces: list[bytes]) -> None:
    message = b"a: 1\n\nx"
    try:
        section = parse_section(b"".join(pieces))
    except ProtocolError:
        return
    section_bytes(message, scan(message), section)


# A strict reader of IMAP's values, and the grammar of ENVELOPE and BODY (RFC 3501 section 9).

Value = bytes | int | None | list["Value"]
_QUOTED = re.compile(rb'"((?:[\x01-\x09\x0b\x0c\x0e-!#-\[\]-\x7f]|\\["\\])*)"')
_NUMBER = re.compile(rb"0|[1-9][0-9]*")
_LITERAL = re.compile(rb"\{(\d+)\}\r\n")


def read_value(encoded: bytes) -> Value:
    """Read exactly one value; raises AssertionError for anything else."""
    stack: list[list[Value]] = [[]]
    position = 0
    may_start = True
    while position < len(encoded):
        octet = encoded[position : position + 1]
        if octet == b" ":
            assert not may_start, "space out of place"
            assert encoded[position + 1 : position + 2] not in (b" ", b")", b""), "space out of place"
            may_start = True
            position += 1
        elif octet == b")":
            assert len(stack) > 1, "unbalanced"
            assert stack[-1], "empty list"
            stack.pop()
            may_start = False
            position += 1
        elif octet == b"(":
            # Adjacent lists need no space between them: addresses and the parts of a multipart.
            assert may_start or encoded[position - 1 : position] == b")", "list out of place"
            inner: list[Value] = []
            stack[-1].append(inner)
            stack.append(inner)
            may_start = True
            position += 1
        else:
            assert may_start, "value out of place"
            value, position = _read_atom(encoded, position)
            stack[-1].append(value)
            may_start = False
    assert len(stack) == 1, "unbalanced"
    assert len(stack[0]) == 1, "more than one value"
    return stack[0][0]


def _read_atom(encoded: bytes, position: int) -> tuple[Value, int]:
    if encoded.startswith(b"NIL", position):
        return None, position + 3
    match = _QUOTED.match(encoded, position)
    if match is not None:
        return re.sub(rb"\\(.)", rb"\1", match[1]), match.end()
    match = _NUMBER.match(encoded, position)
    if match is not None:
        return int(match[0]), match.end()
    match = _LITERAL.match(encoded, position)
    assert match is not None, f"no value at {encoded[position : position + 20]!r}"
    content = encoded[match.end() : match.end() + int(match[1])]
    assert len(content) == int(match[1])
    assert b"\x00" not in content
    return content, match.end() + int(match[1])


def check_envelope(value: Value) -> None:
    """RFC 3501 section 9: envelope."""
    assert isinstance(value, list)
    assert len(value) == 10
    for index in (0, 1, 8, 9):
        _check_nstring(value[index])
    for addresses in value[2:8]:
        if addresses is None:
            continue
        assert isinstance(addresses, list)
        for address in addresses:
            assert isinstance(address, list)
            assert len(address) == 4
            for item in address:
                _check_nstring(item)


def check_body(value: Value, *, extended: bool) -> None:
    """RFC 3501 section 9: body."""
    assert isinstance(value, list)
    if isinstance(value[0], list):
        count = next(index for index, item in enumerate(value) if not isinstance(item, list))
        for child in value[:count]:
            check_body(child, extended=extended)
        _check_string(value[count])
        rest = value[count + 1 :]
        if not extended:
            assert rest == []
            return
        assert len(rest) == 4
        _check_params(rest[0])
        _check_extension(rest[1:])
        return
    for item in (value[0], value[1], value[5]):
        _check_string(item)
    _check_params(value[2])
    _check_nstring(value[3])
    _check_nstring(value[4])
    assert isinstance(value[6], int)
    rest = value[7:]
    if value[0] == b"message" and value[1] in (b"rfc822", b"global"):
        check_envelope(rest[0])
        check_body(rest[1], extended=extended)
        assert isinstance(rest[2], int)
        rest = rest[3:]
    elif value[0] == b"text":
        assert isinstance(rest[0], int)
        rest = rest[1:]
    if not extended:
        assert rest == []
        return
    assert len(rest) == 4
    _check_nstring(rest[0])
    _check_extension(rest[1:])


def _check_extension(values: list[Value]) -> None:
    disposition, language, location = values
    if disposition is not None:
        assert isinstance(disposition, list)
        assert len(disposition) == 2
        _check_string(disposition[0])
        _check_params(disposition[1])
    if isinstance(language, list):
        for item in language:
            _check_string(item)
    else:
        _check_nstring(language)
    _check_nstring(location)


def _check_params(value: Value) -> None:
    if value is None:
        return
    assert isinstance(value, list)
    assert len(value) % 2 == 0
    for item in value:
        _check_string(item)


def _check_string(value: Value) -> None:
    assert isinstance(value, bytes)


def _check_nstring(value: Value) -> None:
    assert value is None or isinstance(value, bytes)
