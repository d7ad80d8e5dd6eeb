"""Modified UTF-7, the encoding of mailbox names before UTF8=ACCEPT or IMAP4rev2 is enabled (RFC 3501 5.1.3).

Invariant: every name has exactly one encoding. ``decode`` accepts only what ``encode`` returns, so two encodings never
name one mailbox, and no printable character is hidden in a base64 run.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error

from protocol.errors import ProtocolError

_ENCODE = re.compile("&|[^\x20-\x7e]+")
_SHIFTED = re.compile("&([A-Za-z0-9+,]*)-")


def encode(name: str) -> bytes:
    """Encode a mailbox name. Raises ValueError if it contains a lone surrogate."""
    if name.isascii() and name.isprintable() and "&" not in name:
        return name.encode("ascii")
    return _ENCODE.sub(_shift, name).encode("ascii")


def decode(encoded: bytes) -> str:
    """Decode a mailbox name. Raises ProtocolError if :func:`encode` would encode the name differently."""
    if not encoded.isascii():
        raise ProtocolError("Mailbox name is not modified UTF-7")
    text = encoded.decode("ascii")
    if "&" not in text and text.isprintable():
        return text
    try:
        name = _SHIFTED.sub(_unshift, text)
        if encode(name) == encoded:
            return name
    except ValueError:
        pass
    raise ProtocolError("Mailbox name is not modified UTF-7")


def _shift(run: re.Match[str]) -> str:
    if run[0] == "&":
        return "&-"
    octets = b64encode(run[0].encode("utf-16-be"), b"+,")
    return f"&{octets.rstrip(b'=').decode('ascii')}-"


def _unshift(run: re.Match[str]) -> str:
    if not run[1]:
        return "&"
    try:
        octets = b64decode(run[1] + "=" * (-len(run[1]) % 4), "+,", validate=True)
    except Base64Error as error:
        raise ValueError("bad base64") from error
    return octets.decode("utf-16-be")
