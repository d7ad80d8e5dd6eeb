"""What lies beside exported folders: subscriptions, and the full names of folders that no file name can hold."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable

import orjson

from adapter.exchange import output
from adapter.exchange.items import tidy_folder
from adapter.store import names

SUBSCRIPTIONS = "subscriptions"
FULL_NAMES = "markpost-folders.json"
_SUBSCRIPTIONS_V2 = "V\t2"
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
        with open(os.path.join(directory, FULL_NAMES), "rb") as file:
            loaded = orjson.loads(file.read())
    except (OSError, ValueError):
        return {}
    if not isinstance(loaded, dict):
        return {}
    return {entry: tidy_folder(name.split("/")) for entry, name in loaded.items() if isinstance(name, str)}


def write_subscriptions(directory: str, subscribed: Iterable[str]) -> None:
    """In Dovecot's second format: levels separated by tabs, so that no delimiter matters."""
    lines = [_SUBSCRIPTIONS_V2, ""]
    lines += ["\t".join(_escape(level) for level in name.split(names.DELIMITER)) for name in subscribed]
    output.write(os.path.join(directory, SUBSCRIPTIONS), [f"{line}\n".encode() for line in lines])


def read_subscriptions(directory: str, delimiter: str) -> tuple[str, ...] | None:
    """Of either format of Dovecot's; the first separates levels by the delimiter of the mailbox format."""
    try:
        with open(os.path.join(directory, SUBSCRIPTIONS), "rb") as file:
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return None
    if lines[0] == _SUBSCRIPTIONS_V2:
        return tuple(tidy_folder(map(_unescape, line.split("\t"))) for line in lines[2:] if line)
    return tuple(tidy_folder(line.split(delimiter)) for line in lines if line)


_ESCAPES = {"\x01": "\x011", "\t": "\x01t", "\r": "\x01r", "\n": "\x01n", "\x00": "\x010"}
_MEANINGS = {escaped: character for character, escaped in _ESCAPES.items()}


def _escape(level: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in level)


def _unescape(level: str) -> str:
    return re.sub("\x01(.)", lambda escaped: _MEANINGS.get(escaped[0], escaped[1]), level, flags=re.DOTALL)
