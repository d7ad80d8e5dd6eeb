"""Encoding of strings: quoted, literal or atom as the content allows, and mailbox names by dialect."""

from __future__ import annotations

import re
from functools import lru_cache

from protocol.imap.wire import utf7
from protocol.imap.wire.lexer import Dialect

# Longer strings could be quoted, too, but some clients limit the length of a line.
_is_plain = re.compile(rb"[\x01-\x09\x0b\x0c\x0e-!#-\[\]-\x7f]{0,1000}").fullmatch
_is_quotable = re.compile(rb"[\x01-\x09\x0b\x0c\x0e-\x7f]{0,1000}").fullmatch
# RFC 9051 9 and RFC 6855 3: quoted strings may contain UTF-8.
_is_quotable_utf8 = re.compile(rb"[^\x00\r\n]{0,1000}+").fullmatch
_SPECIAL = re.compile(rb'(["\\])')
# RFC 3501 9, ASTRING-CHAR: no atom-specials. "&" begins modified UTF-7, which is fine in an atom.
_is_atom = re.compile(rb"[!#$&'+,\-./0-9:;<=>?@A-Z\[\]^_`a-z|}~]++").fullmatch
# resp-text is printable ASCII on one line, so that text from other sources cannot forge a response.
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")


def quoted(value: bytes) -> bytes:
    """Quote octets that are valid in a quoted string."""
    return b'"' + _SPECIAL.sub(rb"\\\1", value) + b'"'


# RFC 3501 4.3
def string(value: bytes, utf8: bool = False) -> bytes:
    """Encode as a quoted string if the octets allow it, else as a literal without NUL. ``utf8``: quote UTF-8, too."""
    if _is_plain(value):
        return b'"%b"' % value
    if _is_quotable(value) or (utf8 and _is_quotable_utf8(value)):
        return b'"%b"' % value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    if b"\x00" in value:
        return string(value.replace(b"\x00", b""))
    return b"{%d}\r\n%b" % (len(value), value)


# RFC 3501 9, nstring
def nstring(value: bytes | None) -> bytes:
    """Encode as NIL, a quoted string, or a literal."""
    return b"NIL" if value is None else string(value)


# RFC 3501 9, astring
def astring(value: bytes, utf8: bool = False) -> bytes:
    return value if _is_atom(value) and value.upper() != b"NIL" else string(value, utf8)


# RFC 3501 5.1 and 5.1.3; RFC 9051 5.1; RFC 6855 3
def mailbox(name: str, dialect: Dialect) -> bytes:
    """Encode a mailbox name in the session's dialect."""
    if dialect.utf8:
        return astring(name.encode("utf-8", "replace"), utf8=True)
    return astring(utf7.encode(name))


# RFC 3501 9, resp-text
@lru_cache(256)
def text(line: str) -> bytes:
    """Encode the human-readable text of a response: one line of ASCII, not empty, not like a response code."""
    clean = _UNPRINTABLE.sub("?", line) or "-"
    return (" " + clean if clean[0] == "[" else clean).encode("ascii")
