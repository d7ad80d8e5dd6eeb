"""Accounts with a known password that costs little to set and to verify."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from adapter.accounts.credentials import Credentials
from adapter.store import layout

_CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
_USER = "user@example.test"


@pytest.fixture
def credentials(tmp_path: Path) -> Iterator[Credentials]:
    with Credentials.open(tmp_path) as opened:
        yield opened


def passwd(root: Path) -> Path:
    """The password file of a store."""
    return root / "credentials" / "passwd"


def set_passwords(root: str | os.PathLike[str], password: str, *addresses: str) -> None:
    """Add lines as ``account passwd`` writes them, with an Argon2 hash of minimal cost."""
    file = Path(root, *layout.CREDENTIALS, layout.CREDENTIALS_FILE)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as lines:
        for address in addresses:
            lines.write(_line(password).replace(_USER, address))


@functools.cache
def _line(password: str) -> str:
    with tempfile.TemporaryDirectory() as root:
        with Credentials.open(root) as credentials:
            credentials.set_password(_USER, password)
        fields = Path(root, *layout.CREDENTIALS, layout.CREDENTIALS_FILE).read_text().split(":")
    scheme = fields[1].partition("$")[0]
    return ":".join([fields[0], scheme + _CHEAP.hash(password), *fields[2:]])
