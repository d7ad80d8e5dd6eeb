"""Password hashes that Dovecot's own tool makes are verified."""

from __future__ import annotations

import subprocess

import pytest

from adapter.accounts import password_schemes

SECRET = "correct hörse"


MADE = (
    "PLAIN", "CLEARTEXT", "CLEAR", "CRYPT", "SHA256-CRYPT", "SHA512-CRYPT", "BLF-CRYPT", "MD5-CRYPT", "SHA", "SHA1",
    "SHA256", "SHA512", "SSHA", "SSHA256", "SSHA512", "ARGON2I", "PBKDF2", "SCRAM-SHA-1", "SCRAM-SHA-256",
    "SHA256.hex", "SSHA512.hex", "SHA512.b64", "PLAIN.b64", "SSHA.base64",
)  # fmt: skip


@pytest.mark.needs("doveadm")
@pytest.mark.parametrize("scheme", MADE)
def test_what_dovecot_stores_is_understood(scheme: str) -> None:
    rounds = ["-r", "5"] if "CRYPT" not in scheme and "ARGON2" in scheme else []
    command = ["doveadm", "-c", "/dev/null", "pw", "-s", scheme, "-p", SECRET, *rounds]
    stored = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
    assert stored.upper().startswith(f"{{{scheme.upper()}}}")
    assert password_schemes.verify(stored, SECRET, "CRYPT")
    assert not password_schemes.verify(stored, SECRET.upper(), "CRYPT")
    assert not password_schemes.verify(stored, "", "CRYPT")
    assert password_schemes.is_supported(scheme.partition(".")[0])
