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
from adapter.transport.apply import (
    bookmarks,
    content,
    damage,
    dsn_requests,
    folders,
    outbox,
    projections,
    registrations,
    state,
)
from adapter.transport.apply.undo import Undo

#: Those that make, rename or remove directories. What comes between them opens each directory once.
_MOVING = (effects.CreateFolder, effects.RenameFolder, effects.RemoveFolder, effects.SetRegistration)


def apply_files(records: Iterable[Record], directories: Directories, undo: Undo) -> None:
    """Change the files; what was done is noted in ``undo`` step by step."""
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
            registrations.move_directory(effect, directories, undo)
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
            projections.index(effect, connection)
        case effects.AddContent():
            content.index(effect, connection)
        case effects.SetFlags():
            state.index(effect, connection)
        case effects.Unproject():
            projections.index_removal(effect, connection, at)
        case effects.DropContent():
            content.drop_rows(effect, connection)
        case effects.Enqueue():
            outbox.index(effect, connection)
        case effects.Requeue():
            outbox.index_update(effect, connection)
        case effects.Dequeue():
            outbox.index_removal(effect, connection, at)
        case effects.SetBookmarks():
            bookmarks.index(effect, connection)
        case effects.RequestDsn():
            dsn_requests.index(effect, connection)
        case effects.CreateFolder():
            folders.index(effect, connection)
        case effects.RenameFolder():
            folders.index_rename(effect, connection)
        case effects.RemoveFolder():
            folders.index_removal(effect, connection)
        case effects.Subscribe():
            folders.index_subscription(effect, connection)
        case effects.RaiseUidFloor():
            folders.index_uid_floor(effect, connection)
        case effects.SetRegistration():
            registrations.index(effect, connection, at)
        case effects.MarkDamaged():
            damage.index(effect, connection)
        case effects.ClearDamage():
            damage.index_healing(effect, connection)
        case effects.MarkLost():
            damage.index_loss(effect, connection)
        case effects.RestoreLost():
            damage.index_restoration(effect, connection)
        case _:
            assert_never(effect)
