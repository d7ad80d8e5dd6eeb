"""Messages built from random part trees: the parser returns every part at its offsets."""

from __future__ import annotations

import email
import email.message
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from protocol.mime.parser import Part, scan
from protocol.mime.sections import Section, partial, section_bytes, section_ranges

# Lines that resemble delimiters: real boundaries are "b" with a number.
_BODY_LINE = st.one_of(
    st.sampled_from(
        [b"", b"--", b"-- ", b"--b", b"--b--", b"--bx", b"---b0", b" --b0", b"--b0x", b"Content-Type: x/y"]
    ),
    st.binary(max_size=12).map(lambda raw: raw.translate(None, b"\r\n")).filter(lambda raw: not raw.startswith(b"--b")),
)
_LEAF_TYPES = ("text/plain", "text/html", "image/png", "application/octet-stream", "message/delivery-status")


@dataclass
class Node:
    """A part to build; its offsets are recorded while it is written."""

    type: str
    fields: list[bytes]
    lines: list[bytes] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    epilogue: list[bytes] = field(default_factory=list)
    start: int = -1
    body: int = -1
    end: int = -1

    def write(self, out: bytearray, newline: bytes, boundaries: list[int]) -> None:
        self.start = len(out)
        boundary = b""
        for line in self.fields:
            out += line.replace(b"\n", newline) + newline
        if self.type.startswith("multipart/"):
            boundary = b"b%d" % len(boundaries)
            boundaries.append(0)
            out += b"Content-Type: %b;%b boundary=%b" % (self.type.encode(), newline, boundary) + newline
        elif self.type != "text/plain":
            out += b"Content-Type: " + self.type.encode() + newline
        out += newline
        self.body = len(out)
        if boundary:
            for line in self.lines:
                out += line + newline
            for child in self.children:
                out += b"--" + boundary + newline
                child.write(out, newline, boundaries)
                out += newline
            out += b"--" + boundary + b"--" + newline
            out += newline.join(self.epilogue)
        elif self.children:
            self.children[0].write(out, newline, boundaries)
        else:
            out += newline.join(self.lines)
        self.end = len(out)


_FIELDS = st.lists(st.sampled_from([b"X-A: 1", b"X-B: folded\n\tvalue", b"Subject: x", b"From: a@b"]), max_size=3)


def _leaves() -> st.SearchStrategy[Node]:
    return st.builds(Node, st.sampled_from(_LEAF_TYPES), _FIELDS, st.lists(_BODY_LINE, max_size=6))


def _branches(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    multiparts = st.builds(
        Node,
        st.sampled_from(["multipart/mixed", "multipart/alternative"]),
        _FIELDS,
        st.lists(_BODY_LINE, max_size=2),
        st.lists(children, min_size=1, max_size=4),
        st.lists(_BODY_LINE, max_size=2),
    )
    messages = st.builds(
        Node, st.just("message/rfc822"), _FIELDS, st.just([]), st.lists(children, min_size=1, max_size=1)
    )
    return st.one_of(multiparts, messages)


_TREES = st.recursive(_leaves(), _branches, max_leaves=12)
_NEWLINES = st.sampled_from([b"\r\n", b"\n"])


def _write(node: Node, newline: bytes) -> bytes:
    out = bytearray()
    node.write(out, newline, [])
    return bytes(out)


def _compare(node: Node, part: Part) -> None:
    assert (part.start, part.body, part.end) == (node.start, node.body, node.end)
    assert f"{part.type}/{part.subtype}" == node.type
    assert len(part.children) == len(node.children)
    for child_node, child in zip(node.children, part.children, strict=True):
        _compare(child_node, child)


@given(_TREES, _NEWLINES)
def test_every_part_has_its_offsets(node: Node, newline: bytes) -> None:
    _compare(node, scan(_write(node, newline)))


def _sections_of_message(node: Node, path: tuple[int, ...]) -> Iterator[tuple[Section, int, int]]:
    """RFC 3501 section 6.4.5, from the tree that was written: every section and its expected range."""
    yield Section(path, "HEADER"), node.start, node.body
    yield Section(path, "TEXT"), node.body, node.end
    if node.type.startswith("multipart/"):
        for number, child in enumerate(node.children, 1):
            yield from _sections_of_part(child, (*path, number))
    else:
        yield from _sections_of_part(node, (*path, 1))


def _sections_of_part(node: Node, path: tuple[int, ...]) -> Iterator[tuple[Section, int, int]]:
    yield Section(path), node.body, node.end
    yield Section(path, "MIME"), node.start, node.body
    if node.type == "message/rfc822":
        yield from _sections_of_message(node.children[0], path)
    elif node.type.startswith("multipart/"):
        for number, child in enumerate(node.children, 1):
            yield from _sections_of_part(child, (*path, number))


@given(_TREES, _NEWLINES)
def test_sections_are_the_ranges_of_the_parts(node: Node, newline: bytes) -> None:
    message = _write(node, newline)
    root = scan(message)
    assert section_bytes(message, root, Section()) == message
    for section, start, end in _sections_of_message(node, ()):
        assert section_bytes(message, root, section) == message[start:end]
        ranges = section_ranges(message, root, section)
        assert ranges is not None
        cut = partial(ranges, 2, 7)
        assert b"".join(message[first:last] for first, last in cut) == message[start:end][2:9]


@given(_TREES, _NEWLINES, st.sets(st.sampled_from(["x-a", "X-B", "subject", "none"]), min_size=1))
def test_header_fields_and_the_others_make_up_the_header(node: Node, newline: bytes, names: set[str]) -> None:
    message = _write(node, newline)
    root = scan(message)
    selected = section_ranges(message, root, Section((), "HEADER.FIELDS", tuple(names)))
    others = section_ranges(message, root, Section((), "HEADER.FIELDS.NOT", tuple(names)))
    assert selected is not None
    assert others is not None
    covered = sorted([*selected, *others])
    assert covered[0][0] == 0
    assert max(end for _, end in covered) == root.body
    # Only the blank line is in both.
    assert sum(end - start for start, end in covered) == root.body + len(newline)


def _compare_with_email(message: bytes, part: Part, other: email.message.Message) -> None:
    assert f"{part.type}/{part.subtype}" == other.get_content_type()
    assert [field.name for field in part.headers.fields] == other.keys()
    for name in other:
        value = other[name].replace("\r\n", "").replace("\n", "").strip()
        assert part.headers.first(name) in [value.encode(), *part.headers.all(name)[1:]]
    if part.type == "message" and part.subtype == "delivery-status":
        return  # the email package splits these into blocks
    payload = other.get_payload()
    if isinstance(payload, list):
        assert len(payload) == len(part.children)
        for child, below in zip(part.children, payload, strict=True):
            assert isinstance(below, email.message.Message)
            _compare_with_email(message, child, below)
    else:
        assert other.get_payload(decode=True) == message[part.body : part.end]


@given(_TREES, _NEWLINES)
def test_the_email_package_reads_the_same(node: Node, newline: bytes) -> None:
    message = _write(node, newline)
    _compare_with_email(message, scan(message), email.message_from_bytes(message))
