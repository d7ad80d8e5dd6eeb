"""Parser of FETCH (RFC 3501 6.4.5) with BINARY, CONDSTORE, QRESYNC, OBJECTID, SAVEDATE, PREVIEW and PARTIAL.

Clients repeat a few lists of items, so the parsed text after the sequence set is cached, for a bounded number of short
texts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from protocol.errors import ProtocolError
from protocol.imap.commands.fetch_items import Attribute, BinaryPart, BinarySize, BodyPart, FetchItem, Preview
from protocol.imap.commands.model import Fetch, Partial
from protocol.imap.wire.lexer import CommandError, Lexer
from protocol.mime.sections import Section, parse_section

_NAME = re.compile(rb"[A-Za-z0-9.]+")
_PATH_AND_TEXT = re.compile(rb"[A-Za-z0-9.]*")
_FIELD_NAME = re.compile(rb"[\x21-\x39\x3b-\x7e]+")
_BARE_FIELD_NAME = re.compile(rb'[^\x00-\x20\x7f-\xff(){%*"\\]+')
_TO_ESCAPE = re.compile(rb'(["\\])')
_LAZY = re.compile(rb" +\( *LAZY *\)", re.IGNORECASE)

_FAST: Final = (Attribute.FLAGS, Attribute.INTERNALDATE, Attribute.RFC822_SIZE)
#: RFC 3501 6.4.5
_MACROS: Final[dict[str, tuple[FetchItem, ...]]] = {
    "ALL": (*_FAST, Attribute.ENVELOPE),
    "FAST": _FAST,
    "FULL": (*_FAST, Attribute.ENVELOPE, Attribute.BODY),
}
#: RFC 3501 6.4.5: the older names of three sections
_RFC822: Final = {
    "RFC822": BodyPart(b"RFC822", Section(), None, peek=False),
    "RFC822.HEADER": BodyPart(b"RFC822.HEADER", Section((), "HEADER"), None, peek=True),
    "RFC822.TEXT": BodyPart(b"RFC822.TEXT", Section((), "TEXT"), None, peek=False),
}
_ATTRIBUTES: Final = {attribute.value: attribute for attribute in Attribute}
#: The longest text that is cached.
_MAX_CACHED_BYTES: Final = 512
_TO_THE_END: Final = (1 << 63) - 1


class _Request(NamedTuple):
    """The arguments of a FETCH after its sequence set."""

    items: tuple[FetchItem, ...]
    changed_since: int | None
    vanished: bool
    partial: Partial | None


# RFC 3501 6.4.5 fetch = "FETCH" SP sequence-set SP ("ALL" / "FULL" / "FAST" / fetch-att / "(" … ")"); RFC 4466 2.4
def parse_fetch(lexer: Lexer, *, uid: bool) -> Fetch:
    messages = lexer.sequence_set(spaced=True)
    rest = lexer.take_plain_rest(_MAX_CACHED_BYTES)
    request = _request(lexer, uid) if rest is None else _cached_request(rest, uid)
    if request.vanished and not lexer.dialect.qresync:
        raise CommandError("QRESYNC is not enabled")
    return Fetch(uid, messages, *request)


@lru_cache(maxsize=256)
def _cached_request(text: bytes, uid: bool) -> _Request:
    lexer = Lexer((text,))
    request = _request(lexer, uid)
    lexer.end()
    return request


def _request(lexer: Lexer, uid: bool) -> _Request:
    items: list[FetchItem] = []
    if lexer.next_is(b"("):
        for expanded in lexer.parenthesised(lambda: _item(lexer)):
            items += expanded
    else:
        items += _item(lexer)
    changed_since, vanished, partial = _modifiers(lexer, uid)
    if uid and Attribute.UID not in items:
        items.insert(0, Attribute.UID)  # RFC 3501 6.4.8
    if changed_since is not None:
        items.append(Attribute.MODSEQ)  # RFC 7162 3.1.4.1
    return _Request(tuple(dict.fromkeys(items)), changed_since, vanished, partial)


# RFC 7162 7 fetch-modifier = "CHANGEDSINCE" SP n, "VANISHED"; RFC 9394 3.3 "PARTIAL" SP partial-range
def _modifiers(lexer: Lexer, uid: bool) -> tuple[int | None, bool, Partial | None]:
    changed_since: int | None = None
    vanished = False
    partial: Partial | None = None

    def modifier() -> None:
        nonlocal changed_since, vanished, partial
        name = lexer.keyword("a FETCH modifier")
        if name == "CHANGEDSINCE":
            lexer.space()
            changed_since = lexer.modseq()
        elif name == "VANISHED":
            vanished = True
        elif name == "PARTIAL":
            lexer.space()
            partial = Partial(*lexer.partial_range())
        else:
            raise CommandError("Unknown FETCH modifier")

    if not lexer.at_end:
        lexer.space()
        lexer.parenthesised(modifier)
    if vanished and (changed_since is None or not uid):
        raise CommandError("VANISHED needs UID FETCH and CHANGEDSINCE")
    return changed_since, vanished, partial


# RFC 3501 9 fetch-att
def _item(lexer: Lexer) -> tuple[FetchItem, ...]:
    name = lexer.match(_NAME, "a FETCH item")[0].upper().decode("ascii")
    if lexer.skip(b"["):
        return (_part(lexer, name),)
    attribute = _ATTRIBUTES.get(name) or _RFC822.get(name)
    if attribute is not None:
        return (attribute,)
    # RFC 8970 6 fetch-att =/ "PREVIEW" [SP "(" preview-mod *(SP preview-mod) ")"]
    if name == "PREVIEW":
        return (Preview(lazy=lexer.skip_match(_LAZY)),)
    macro = _MACROS.get(name)
    if macro is None:
        raise CommandError("Unknown FETCH item")
    return macro


# RFC 3501 9 "BODY" ["PEEK"] section ["<" number "." nz-number ">"]; RFC 3516 7 BINARY
def _part(lexer: Lexer, name: str) -> FetchItem:
    if name in ("BODY", "BODY.PEEK"):
        section = _section(lexer)
        label = b"BODY[" + _spell(section) + b"]"
        partial, origin = _partial(lexer)
        return BodyPart(label + origin, section, partial, peek=name == "BODY.PEEK")
    if name not in ("BINARY", "BINARY.PEEK", "BINARY.SIZE"):
        raise CommandError("Unknown FETCH item")
    section = _section(lexer)
    special = section if section.what else None
    if name == "BINARY.SIZE":
        return BinarySize(b"BINARY.SIZE[" + _spell(section) + b"]", section.path, special)
    partial, origin = _partial(lexer)
    label = b"BINARY[" + _spell(section) + b"]" + origin
    return BinaryPart(label, section.path, partial, name == "BINARY.PEEK", special)


# RFC 3501 9 section, header-list
def _section(lexer: Lexer) -> Section:
    spec = lexer.match(_PATH_AND_TEXT, "a section")[0]
    if lexer.next_is(b" "):
        lexer.space()
        names = lexer.parenthesised(lambda: _field_name(lexer))
        spec += b" (" + b" ".join(names) + b")"
    lexer.expect(b"]")
    try:
        return parse_section(spec)
    except ProtocolError:
        raise CommandError("Invalid section") from None


# RFC 3501 9 header-fld-name = astring; RFC 5322 3.6.8 ftext
def _field_name(lexer: Lexer) -> bytes:
    name = lexer.astring("a header field name")
    if not _FIELD_NAME.fullmatch(name):
        raise CommandError("Invalid header field name")
    return _spell_field_name(name)


def _spell_field_name(name: bytes) -> bytes:
    if _BARE_FIELD_NAME.fullmatch(name):
        return name
    return b'"' + _TO_ESCAPE.sub(rb"\\\1", name) + b'"'


def _spell(section: Section) -> bytes:
    words = [b"%d" % number for number in section.path]
    if section.what:
        words.append(section.what.encode("ascii"))
    spec = b".".join(words)
    if section.fields:
        spec += b" (" + b" ".join([_spell_field_name(name.encode("latin-1")) for name in section.fields]) + b")"
    return spec


# RFC 3501 6.4.5 <partial>; RFC 9051 9 number64
def _partial(lexer: Lexer) -> tuple[tuple[int, int] | None, bytes]:
    """Parse first octet and length; also returns the first octet as it is in the response."""
    if not lexer.skip(b"<"):
        return None, b""
    first = lexer.number64()
    # Some clients omit the length, against the grammar: they get the rest of the section.
    length = lexer.number64() if lexer.skip(b".") else _TO_THE_END
    lexer.expect(b">")
    return (first, length), b"<%d>" % first
