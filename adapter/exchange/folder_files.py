"""What lies beside exported folders: subscriptions, and the full names of folders that no file name can hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import orjson

from adapter.exchange import output
from adapter.exchange.model import read_note, tidy_folder
from adapter.store import names
from protocol.errors import ProtocolError
from protocol.imap.wire import utf7

SUBSCRIPTIONS = "subscriptions"
FULL_NAMES = "markpost-folders.json"
_MAX_ENTRY = 255


def fit(entry: str, suffix: str = "") -> str:
    """A file name no longer than one may be; a shortened one ends in a hash, and FULL_NAMES tells what it means."""
    if len(os.fsencode(entry + suffix)) <= _MAX_ENTRY:
        return entry + suffix
    digest = hashlib.sha256(os.fsencode(entry)).hexdigest()[:32]
    head = os.fsencode(entry)[: _MAX_ENTRY - len(digest) - len(suffix) - 1].decode("utf-8", "ignore")
    return f"{head}+{digest}{suffix}"


def write_full_names(directory: str, shortened: dict[str, str]) -> None:
    if shortened:
        output.write(os.path.join(directory, FULL_NAMES), [orjson.dumps(shortened, option=orjson.OPT_INDENT_2)])


def read_full_names(directory: str) -> dict[str, str]:
    try:
        loaded = orjson.loads(read_note(os.path.join(directory, FULL_NAMES)) or b"{}")
    except ValueError:
        return {}
    if not isinstance(loaded, dict):
        return {}
    return {entry: tidy_folder(name.split("/")) for entry, name in loaded.items() if isinstance(name, str)}


def write_subscriptions(directory: str, subscribed: Iterable[str]) -> None:
    """In Dovecot's second format: levels in modified UTF-7, separated by tabs, so that no delimiter matters."""
    lines = [b"V\t2", b"", *(b"\t".join(map(utf7.encode, name.split(names.DELIMITER))) for name in subscribed)]
    output.write(os.path.join(directory, SUBSCRIPTIONS), [line + b"\n" for line in lines])


def read_subscriptions(directory: str, delimiter: bytes) -> tuple[str, ...] | None:
    """Of either format of Dovecot's; the first separates levels by the delimiter of the mailbox format."""
    note = read_note(os.path.join(directory, SUBSCRIPTIONS))
    if note is None:
        return None
    lines = note.split(b"\n")
    if lines[0] == b"V\t2":
        delimiter, lines = b"\t", lines[2:]
    return tuple(tidy_folder(map(decode_level, line.split(delimiter))) for line in lines if line)


def decode_level(level: bytes) -> str:
    """One level of a folder name in modified UTF-7, or in UTF-8 as some servers write it."""
    try:
        return utf7.decode(level)
    except ProtocolError:
        return level.decode("utf-8", "replace")
