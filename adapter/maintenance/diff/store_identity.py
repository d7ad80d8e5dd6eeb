"""Determine the store id from all files that carry it: the file in the root, index, journal, snapshots, folders.

The file in the root wins if another kind of file confirms it or none contradicts it. If it is lost or damaged, the
majority of the other kinds decides. If all other kinds agree on a different id, the file in the root is wrong.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from adapter.maintenance.expected import tables
from adapter.maintenance.expected.journal_segments import header_of
from adapter.maintenance.findings import unreadable_cause
from adapter.store import disk, folder_identity, index, layout, snapshots, store_id
from adapter.store.disk import Directories
from adapter.store.journal import Journal

_MAX_FOLDERS = 5000  # folder identities that are read


class StoreIdentity(NamedTuple):
    store: str
    problem: str  # the defect of the file in the root, or ""
    unreadable: str = ""  # why the file in the root cannot be read now


def resolve_store_id(directories: Directories) -> StoreIdentity:
    """Determine the id of the store; a new id if no file carries one."""
    problem, cause = "is missing or damaged", ""
    try:
        root_id = store_id.read(directories)
    except OSError as error:
        root_id, cause = None, unreadable_cause(error)
    others = [most for votes in _state_votes(directories) if (most := _majority(votes))]
    if root_id in others:
        return StoreIdentity(root_id or "", "")
    if most := _majority(_folder_votes(directories)):
        others.insert(0, most)
    if root_id is not None and (root_id in others or len(set(others)) != 1):
        return StoreIdentity(root_id, "")
    if root_id is not None:
        problem = f"contains {root_id}, which no other file of the store has"
    return StoreIdentity(_majority(Counter(others)) or store_id.new(), "" if cause else problem, cause)


def _majority(votes: Counter[str]) -> str:
    """The id with most votes (on a tie the first), or ""."""
    return votes.most_common(1)[0][0] if votes else ""


def _state_votes(directories: Directories) -> Iterator[Counter[str]]:
    """The votes of index, journal and snapshots."""
    yield Counter(_index_id(directories))
    yield Counter(_segment_ids(directories))
    snapshot_ids = (snapshots.store_of(directories, seq) for seq in snapshots.everything(directories))
    yield Counter(store for store in snapshot_ids if store)


def _index_id(directories: Directories) -> Iterator[str]:
    path = layout.absolute(directories.root, layout.INDEX_FILE)
    with contextlib.suppress(sqlite3.Error, OSError):
        if tables.is_file(path):
            with contextlib.closing(tables.connect(path)) as connection:
                store = index.store_of(connection)
                if store_id.FORM.match(store):
                    yield store


def _segment_ids(directories: Directories) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        for first in Journal(directories).segments():
            with contextlib.suppress(OSError):
                if (header := header_of(directories, first)) is not None:
                    yield header.store


def _folder_votes(directories: Directories) -> Counter[str]:
    votes: Counter[str] = Counter()
    for where in _folder_directories(directories):
        with contextlib.suppress(OSError), directories.open(where) as directory:
            identity = folder_identity.decode(disk.read_file(directory, layout.IDENTITY_FILE))
            if identity is not None:
                votes[identity.store] += 1
        if votes.total() >= _MAX_FOLDERS:
            break
    return votes


def _folder_directories(directories: Directories) -> Iterator[layout.Parts]:
    for mailbox in _subdirectories(directories, layout.MAILBOXES):
        for entry in _subdirectories(directories, layout.mailbox_directory(mailbox)):
            yield (*layout.mailbox_directory(mailbox), entry)


def _subdirectories(directories: Directories, where: layout.Parts) -> Iterator[str]:
    with contextlib.suppress(OSError), directories.open(where) as parent, os.scandir(parent) as entries:
        yield from (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
