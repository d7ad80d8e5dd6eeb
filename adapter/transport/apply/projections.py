"""Projections: relative symbolic links that show messages in folders."""

from __future__ import annotations

import contextlib
from functools import partial

from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.effects import Project, Unproject
from adapter.transport.apply import folders
from adapter.transport.apply.undo import Undo


def link(effect: Project, directories: Directories, undo: Undo) -> None:
    parts = layout.folder_directory(effect.directory, effect.name)
    if effect.uids_below is not None:
        folders.raise_mark(directories, parts, effect.folder, effect.uids_below)
    with directories.open(parts) as directory:
        for row in effect.rows:
            name = layout.projection_name(row.uid, row.message_id)
            disk.symlink(directory, name, layout.projection_target(row.message_id))
            undo.add(partial(_unlink_in, directories, parts, name))


def unlink(effect: Unproject, directories: Directories, undo: Undo) -> None:
    parts = layout.folder_directory(effect.directory, effect.name)
    # Links that were removed by hand, or the directory with all of them, are already gone.
    with contextlib.suppress(FileNotFoundError), directories.open(parts) as directory:
        for row in effect.rows:
            name = layout.projection_name(row.uid, row.message_id)
            try:
                disk.unlink(directory, name)
            except FileNotFoundError:
                continue
            undo.add(partial(_link_in, directories, parts, name, row.message_id))


def _unlink_in(directories: Directories, parts: layout.Parts, name: str) -> None:
    with directories.open(parts) as directory:
        disk.unlink(directory, name)


def _link_in(directories: Directories, parts: layout.Parts, name: str, message_id: str) -> None:
    with directories.open(parts) as directory:
        disk.symlink(directory, name, layout.projection_target(message_id))
