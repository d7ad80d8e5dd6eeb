"""``.eml`` files: single messages, directories of them, their line ends and dates."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import partial

from adapter.exchange.model import Item, Source, SourceError, read_file, tidy_folder
from adapter.store import names
from protocol.mime.dates import parse_date
from protocol.mime.headers import parse_headers

_BARE_LF = re.compile(rb"(?<!\r)\n")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_MAX_HEADER_BYTES = 1 << 16
SUFFIX = ".eml"


def with_crlf(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Replace every bare LF by CRLF."""
    after_cr = False
    for chunk in chunks:
        converted = _BARE_LF.sub(b"\r\n", chunk)
        if after_cr and chunk.startswith(b"\n"):
            converted = converted[1:]
        after_cr = chunk.endswith(b"\r") if chunk else after_cr
        yield converted


def header_date(head: bytes) -> int | None:
    """Parse the Date field in the first octets of a message; seconds, or None if it is missing or invalid."""
    blank = _BLANK_LINE.search(head)
    raw = parse_headers(head, 0, blank.end() if blank else len(head)).first("date")
    moment = parse_date(raw) if raw is not None else None
    return int(moment.timestamp()) if moment is not None else None


def single(path: str) -> Source:
    """Return a file with one message as a source."""
    item = _item(path, names.INBOX)
    return Source((names.INBOX,), item.octets, partial(iter, [item]))


def directory(path: str) -> Source:
    """Return all ``.eml`` files below a directory, sorted by name; subdirectories are folders."""
    messages: list[tuple[str, str]] = []
    folders = {names.INBOX: None}
    for directory_path, subdirectories, files in os.walk(path):
        subdirectories.sort()
        entries = sorted(name for name in files if name.lower().endswith(SUFFIX))
        if entries:
            inner = os.path.relpath(directory_path, path)
            folder = names.INBOX if inner == "." else tidy_folder(inner.split(os.sep))
            folders[folder] = None
            messages += [(os.path.join(directory_path, name), folder) for name in entries]
    octets = sum(os.lstat(name).st_size for name, _ in messages)
    return Source(tuple(folders), octets, lambda: (_item(name, folder) for name, folder in messages))


def contains_messages(path: str) -> bool:
    return any(name.lower().endswith(SUFFIX) for _, _, files in os.walk(path) for name in files)


def _item(path: str, folder: str) -> Item:
    try:
        head = next(read_file(path, _MAX_HEADER_BYTES), b"")
        date = header_date(head)
        status = os.lstat(path)
    except (SourceError, OSError):
        return Item(path, folder, 0, lambda: read_file(path))  # reading the chunks reports the error
    if date is None:
        date = int(status.st_mtime)
    return Item(path, folder, status.st_size, lambda: with_crlf(read_file(path)), date)
