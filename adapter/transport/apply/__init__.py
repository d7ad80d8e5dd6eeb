"""Apply effects: what each kind does to the files (live, and reversible) and to the index.

The index is changed by the same functions live, in recovery and in a rebuild.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from itertools import groupby
from typing import assert_never

from adapter.store import effects
from adapter.store.disk import Directories
from adapter.store.effects import Effect
from adapter.store.journal import Record
from adapter.store.queries import bookmarks, content_rows, outbox
from adapter.store.queries import folders as folder_rows
from adapter.store.queries import projections as projection_rows
from adapter.transport.apply import content, folders, projections
from adapter.transport.apply.undo import Undo

#: Effects that create, rename or remove directories; between them, directories stay open.
_MOVING = (effects.CreateFolder, effects.RenameFolder, effects.RemoveFolder, effects.SetRegistration)


def apply_files(records: Iterable[Record], directories: Directories, undo: Undo) -> None:
    """Change the files; ``undo`` records each step."""
    every = [effect for record in records for effect in record.effects]
    for moving, together in groupby(every, key=lambda effect: isinstance(effect, _MOVING)):
        with contextlib.nullcontext() if moving else directories.keeping_open():
            for effect in together:
                _apply_files(effect, directories, undo)


def _apply_files(effect: Effect, directories: Directories, undo: Undo) -> None:
    match effect:
        case effects.Project():
            projections.link(effect, directories, undo)
        case effects.AddContent():
            content.place(effect, directories, undo)
        case effects.Unproject():
            projections.unlink(effect, directories, undo)
        case effects.DropContent():
            content.remove(effect, directories, undo)
        case effects.CreateFolder():
            folders.make(effect, directories, undo)
        case effects.RenameFolder():
            folders.rename(effect, directories, undo)
        case effects.RemoveFolder():
            folders.remove(effect, directories, undo)
        case effects.SetRegistration():
            folders.move_mailbox(effect, directories, undo)
        case (
            effects.SetFlags()
            | effects.Subscribe()
            | effects.RaiseUidFloor()
            | effects.Enqueue()
            | effects.Requeue()
            | effects.Dequeue()
            | effects.SetBookmarks()
            | effects.RequestDsn()
            | effects.MarkDamaged()
            | effects.ClearDamage()
            | effects.MarkLost()
            | effects.RestoreLost()
        ):
            pass  # rows of the index only
        case _:
            assert_never(effect)


def apply_index(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    """Change the index inside the caller's transaction; ``at`` is the record's time in microseconds."""
    match effect:
        case effects.Project():
            projection_rows.project(connection, effect)
        case effects.AddContent():
            content_rows.add_content(connection, effect)
        case effects.SetFlags():
            projection_rows.set_flags(connection, effect)
        case effects.Unproject():
            projection_rows.unproject(connection, effect, at // 1_000_000)
        case effects.DropContent():
            content_rows.drop_content(connection, effect)
        case effects.Enqueue():
            outbox.enqueue(connection, effect)
        case effects.Requeue():
            outbox.requeue(connection, effect)
        case effects.Dequeue():
            outbox.dequeue(connection, effect, at // 1_000_000)
        case effects.SetBookmarks():
            bookmarks.set_bookmarks(connection, effect)
        case effects.RequestDsn():
            outbox.request_dsn(connection, (effect,))
        case effects.CreateFolder():
            folder_rows.create_folder(connection, effect)
        case effects.RenameFolder():
            folder_rows.rename_folder(connection, effect)
        case effects.RemoveFolder():
            folder_rows.remove_folder(connection, effect)
        case effects.Subscribe():
            folder_rows.subscribe(connection, effect)
        case effects.RaiseUidFloor():
            folder_rows.raise_uid_floor(connection, effect)
        case effects.SetRegistration():
            folder_rows.set_registration(connection, effect, at // 1_000_000)
        case effects.MarkDamaged():
            content_rows.mark_damaged(connection, effect)
        case effects.ClearDamage():
            content_rows.clear_damage(connection, effect)
        case effects.MarkLost():
            content_rows.mark_lost(connection, effect)
        case effects.RestoreLost():
            content_rows.restore_lost(connection, effect)
        case _:
            assert_never(effect)
