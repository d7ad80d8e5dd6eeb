"""The part tree of messages with the defects of real mail."""

from __future__ import annotations

import mmap
import tracemalloc

import pytest

from protocol.mime.parser import Buffer, ParserLimits, Part, scan, walk

Tree = tuple[str, list["Tree"]]


def tree(part: Part) -> Tree:
    return f"{part.type}/{part.subtype}", [tree(child) for child in part.children]


def body(message: Buffer, part: Part) -> bytes:
    return bytes(message[part.body : part.end])


def crlf(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()


TWO_PARTS = crlf(
    "From: a@example.test\n"
    'Content-Type: multipart/mixed; boundary="sep"\n'
    "\n"
    "preamble\n"
    "--sep\n"
    "\n"
    "one\n"
    "--sep\n"
    "Content-Type: text/html; charset=utf-8\n"
    "Content-Transfer-Encoding: Quoted-Printable\n"
    "\n"
    "<p>two</p>\n"
    "\n"
    "--sep--\n"
    "epilogue\n"
)


def test_plain_message() -> None:
    message = b"Subject: x\r\n\r\nhello\r\n"
    part = scan(message)
    assert (part.start, part.body, part.end) == (0, 14, len(message))
    assert (part.type, part.subtype, part.params, part.encoding) == ("text", "plain", {}, "7bit")
    assert (part.number, part.children) == ("", [])


def test_line_end_before_a_delimiter_belongs_to_the_delimiter() -> None:
    root = scan(TWO_PARTS)
    one, two = root.children
    assert body(TWO_PARTS, one) == b"one"
    assert body(TWO_PARTS, two) == b"<p>two</p>\r\n"
    assert TWO_PARTS[two.start : two.body].startswith(b"Content-Type: text/html")
    assert two.encoding == "quoted-printable"
    assert two.params == {"charset": "utf-8"}
    assert [part.number for part in walk(root)] == ["", "1", "2"]
    assert root.end == len(TWO_PARTS)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_gives_the_same_tree(kind: type[bytes] | type[bytearray] | type[memoryview]) -> None:
    expected = [(part.start, part.body, part.end) for part in walk(scan(TWO_PARTS))]
    assert [(part.start, part.body, part.end) for part in walk(scan(kind(TWO_PARTS)))] == expected


def test_bare_line_feeds() -> None:
    message = TWO_PARTS.replace(b"\r\n", b"\n")
    assert [body(message, part) for part in scan(message).children] == [b"one", b"<p>two</p>\n"]


def test_mixed_line_ends() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\r\n--b\r\n\none\n--b\n\r\ntwo\r\n--b--"
    assert [body(message, part) for part in scan(message).children] == [b"one", b"two"]


@pytest.mark.parametrize("message", [b"", b"\n", b"\r\n", b"x", b"Subject: x", b"Subject: x\r\n", b"\r\nbody", b":"])
def test_fragments_of_a_message(message: bytes) -> None:
    part = scan(message)
    assert part.start == 0
    assert 0 <= part.body <= part.end == len(message)


def test_message_without_a_blank_line_is_all_header() -> None:
    part = scan(b"Subject: x\r\nTo: y\r\n")
    assert part.body == part.end == 19
    assert part.headers.first("to") == b"y"


def test_empty_header_block() -> None:
    assert scan(b"\r\nSubject: no header\r\n").headers.first("subject") is None


@pytest.mark.parametrize("line", [b"From joe@example.test Mon Jan  1 10:00:00 2024", b"garbage", b" : x", b"\x00\xff"])
def test_invalid_first_line_is_skipped(line: bytes) -> None:
    part = scan(line + b"\r\nSubject: x\r\n\r\nbody")
    assert part.headers.first("subject") == b"x"
    assert [field.name for field in part.headers.fields] == ["Subject"]


def test_missing_closing_delimiter() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\none\n--b\n\ntwo\n"
    assert [body(message, part) for part in scan(message).children] == [b"one", b"two\n"]


def test_truncated_delimiter_opens_no_part() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\none\n--b"
    assert [body(message, part) for part in scan(message).children] == [b"one"]


def test_part_without_blank_line_ends_at_the_delimiter() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\n--b\nX: 1\n--b\nX: 2\n\n--b--\n"
    one, two = scan(message).children
    assert message[one.start : one.body] == b"X: 1\n"
    assert one.body == one.end
    # The line end before the delimiter is the blank line of the header block.
    assert message[two.start : two.body] == b"X: 2\n\n"
    assert two.body == two.end


def test_adjacent_delimiters_enclose_empty_parts() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\n--b\n--b\n--b--\n"
    assert [(part.body - part.start, part.end - part.body) for part in scan(message).children] == [
        (0, 0),
        (0, 0),
    ]


def test_boundary_that_is_the_start_of_another() -> None:
    message = crlf(
        "Content-Type: multipart/mixed; boundary=b\n\n--b\n"
        "Content-Type: multipart/alternative; boundary=bb\n\n--bb\n\none\n--bb--\n--b\n\ntwo\n--b--\n"
    )
    root = scan(message)
    assert tree(root) == (
        "multipart/mixed",
        [("multipart/alternative", [("text/plain", [])]), ("text/plain", [])],
    )
    assert body(message, root.children[0].children[0]) == b"one"
    assert [part.number for part in walk(root)] == ["", "1", "1.1", "2"]


def test_delimiter_lines_are_exact_but_for_padding() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\n--b \t\r\n\none\n--bx\n --b\n--b -\n---b\n--b-- \ntwo"
    (one,) = scan(message).children
    assert body(message, one) == b"one\n--bx\n --b\n--b -\n---b"


def test_boundary_that_ends_in_dashes() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b--\n\n--b--\n\none\n--b----\n"
    (one,) = scan(message).children
    assert body(message, one) == b"one"


def test_same_boundary_belongs_to_the_innermost() -> None:
    message = (
        b"Content-Type: multipart/mixed; boundary=b\n\n--b\n"
        b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\ninner\n--b--\n--b\n\nouter\n--b--\n"
    )
    root = scan(message)
    assert tree(root) == ("multipart/mixed", [("multipart/mixed", [("text/plain", [])]), ("text/plain", [])])
    assert body(message, root.children[1]) == b"outer"


def test_outer_delimiter_ends_all_open_inner_parts() -> None:
    message = (
        b"Content-Type: multipart/mixed; boundary=a\n\n--a\n"
        b"Content-Type: multipart/mixed; boundary=b\n\n--b\n"
        b"Content-Type: message/rfc822\n\nSubject: x\n\ninner\n--a\n\nouter\n--a--\n"
    )
    root = scan(message)
    inner = root.children[0].children[0].children[0]
    assert body(message, inner) == b"inner"
    assert root.children[0].end == inner.end
    assert body(message, root.children[1]) == b"outer"


def test_epilogue_is_not_a_part() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\none\n--b--\n--b\n\nnot a part\n"
    assert len(scan(message).children) == 1


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/mixed",
        b"multipart/mixed; boundary=",
        b'multipart/mixed; boundary=""',
        b"multipart/mixed; boundary=zz",
    ],
)
def test_multipart_without_usable_boundary_is_a_leaf(content_type: bytes) -> None:
    part = scan(b"Content-Type: " + content_type + b"\n\n--\n\ntext\n----\n--b\n")
    assert (part.type, part.children) == ("multipart", [])


