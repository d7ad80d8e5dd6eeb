"""Quarantine: what leaves the store comes here, under its own name, with a file that says where it was and why."""

from __future__ import annotations

import os
import time

import orjson

from adapter.store import disk, layout
from adapter.store.disk import Directories

_LONGEST = 200  # octets of a name


def move(directories: Directories, where: layout.Parts, name: str, why: str) -> str:
    """Move one entry of a directory; returns where it is now, empty if it was gone already."""
    mark = os.urandom(6).hex()
    kept = f"{mark}-{_cut(name)}"
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
            disk.rename(source, name, target, kept)
    except FileNotFoundError:
        return ""
    return layout.absolute(*layout.QUARANTINE, kept)


def _cut(name: str) -> str:
    """What fits into a directory entry, with room for the mark."""
    return os.fsencode(name)[:_LONGEST].decode("utf-8", "ignore")


def parts(place: str) -> layout.Parts:
    return tuple(place.split("/")) if place else ()
