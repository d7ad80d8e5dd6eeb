"""Messages in files of their own: line ends, dates, and directories of ``.eml`` files."""

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
_HEADER_BYTES = 1 << 16
SUFFIX = ".eml"


def with_crlf(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same octets with every bare LF as CRLF, as mail travels."""
    after_cr = False
    for chunk in chunks:
        fixed = _BARE_LF.sub(b"\r\n", chunk)
        if after_cr and chunk.startswith(b"\n"):
            fixed = fixed[1:]
        after_cr = chunk.endswith(b"\r") if chunk else after_cr
        yield fixed


def header_date(head: bytes) -> int | None:
    """What the Date field at the start of a message says, in seconds; None if it says nothing usable."""
    blank = _BLANK_LINE.search(head)
    raw = parse_headers(head, 0, blank.end() if blank else len(head)).first("date")
    moment = parse_date(raw) if raw is not None else None
    return int(moment.timestamp()) if moment is not None else None


def single(path: str) -> Source:
    """One message in one file."""
    item = _item(path, names.INBOX)
    return Source((names.INBOX,), item.octets, partial(iter, [item]))


def directory(path: str) -> Source:
    """Every ``.eml`` file below a directory; its subdirectories are folders. In the order of their names."""
    found: list[tuple[str, str]] = []
    folders = {names.INBOX: None}
    for where, below, files in os.walk(path):
        below.sort()
        messages = sorted(name for name in files if name.lower().endswith(SUFFIX))
        if messages:
            inner = os.path.relpath(where, path)
            folder = names.INBOX if inner == "." else tidy_folder(inner.split(os.sep))
            folders[folder] = None
            found += [(os.path.join(where, name), folder) for name in messages]
    octets = sum(os.lstat(name).st_size for name, _ in found)
    return Source(tuple(folders), octets, lambda: (_item(name, folder) for name, folder in found))


def contains_messages(path: str) -> bool:
    return any(name.lower().endswith(SUFFIX) for _, _, files in os.walk(path) for name in files)


def _item(path: str, folder: str) -> Item:
    try:
        head = next(read_file(path, _HEADER_BYTES), b"")
        date = header_date(head)
        status = os.lstat(path)
    except (SourceError, OSError):
        return Item(path, folder, 0, lambda: read_file(path))  # says what is wrong when it is read
    if date is None:
        date = int(status.st_mtime)
    return Item(path, folder, status.st_size, lambda: with_crlf(read_file(path)), date)