@pytest.mark.parametrize("boundary", ["grün".encode(), b"gr\xfcn", b"=_(x)+ ?:/'.,"])
def test_odd_boundaries(boundary: bytes) -> None:
    message = b'Content-Type: multipart/mixed; boundary="%b"\n\n--%b\n\none\n--%b--\n' % ((boundary,) * 3)
    assert [body(message, part) for part in scan(message).children] == [b"one"]


def test_folded_boundary_parameter() -> None:
    message = crlf("Content-Type: multipart/mixed;\n\tboundary*0=ab;\n\tboundary*1=cd\n\n--abcd\n\none\n--abcd--")
    assert [body(message, part) for part in scan(message).children] == [b"one"]


@pytest.mark.parametrize("content_type", [b"", b"text", b"text/", b"/html", b"a/b/c", b";;", b"(comment)"])
def test_invalid_content_type_is_text_plain(content_type: bytes) -> None:
    part = scan(b"Content-Type: " + content_type + b"\r\n\r\nx")
    assert (part.type, part.subtype) == ("text", "plain")


@pytest.mark.parametrize(
    ("field", "encoding"),
    [
        (b"BASE64", "base64"),
        (b'"base64"', "base64"),
        (b"8bit (raw)", "8bit"),
        (b"base64;", "base64"),
        (b"", "7bit"),
    ],
)
def test_transfer_encoding(field: bytes, encoding: str) -> None:
    assert scan(b"Content-Transfer-Encoding: " + field + b"\n\n").encoding == encoding


