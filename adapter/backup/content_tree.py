"""Everything below a directory, level by level, without following links."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from adapter.store import layout
from adapter.store.disk import Directories


@dataclass(frozen=True, slots=True)
class Entry:
    parts: layout.Parts  # of its directory
    name: str
    kind: str  # "file", "link", "directory" or "other"
    size: int = 0


def walk(directories: Directories, parts: layout.Parts = ()) -> Iterator[Entry]:
    """Directories come before what is in them."""
    with directories.open(parts) as fd:
        found = sorted(
            (entry.name, _kind(entry), entry.stat(follow_symlinks=False).st_size) for entry in os.scandir(fd)
        )
    for name, kind, size in found:
        yield Entry(parts, name, kind, size if kind == "file" else 0)
        if kind == "directory":
            yield from walk(directories, (*parts, name))


@dataclass(slots=True)
class Count:
    files: int = 0
    octets: int = 0
    links: int = 0


def count(entries: Iterable[Entry]) -> Count:
    found = Count()
    for entry in entries:
        found.files += entry.kind == "file"
        found.links += entry.kind == "link"
        found.octets += entry.size
    return found


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
