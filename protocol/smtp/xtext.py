"""xtext (RFC 3461 section 4): printable ASCII where ``+``, ``=`` and all else is written ``+HH``."""

from __future__ import annotations

import re

_XTEXT = re.compile(rb"(?:[!-*,-<>-~]|\+[0-9A-F]{2})*")
_HEX = re.compile(rb"\+([0-9A-Fa-f]{2})")


def decode(raw: bytes) -> bytes | None:
    """The octets meant, or None if ``raw`` is not xtext. The result can hold any octet: check before use."""
    # Lower-case hex is outside the grammar but unambiguous, and some clients send it.
    if not _XTEXT.fullmatch(_HEX.sub(lambda m: b"+" + m[1].upper(), raw)):
        return None
    return _HEX.sub(lambda m: bytes((int(m[1], 16),)), raw)


def encode(data: bytes) -> str:
    """``data`` as one word that needs no other quoting."""
    return "".join(chr(c) if 33 <= c <= 126 and c not in b"+=" else f"+{c:02X}" for c in data)
