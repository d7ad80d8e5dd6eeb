"""Password schemes of Dovecot: ``{SCHEME}data`` or ``{SCHEME.encoding}data``, crypt(3) of the system included.

Invariants: secrets are compared in constant time; an unsupported scheme, or data that cannot be parsed, is an error and
never a match. Passwords are not prepared (SASLprep), because Dovecot does not prepare them either.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import functools
import hashlib
import hmac
import re
from collections.abc import Callable

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

_PREFIX = re.compile(r"\{([A-Za-z0-9-]+)(?:\.([A-Za-z0-9]+))?\}")
_HEX, _BASE64 = ("HEX",), ("B64", "BASE64")
_MAX_ROUNDS = 10_000_000
_ARGON2 = PasswordHasher()
_LIBCRYPT_NAMES = ("libcrypt.so.1", "libcrypt.so.2")
_CRYPT_DATA_BYTES = 1 << 15  # struct crypt_data of libxcrypt
_MAX_PHRASE_BYTES = 511

_Check = Callable[[str, str, bytes], bool]  # data, encoding (upper case or empty), password


class SchemeError(Exception):
    """A stored password cannot be checked; the text says why and contains no part of it."""


def verify(stored: str, password: str, default: str) -> bool:
    """Return whether this is the password. Slow: never call it on an event loop. Raises SchemeError."""
    match = _PREFIX.match(stored)
    scheme, encoding = (match[1].upper(), (match[2] or "").upper()) if match else (default.upper(), "")
    check = _SCHEMES.get(scheme)
    if check is None:
        raise SchemeError(f"the scheme {scheme} is not supported")
    if encoding not in ("", *_HEX, *_BASE64):
        raise SchemeError(f"the encoding {encoding} is not supported")
    try:
        return check(stored[match.end() :] if match else stored, encoding, password.encode("utf-8", "surrogatepass"))
    except (ValueError, binascii.Error):
        raise SchemeError(f"malformed data for the scheme {scheme}") from None


def is_supported(scheme: str) -> bool:
    return scheme.upper() in _SCHEMES


def _decode(data: str, encoding: str, size: int = 0) -> bytes:
    """Decode base64, or hexadecimal: by name, or without one for data of ``size`` octets."""
    if encoding in _HEX or (not encoding and size and len(data) == 2 * size):
        return bytes.fromhex(data)
    return base64.b64decode(data, validate=True)


def _plain(data: str, encoding: str, password: bytes) -> bool:
    stored = _decode(data, encoding) if encoding else data.encode("utf-8", "surrogateescape")
    if not stored:
        raise ValueError
    return hmac.compare_digest(stored, password)


def _digest(name: str) -> _Check:
    size = hashlib.new(name).digest_size

    def check(data: str, encoding: str, password: bytes) -> bool:
        stored = _decode(data, encoding, size)
        if len(stored) != size:
            raise ValueError
        return hmac.compare_digest(stored, hashlib.new(name, password).digest())

    return check


def _salted(name: str) -> _Check:
    size = hashlib.new(name).digest_size

    def check(data: str, encoding: str, password: bytes) -> bool:
        stored = _decode(data, encoding)
        if len(stored) <= size:
            raise ValueError
        return hmac.compare_digest(stored[:size], hashlib.new(name, password + stored[size:]).digest())

    return check


def _crypt(data: str, encoding: str, password: bytes) -> bool:
    """Verify with the system's libcrypt, because newer versions of Python have no crypt module."""
    library = _libcrypt()
    if library is None:
        raise SchemeError("libcrypt is not installed")
    if b"\0" in password or len(password) > _MAX_PHRASE_BYTES:
        return False
    buffer = ctypes.create_string_buffer(_CRYPT_DATA_BYTES)
    setting = data.encode("utf-8", "surrogateescape")
    digest: bytes | None = library.crypt_rn(password, setting, buffer, _CRYPT_DATA_BYTES)
    if digest is None or digest.startswith(b"*"):
        raise ValueError
    return hmac.compare_digest(digest, setting)


@functools.cache
def _libcrypt() -> ctypes.CDLL | None:
    for name in _LIBCRYPT_NAMES:
        try:
            library = ctypes.CDLL(name)
            function = library.crypt_rn
        except (OSError, AttributeError):
            continue
        function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]
        function.restype = ctypes.c_char_p
        return library
    return None


def _argon2(data: str, encoding: str, password: bytes) -> bool:
    try:
        return _ARGON2.verify(data, password)
    except VerifyMismatchError:
        return False
    except (VerificationError, InvalidHashError):
        raise ValueError from None


def _pbkdf2(data: str, encoding: str, password: bytes) -> bool:
    """Verify ``$1$salt$rounds$hash``, with SHA-1."""
    empty, version, salt, rounds, stored = data.split("$")
    if empty or version != "1":
        raise ValueError
    digest = hashlib.pbkdf2_hmac("sha1", password, salt.encode(), _rounds(rounds))
    return hmac.compare_digest(bytes.fromhex(stored), digest)


def _scram(name: str) -> _Check:
    """Return a check of ``rounds,salt,StoredKey,ServerKey`` (RFC 5802 section 3)."""

    def check(data: str, encoding: str, password: bytes) -> bool:
        rounds, salt, stored, _ = data.split(",")
        salted = hashlib.pbkdf2_hmac(name, password, _decode(salt, ""), _rounds(rounds))
        client_key = hmac.digest(salted, b"Client Key", name)
        return hmac.compare_digest(_decode(stored, ""), hashlib.new(name, client_key).digest())

    return check


def _rounds(text: str) -> int:
    rounds = int(text)
    if not 1 <= rounds <= _MAX_ROUNDS:
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
