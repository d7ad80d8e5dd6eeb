"""Address lists (RFC 5322 section 3.4 with its obsolete forms), raw for ENVELOPE and decoded for people.

Tolerant and linear: every octet is read a bounded number of times and nothing raises. In broken syntax, each readable
address is kept and the rest is dropped. The number of addresses is limited, because a header of commas and colons would
become an ENVELOPE of many times its size.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from protocol.mime.charsets import decode_octets
from protocol.mime.encoding import decode_words, to_one_line


class Address(NamedTuple):
    """RFC 3501 section 7.4.2, raw; a group is ``(None, None, name, None)`` … ``(None, None, None, None)``.

    A missing part of a mailbox is empty, not None: None means a group.
    """

    name: bytes | None
    route: bytes | None
    mailbox: bytes | None
    host: bytes | None


class Mailbox(NamedTuple):
    """A mailbox for people: decoded name (may be empty) and address."""

    name: str
    address: str


_GROUP_END = Address(None, None, None, None)
MAX_ADDRESSES = 10_000

# The common forms, up to the next comma: [phrase | "quoted"] <local@domain>  or  local@domain
_ATOM = rb"[^\x00-\x20\"(),:;<>@\[\\\]]"
_SIMPLE = re.compile(
    rb"[\s,]*+(?:(?>(?:\"([^\"\\\r\n]*+)\"|(" + _ATOM + rb"++(?>(?:[ \t]++" + _ATOM + rb"++)*)))?)[ \t]*+"
    rb"<(" + _ATOM + rb"++)@(" + _ATOM + rb"++)>|(" + _ATOM + rb"++)@(" + _ATOM + rb"++))\s*+(?:,|\Z)"
)
# An encoded word is one atom even with characters that it must not contain (RFC 2047 section 5 (3)): many do.
_TOKEN = re.compile(
    rb"\s++|\"(?>(?:[^\"\\]++|\\.)*)\"?+|=\?[^?\s]++\?[bBqQ]\?[^?\s]*+\?=|\[[^\[\]]*+\]?+|"
    rb"[^\s\"(),:;<>@\[]++|.",
    re.DOTALL,
)
_CLOSED_QUOTES = re.compile(rb"(?>(?:[^\"\\]++|\\.|\\\Z|\"(?>(?:[^\"\\]++|\\.)*)\")*)", re.DOTALL)
_PARENTHESIS = re.compile(rb"[()]|\\.", re.DOTALL)
_ANGLE = re.compile(
    rb"<[<\s]*+(?>(?:(@[^:<>\"]*+):)?)((?>(?:\"(?>(?:[^\"\\]++|\\.)*)\"?+|\([^()]*+\)|[^<>\",])*))>?+", re.DOTALL
)
_SEPARATORS = re.compile(rb"[\s,]*+")
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_COMMENT = re.compile(rb"\([^()]*+\)")
_SPACES = re.compile(rb"\s++")
_PLAIN_LOCAL = re.compile(r"[^\s\"(),:;<>@\[\\\]]+\Z")


def parse_addresses(raw: bytes) -> list[Address]:
    """The mailboxes and groups of an address list, up to :data:`MAX_ADDRESSES`."""
    addresses: list[Address] = []
    position, size = 0, len(raw)
    in_group = False
    quotes_close = False
    while position < size and len(addresses) < MAX_ADDRESSES:
        match = _SIMPLE.match(raw, position)
        if match is not None:
            quoted, phrase, local, domain, bare_local, bare_domain = match.groups()
            if bare_local is None:
                addresses.append(Address(phrase if quoted is None else quoted, None, local, domain))
            else:
                addresses.append(Address(None, None, bare_local, bare_domain))
            position = match.end()
            continue
        position = _SEPARATORS.match(raw, position).end()  # type: ignore[union-attr]
        if not quotes_close:
            raw = _blank_open_quote(raw, position)
            quotes_close = True
        position, in_group = _parse_one(raw, position, in_group, addresses)
    if in_group:
        addresses.append(_GROUP_END)
    return addresses


def _blank_open_quote(raw: bytes, position: int) -> bytes:
    """Blank an unclosed quote and all quotes after it, so that it does not swallow the rest."""
    match = _CLOSED_QUOTES.match(raw, position)
    if match is None or match.end() == len(raw):
        return raw
    return raw[: match.end()] + raw[match.end() :].replace(b'"', b" ")


def _parse_one(raw: bytes, position: int, in_group: bool, addresses: list[Address]) -> tuple[int, bool]:
    """Parse one element of the list, up to its comma; return the next position."""
    words: list[bytes] = []  # a space between two of them is b" "
    at: int | None = None  # index in ``words`` of what follows the "@"
    comment: bytes | None = None
    angle: Address | None = None
    size = len(raw)
    while position < size:
        match = _TOKEN.match(raw, position)
        assert match is not None  # noqa: S101 - the last alternative matches any octet
        token = match[0]
        first = token[:1]
        if first == b"(":
            position, comment = _read_comment(raw, position)
            if words and words[-1] != b" ":
                words.append(b" ")
            continue
        if first == b"<":
            angle_match = _ANGLE.match(raw, position)
            assert angle_match is not None  # noqa: S101 - the token starts with "<"
            position = angle_match.end()
            if angle is None:
                angle = _addr_spec(_phrase(words), angle_match[1], angle_match[2])
            continue
        position = match.end()
        if first == b",":
            break
        if first == b";":
            if in_group:
                _finish(words, at, comment, angle, addresses)
                addresses.append(_GROUP_END)
                return position, False
            break
        if angle is not None:
            continue
        if first == b":":
            if not in_group and at is None:
                addresses.append(Address(None, None, _phrase(words) or b"", None))
                return position, True
        elif first == b"@":
            if at is None:
                at = len(words)
            else:
                words.append(token)
        elif token.isspace():
            if words and words[-1] != b" ":
                words.append(b" ")
        else:
            words.append(token)
    _finish(words, at, comment, angle, addresses)
    return position, in_group


def _finish(
    words: list[bytes], at: int | None, comment: bytes | None, angle: Address | None, addresses: list[Address]
) -> None:
    """Build the address of one element."""
    if angle is not None:
        addresses.append(angle if angle.name is not None or comment is None else angle._replace(name=comment))
        return
    if at is not None:
        start = _dotted_run(words, at - 1, -1) + 1
        end = _dotted_run(words, at, 1)
        local = b"".join(_unquote(word) for word in words[start:at] if word != b" ")
        domain = b"".join(word for word in words[at:end] if word != b" ")
        # As in angle brackets, the last "@" counts.
        more, _, host = domain.rpartition(b"@")
        if more:
            local += b"@" + more
        addresses.append(Address(_phrase(words[:start]) or comment, None, local, host))
        return
    phrase = _phrase(words)
    if phrase is None:
        return
    if b" " in phrase:
        addresses.append(Address(phrase, None, b"", b""))
    else:
        addresses.append(Address(comment, None, phrase, b""))


def _dotted_run(words: list[bytes], index: int, step: int) -> int:
    """The end of a local part or domain next to an "@": a space without an adjacent dot."""
    stop = len(words) if step > 0 else -1
    if index != stop and words[index] == b" ":
        index += step
    while index != stop:
        if words[index] == b" " and not (
            words[index - 1].endswith(b".") or b"".join(words[index + 1 : index + 2]).startswith(b".")
        ):
            break
        index += step
    return index


def _phrase(words: list[bytes]) -> bytes | None:
    return b"".join(map(_unquote, words)).strip() or None


def _unquote(word: bytes) -> bytes:
    if word[:1] != b'"':
        return word
    word = word[1:-1] if len(word) > 1 and word.endswith(b'"') else word[1:]
    return _ESCAPE.sub(rb"\1", word) if b"\\" in word else word


def _read_comment(raw: bytes, position: int) -> tuple[int, bytes]:
    """RFC 5322 section 3.2.2: comments nest. An unclosed one extends to the end of the field."""
    depth = 0
    for match in _PARENTHESIS.finditer(raw, position):
        if match[0] == b"(":
            depth += 1
        elif match[0] == b")":
            depth -= 1
            if depth == 0:
                return match.end(), _comment_text(raw[position + 1 : match.start()])
    return len(raw), _comment_text(raw[position + 1 :])


def _comment_text(raw: bytes) -> bytes:
    return _SPACES.sub(b" ", _ESCAPE.sub(rb"\1", raw)).strip()


def _addr_spec(name: bytes | None, route: bytes | None, spec: bytes) -> Address:
    """The address in angle brackets; RFC 5322 section 4.4 for the route."""
    if b"(" in spec and b'"' not in spec:
        spec = _COMMENT.sub(b"", spec)
    local, at, domain = spec.rpartition(b"@")
    if not at:
        local, domain = spec, b""
    local = _unquote(local.strip())
    if route is not None:
        route = _SPACES.sub(b"", route)
    return Address(name, route, _SPACES.sub(b" ", local), _SPACES.sub(b"", domain))


def mailboxes(raw: bytes) -> list[Mailbox]:
    """The mailboxes of an address list as text, groups flattened."""
    result = []
    for name, _, local, host in parse_addresses(raw):
        if local is None or host is None:
            continue
        display_name = "" if name is None else decode_words(name)
        address = to_one_line(decode_octets(local))
        if host:
            if not _PLAIN_LOCAL.match(address):
                address = '"' + address.replace("\\", "\\\\").replace('"', '\\"') + '"'
            address += "@" + to_one_line(decode_octets(host))
        if display_name or address:
            result.append(Mailbox(display_name, address))
    return result
