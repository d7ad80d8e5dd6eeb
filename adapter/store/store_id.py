"""The id of a store: 32 hexadecimal digits, given once when the store is made. Copies and backups of it keep the id.

The reference is ``store-id.txt`` in the root. Index, journal segments, snapshots, checkpoint and ``.mailbox`` files
carry the id as well: a file with another id is part of another store and decides nothing here. If the reference is lost
or damaged, the id is what the other files agree on (:mod:`adapter.maintenance.diff.store_identity`).

store: 5f0c2f6a8d3b4e17a9c6d1e2f3a4b5c6
sha256: <of the line above>
"""

from __future__ import annotations

import hashlib
import os
import re

from adapter.store import disk, layout
from adapter.store.disk import Directories

FORM = re.compile(r"[0-9a-f]{32}\Z")
_FILE = re.compile(rb"store: ([0-9a-f]{32})\nsha256: [0-9a-f]{64}\n\Z")
_MODE = 0o400


def new() -> str:
    return os.urandom(16).hex()


def encode(store: str) -> bytes:
    head = f"store: {store}\n"
    return f"{head}sha256: {hashlib.sha256(head.encode()).hexdigest()}\n".encode()


def decode(data: bytes) -> str | None:
    """None if the file is not exactly what was written."""
    match = _FILE.match(data)
    store = match[1].decode() if match else ""
    return store if match and encode(store) == data else None


def read(directories: Directories) -> str | None:
    """The id that the root names; None if the file is missing or damaged. Raises OSError if it cannot be read."""
    with directories.stable(()) as root:
        try:
            return decode(disk.read_file(root, layout.STORE_ID_FILE))
        except FileNotFoundError:
            return None


def write(directories: Directories, store: str) -> None:
    """Give the root this id, atomically and durably."""
    with directories.stable(()) as root:
        disk.replace_file(root, layout.STORE_ID_FILE, encode(store), mode=_MODE)
