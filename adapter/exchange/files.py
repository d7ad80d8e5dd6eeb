"""Files of an export: how they are written, and the notes next to exported folders.

This is the only module that writes outside the store. Files are created for their owner only and never replace existing
ones. The notes are the subscriptions, and the full names of folders with names too long for a file system.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import BinaryIO

import orjson

from adapter.exchange.model import read_note, tidy_folder
from adapter.store import names
from protocol.errors import MailError, ProtocolError, Reason
from protocol.imap.wire import utf7

SUBSCRIPTIONS = "subscriptions"
FULL_NAMES = "markpost-folders.json"
_MAX_ENTRY_BYTES = 255


# --- writing ---------------------------------------------------------------------------------------------------------


def empty_directory(path: str) -> None:
    """Create a directory, or accept an empty one. Raises ``NOT_ALLOWED``."""
    for each in (os.path.dirname(path), path):  # makedirs applies the mode to the last level only
        os.makedirs(each, mode=0o700, exist_ok=True)
    if os.listdir(path):
        raise MailError(Reason.NOT_ALLOWED, f"{path} is not empty: export to another directory")


def make_directory(path: str) -> None:
    os.mkdir(path, 0o700)


def new_file(path: str) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def write(path: str, chunks: Iterable[bytes]) -> None:
    with new_file(path) as file:
        file.writelines(chunks)


def write_then_move(temporary: str, path: str, chunks: Iterable[bytes], modified: int) -> None:
    """Write a file under a temporary name and rename it: ``path`` is complete or absent."""
    try:
        write(temporary, chunks)
    except BaseException:
        os.unlink(temporary)
        raise
    os.utime(temporary, (modified, modified))
    os.rename(temporary, path)


def make_durable() -> None:
    os.sync()


# --- notes -----------------------------------------------------------------------------------------------------------


def fit(entry: str, suffix: str = "") -> str:
    """Return a file name of legal length; a shortened one ends in a hash, and FULL_NAMES maps it to the full name."""
    if len(os.fsencode(entry + suffix)) <= _MAX_ENTRY_BYTES:
        return entry + suffix
    digest = hashlib.sha256(os.fsencode(entry)).hexdigest()[:32]
    head = os.fsencode(entry)[: _MAX_ENTRY_BYTES - len(digest) - len(suffix) - 1].decode("utf-8", "ignore")
    return f"{head}+{digest}{suffix}"


def write_full_names(directory: str, shortened: dict[str, str]) -> None:
    if shortened:
        write(os.path.join(directory, FULL_NAMES), [orjson.dumps(shortened, option=orjson.OPT_INDENT_2)])


def read_full_names(directory: str) -> dict[str, str]:
    try:
        loaded = orjson.loads(read_note(os.path.join(directory, FULL_NAMES)) or b"{}")
    except ValueError:
        return {}
    if not isinstance(loaded, dict):
        return {}
    return {entry: tidy_folder(name.split("/")) for entry, name in loaded.items() if isinstance(name, str)}


def write_subscriptions(directory: str, folder_names: Iterable[str]) -> None:
    """Write Dovecot's second format: levels in modified UTF-7, separated by tabs and so independent of delimiters."""
    lines = [b"V\t2", b"", *(b"\t".join(map(utf7.encode, name.split(names.DELIMITER))) for name in folder_names)]
    write(os.path.join(directory, SUBSCRIPTIONS), [line + b"\n" for line in lines])


def read_subscriptions(directory: str, delimiter: bytes) -> tuple[str, ...] | None:
    """Read either of Dovecot's formats; the first separates levels by the delimiter of the mailbox format."""
    note = read_note(os.path.join(directory, SUBSCRIPTIONS))
    if note is None:
        return None
    lines = note.split(b"\n")
    if lines[0] == b"V\t2":
        delimiter, lines = b"\t", lines[2:]
    return tuple(tidy_folder(map(decode_level, line.split(delimiter))) for line in lines if line)


def decode_level(level: bytes) -> str:
    """Decode one level of a folder name from modified UTF-7, or from UTF-8 as some servers write it."""
    try:
        return utf7.decode(level)
    except ProtocolError:
        return level.decode("utf-8", "replace")
