"""Quarantine: entries removed from the store, under their own names, with a file that records path and reason."""

from __future__ import annotations

import os
import time

import orjson

from adapter.store import disk, layout
from adapter.store.disk import Directories

_MAX_NAME_BYTES = 200


def move(directories: Directories, where: layout.Parts, name: str, why: str) -> str:
    """Move an entry of a directory to quarantine; return its new path, or "" if it is already gone."""
    mark = os.urandom(6).hex()
    new_name = f"{mark}-{_truncated(name)}"
    note = {
        "was": os.fsencode(layout.absolute(*where, name)).decode("utf-8", "backslashreplace"),
        "why": why,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    try:
        with directories.open(where) as source, directories.open(layout.QUARANTINE, create=True) as target:
            if not disk.exists(source, name):
                return ""
            disk.write_new(target, f"{mark}.reason.json", orjson.dumps(note, option=orjson.OPT_INDENT_2) + b"\n")
            disk.rename(source, name, target, new_name)
    except FileNotFoundError:
        return ""
    return layout.absolute(*layout.QUARANTINE, new_name)


def _truncated(name: str) -> str:
    """A name short enough for a directory entry with the mark."""
    return os.fsencode(name)[:_MAX_NAME_BYTES].decode("utf-8", "ignore")


def parts(place: str) -> layout.Parts:
    """The path components of a finding's directory."""
    return tuple(place.split("/")) if place else ()


def set_aside(directories: Directories, parent: int, entry: str) -> None:
    """Move an entry that is damaged or not ours out of the way of one of ours, without a note."""
    with directories.open(layout.QUARANTINE, create=True) as quarantine:
        disk.rename(parent, entry, quarantine, f"{os.urandom(6).hex()}-{entry[:_MAX_NAME_BYTES]}")
