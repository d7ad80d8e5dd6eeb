"""Faults of the tree: stray entries, modes that are too wide, garbage in caches and name files.

All that need a mailbox choose the same one, so that another is left to faults of whole mailboxes.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from adapter.store import layout, names
from tests.system.maintenance.lab.faults import fault
from tests.system.maintenance.lab.victims import Place, Unfit, Victims

_NOT_UTF8 = os.fsdecode(b"caf\xe9-\xff")


@fault("disk", "folder-name-wrong")
def full_name_forged(v: Victims) -> None:
    place = v.take("directory", v.folders, lambda each: names.is_shortened(names.folder_entry(each.name)))
    v.use("link", *(each for each in v.shown if each.folder == place.id))
    file = v.folder_path(place) / layout.FULL_NAME_FILE
    file.unlink()
    file.write_text("Another")


@fault("disk", "stray-entry")
def strays_everywhere(v: Victims) -> dict[str, int]:
    """Create files, directories, links, pipes and sockets with unusual names."""
    folder = v.folder_path(_kept_folder(v))
    day = v.file_path(v.some_message()).parent
    strays = [
        v.path("notes.txt"),
        v.path(*layout.MAILBOXES, "readme"),
        folder.parent / "todo.txt",
        folder / "a note.md",
        folder / "\x1b[2J\n.md",
        day / _NOT_UTF8,
        v.path(*layout.JOURNAL, "0000000000000001.jsonl.bak"),
        v.path(*layout.SNAPSHOTS, "old"),
        v.path(*layout.LOCKS, "notes"),
        v.path(*layout.MAINTENANCE, "notes.txt"),
    ]
    for stray in strays:
        stray.write_bytes(b"mine")
    directories = [
        folder.parent / _NOT_UTF8,
        v.path(*layout.MESSAGES, "backup"),
        v.path(*layout.ATTACHMENTS, "old stuff"),
        v.path(*layout.JOURNAL, "copies"),
        v.path(*layout.STAGING, _NOT_UTF8),
        v.path("old"),
    ]
    for stray in directories:
        stray.mkdir()
    os.mkfifo(v.path(*layout.MAILBOXES, "pipe"))
    os.mkfifo(folder / "pipe")
    v.path(*layout.MAILBOXES, "link@example.test").symlink_to(folder.parent)
    _socket(v.path(*layout.JOURNAL, "socket"))
    return {"stray-entry": len(strays) + len(directories) + 4}


@fault("disk", "mode-too-wide")
def modes_widened(v: Victims) -> dict[str, int]:
    widened = [
        (v.file_path(v.content(journaled=False)), 0o666),
        (v.blob_path(v.part()), 0o646),
        (v.folder_path(_kept_folder(v)), 0o777),
        (v.path(*layout.JOURNAL), 0o770),
        (v.segments()[-1], 0o660),
        (v.path(layout.VERSION_FILE), 0o464),
    ]
    for path, mode in widened:
        path.chmod(mode)
    return {"mode-too-wide": len(widened)}


@fault("disk", "credentials-exposed")
def credentials_opened(v: Victims) -> dict[str, int]:
    place = v.path(*layout.CREDENTIALS)
    place.mkdir(mode=0o700, exist_ok=True)
    file = place / layout.CREDENTIALS_FILE
    file.touch()
    file.chmod(0o640)
    place.chmod(0o755)
    return {"credentials-exposed": 2}


@fault("disk", "text-index-damaged")
def text_index_overwritten(v: Victims) -> None:
    v.path(layout.TEXT_INDEX_FILE).write_bytes(v.chance.randbytes(9000))


def _kept_folder(v: Victims) -> Place:
    """A folder of the last account. Other faults may add links to it, but none removes it."""
    if not v.accounts:
        raise Unfit
    owner = max(v.accounts, key=lambda each: each[1])[0]
    return v.folder_for_link(lambda place: place.registration == owner)


def _socket(path: Path) -> None:
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{parent}/{path.name}")
    finally:
        os.close(parent)
