"""Effects: the primitive changes an operation is made of.

A journal record carries a list of effects; each is a JSON object whose ``do`` names its kind. Every kind says two
things here: what it does to the files (live, with a way back) and what it does to the index (live, in recovery and in a
rebuild). Both are complete in themselves: they need nothing but the effect and the state the records before it led to.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from itertools import groupby

from adapter.store.disk import Directories
from adapter.store.journal import Effect, Record
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

_FILES: dict[str, Callable[[Effect, Directories, Undo], None]] = {
    "content": content.place,
    "drop": content.remove,
    "project": projections.link,
    "unproject": projections.unlink,
    "folder": folders.make,
    "rename-folder": folders.rename,
    "remove-folder": folders.remove,
    "registration": registrations.move_directory,
}
_INDEX: dict[str, Callable[[Effect, sqlite3.Connection, int], None]] = {
    "content": content.index,
    "drop": content.drop_rows,
    "project": projections.index,
    "unproject": projections.index_removal,
    "flags": state.index,
    "folder": folders.index,
    "rename-folder": folders.index_rename,
    "remove-folder": folders.index_removal,
    "subscribe": folders.index_subscription,
    "uid-floor": folders.index_uid_floor,
    "registration": registrations.index,
    "enqueue": outbox.index,
    "queue-update": outbox.index_update,
    "dequeue": outbox.index_removal,
    "bookmark": bookmarks.index,
    "dsn-request": dsn_requests.index,
    "damage": damage.index,
    "heal": damage.index_healing,
    "lose": damage.index_loss,
    "return": damage.index_restoration,
}


#: Those that make, rename or remove directories. What comes between them opens each directory once.
_MOVING = frozenset({"folder", "rename-folder", "remove-folder", "registration"})


def apply_files(records: Iterable[Record], directories: Directories, undo: Undo) -> None:
    """Change the files; what was done is noted in ``undo`` step by step."""
    every = [effect for record in records for effect in record.effects]
    for moving, together in groupby(every, key=lambda effect: effect["do"] in _MOVING):
        with contextlib.nullcontext() if moving else directories.keeping_open():
            for effect in together:
                handler = _FILES.get(effect["do"])
                if handler is not None:
                    handler(effect, directories, undo)


def apply_index(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    """Change the index inside the caller's transaction; ``at`` is the record's time in microseconds."""
    _INDEX[effect["do"]](effect, connection, at)