def test_digest_children_are_messages() -> None:
    message = (
        b"Content-Type: multipart/digest; boundary=b\n\n--b\n\nSubject: one\n\ntext\n"
        b"--b\nContent-Type: text/plain\n\nplain\n--b--\n"
    )
    root = scan(message)
    assert tree(root) == ("multipart/digest", [("message/rfc822", [("text/plain", [])]), ("text/plain", [])])
    assert root.children[0].children[0].headers.first("subject") == b"one"


def test_numbers_of_messages_in_messages() -> None:
    message = (
        b"Content-Type: multipart/mixed; boundary=a\n\n"
        b"--a\n\ntext\n"
        b"--a\nContent-Type: message/rfc822\n\nSubject: leaf\n\ninner\n"
        b"--a\nContent-Type: message/rfc822\n\nContent-Type: multipart/mixed; boundary=b\n\n"
        b"--b\n\none\n--b\n\ntwo\n--b--\n"
        b"--a--\n"
    )
    assert [part.number for part in walk(scan(message))] == ["", "1", "2", "2.1", "3", "3", "3.1", "3.2"]


def test_root_that_is_a_message() -> None:
    message = b"Content-Type: message/rfc822\n\nSubject: inner\n\ntext"
    root = scan(message)
    assert [part.number for part in walk(root)] == ["", "1.1"]
    assert body(message, root.children[0]) == b"text"


@pytest.mark.parametrize("message", [b"Content-Type: message/rfc822", b"Content-Type: message/rfc822\n\n"])
def test_message_part_always_has_its_message(message: bytes) -> None:
    (inner,) = scan(message).children
    assert inner.start == inner.body == inner.end == len(message)


def test_encoded_message_is_a_leaf() -> None:
    part = scan(b"Content-Type: message/global\nContent-Transfer-Encoding: base64\n\nU3ViamVjdDogeAoKeA==\n")
    assert part.is_message
    assert part.children == []


def test_depth_limit() -> None:
    message = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(50))
    assert max(part.number.count(".") for part in walk(scan(message, ParserLimits(depth=5)))) == 4
    nested = b"Content-Type: message/rfc822\n\n" * 50
    assert len(list(walk(scan(nested, ParserLimits(depth=5))))) == 6


def test_parts_limit_makes_the_rest_epilogue() -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\nx\n" * 50
    root = scan(message, ParserLimits(parts=10))
    assert len(root.children) == 9
    assert body(message, root.children[-1]) == b"x"
    assert root.end == len(message)


def test_header_limit_keeps_whole_lines_and_the_true_body() -> None:
    message = b"A: 1\r\n" + b"Long: " + b"x" * 500 + b"\r\nB: 2\r\n\r\nbody"
    part = scan(message, ParserLimits(header_bytes=100))
    assert [field.name for field in part.headers.fields] == ["A"]
    assert body(message, part) == b"body"


def test_a_large_map_is_not_copied() -> None:
    size = 8 << 20
    head = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n"
    with mmap.mmap(-1, size) as buffer:
        buffer[: len(head)] = head
        buffer[-7:] = b"\n--b--\n"
        tracemalloc.start()
        root = scan(buffer)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [(part.body, part.end) for part in root.children] == [(len(head), size - 7)]
        assert peak < size // 8
