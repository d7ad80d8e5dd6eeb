"""Stored keys for SCRAM-SHA-256 (RFC 5802 section 3) in the format of RFC 5803, and SASLprep."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """The keys that the server stores instead of the password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramKeys(iterations={self.iterations})"


_STORED = re.compile(
    r"SCRAM-SHA-256\$([1-9][0-9]{3,7}):([A-Za-z0-9+/]{8,128}={0,2})\$([A-Za-z0-9+/]{43}=):([A-Za-z0-9+/]{43}=)"
)


def scram_keys(password: str, salt: bytes, iterations: int) -> str:
    """Derive ``SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey``. Slow by design: never call it on the event loop.

    Raises ValueError for a password that SASLprep forbids, fewer than 4096 iterations (RFC 7677 section 4) or a salt
    shorter than 16 octets.
    """
    if not 4096 <= iterations < 100_000_000 or not 16 <= len(salt) <= 64:
        raise ValueError("SCRAM needs at least 4096 iterations and 16 octets of salt")
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    client_key = keyed_hash(salted, b"Client Key")
    stored = encode_key(hashlib.sha256(client_key).digest())
    return f"SCRAM-SHA-256${iterations}:{encode_key(salt)}${stored}:{encode_key(keyed_hash(salted, b'Server Key'))}"


def parse_scram_keys(text: str) -> ScramKeys | None:
    """Parse the stored form; None if it is invalid."""
    match = _STORED.fullmatch(text)
    if match is None:
        return None
    try:
        salt, stored, server = (base64.b64decode(part, validate=True) for part in match.group(2, 3, 4))
    except binascii.Error:
        return None
    return ScramKeys(salt, int(match[1]), stored, server)


def saslprep(text: str) -> str:
    """RFC 4013; raises ValueError for prohibited characters. Characters newer than its Unicode 3.2 may pass."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if not prepared or any(
        stringprep.in_table_c12(char)
        or stringprep.in_table_c21_c22(char)
        or stringprep.in_table_c3(char)
        or stringprep.in_table_c4(char)
        or stringprep.in_table_c5(char)
        or stringprep.in_table_c6(char)
        or stringprep.in_table_c7(char)
        or stringprep.in_table_c8(char)
        or stringprep.in_table_c9(char)
        for char in prepared
    ):
        raise ValueError("password is empty or has a prohibited character")
    if any(map(stringprep.in_table_d1, prepared)) and (
        any(map(stringprep.in_table_d2, prepared))
        or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1]))
    ):
        raise ValueError("password mixes writing directions")
    return prepared


def keyed_hash(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def encode_key(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
