"""Password schemes of Dovecot: ``{SCHEME}data`` or ``{SCHEME.encoding}data``.

Invariants: secrets are compared in constant time; a scheme that is not known, or data that cannot be read, is an error
and never a match. The password is taken as it was given: Dovecot does not prepare it either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from adapter.accounts import system_crypt

_PREFIX = re.compile(r"\{([A-Za-z0-9-]+)(?:\.([A-Za-z0-9]+))?\}")
_HEX, _BASE64 = ("HEX",), ("B64", "BASE64")
_MOST_ROUNDS = 10_000_000
_ARGON2 = PasswordHasher()

_Check = Callable[[str, str, bytes], bool]  # data, encoding (upper case or empty), password


class SchemeError(Exception):
    """A stored password that cannot be checked; the text says why and contains nothing of it."""


def verify(stored: str, password: str, default: str) -> bool:
    """Whether this is the password. Takes its time: never on an event loop. Raises SchemeError."""
    match = _PREFIX.match(stored)
    scheme, encoding = (match[1].upper(), (match[2] or "").upper()) if match else (default.upper(), "")
    check = _SCHEMES.get(scheme)
    if check is None:
        raise SchemeError(f"the scheme {scheme} is not supported")
    if encoding not in ("", *_HEX, *_BASE64):
        raise SchemeError(f"the encoding {encoding} is not known")
    try:
        return check(stored[match.end() :] if match else stored, encoding, password.encode("utf-8", "surrogatepass"))
    except (ValueError, binascii.Error):
        raise SchemeError(f"what is stored is not of the scheme {scheme}") from None


def is_supported(scheme: str) -> bool:
    return scheme.upper() in _SCHEMES


def _decode(data: str, encoding: str, size: int = 0) -> bytes:
    """``size``: where no encoding is named, so many octets may also be written in hexadecimal."""
    if encoding in _HEX or (not encoding and size and len(data) == 2 * size):
        return bytes.fromhex(data)
    return base64.b64decode(data, validate=True)


def _plain(data: str, encoding: str, password: bytes) -> bool:
    known = _decode(data, encoding) if encoding else data.encode("utf-8", "surrogateescape")
    if not known:
        raise ValueError
    return hmac.compare_digest(known, password)


def _digest(name: str) -> _Check:
    size = hashlib.new(name).digest_size

    def check(data: str, encoding: str, password: bytes) -> bool:
        known = _decode(data, encoding, size)
        if len(known) != size:
            raise ValueError
        return hmac.compare_digest(known, hashlib.new(name, password).digest())

    return check


def _salted(name: str) -> _Check:
    size = hashlib.new(name).digest_size

    def check(data: str, encoding: str, password: bytes) -> bool:
        known = _decode(data, encoding)
        if len(known) <= size:
            raise ValueError
        return hmac.compare_digest(known[:size], hashlib.new(name, password + known[size:]).digest())

    return check


def _crypt(data: str, encoding: str, password: bytes) -> bool:
    right = system_crypt.verify(data, password)
    if right is None:
        if not system_crypt.available():
            raise SchemeError("there is no libcrypt on this system")
        raise ValueError
    return right


def _argon2(data: str, encoding: str, password: bytes) -> bool:
    try:
        return _ARGON2.verify(data, password)
    except VerifyMismatchError:
        return False
    except (VerificationError, InvalidHashError):
        raise ValueError from None


def _pbkdf2(data: str, encoding: str, password: bytes) -> bool:
    """``$1$salt$rounds$hash``, with SHA-1."""
    empty, version, salt, rounds, known = data.split("$")
    if empty or version != "1":
        raise ValueError
    made = hashlib.pbkdf2_hmac("sha1", password, salt.encode(), _rounds(rounds))
    return hmac.compare_digest(bytes.fromhex(known), made)


def _scram(name: str) -> _Check:
    """``rounds,salt,StoredKey,ServerKey`` (RFC 5802 section 3)."""

    def check(data: str, encoding: str, password: bytes) -> bool:
        rounds, salt, stored, _ = data.split(",")
        salted = hashlib.pbkdf2_hmac(name, password, _decode(salt, ""), _rounds(rounds))
        client_key = hmac.digest(salted, b"Client Key", name)
        return hmac.compare_digest(_decode(stored, ""), hashlib.new(name, client_key).digest())

    return check


def _rounds(text: str) -> int:
    rounds = int(text)
    if not 1 <= rounds <= _MOST_ROUNDS:
        raise ValueError
    return rounds


_SCHEMES: dict[str, _Check] = {
    **dict.fromkeys(("PLAIN", "CLEAR", "CLEARTEXT"), _plain),
    **dict.fromkeys(("CRYPT", "BLF-CRYPT", "SHA256-CRYPT", "SHA512-CRYPT", "MD5-CRYPT"), _crypt),
    **dict.fromkeys(("SHA", "SHA1"), _digest("sha1")),
    "SHA256": _digest("sha256"),
    "SHA512": _digest("sha512"),
    "SSHA": _salted("sha1"),
    "SSHA256": _salted("sha256"),
    "SSHA512": _salted("sha512"),
    **dict.fromkeys(("ARGON2I", "ARGON2ID"), _argon2),
    "PBKDF2": _pbkdf2,
    "SCRAM-SHA-1": _scram("sha1"),
    "SCRAM-SHA-256": _scram("sha256"),
}
