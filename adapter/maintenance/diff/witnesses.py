"""The id of the store under repair, by the files that carry one: the root's, index, journal, snapshots, folders.

The file in the root decides, if any other kind of file confirms it or nothing contradicts it. If it is lost or damaged,
the id is what most kinds of files agree on. If it names an id that no other file has while all others agree, the file
in the root is the one that is wrong.
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
from adapter.maintenance.scan import unreadable
from adapter.store import disk, folder_identity, index, layout, snapshots, store_id
from adapter.store.disk import Directories
from adapter.store.journal import Journal

_MOST_FOLDERS = 5000  # identities of folders that are read


class Verdict(NamedTuple):
    store: str
    problem: str  # what is wrong with the file in the root; empty if nothing is
    unreadable: str = ""  # why the file in the root cannot be read now


def resolve(directories: Directories) -> Verdict:
    """Find out the id of the store; a new one if no file carries any."""
    problem, cause = "is missing or damaged", ""
    try:
        named = store_id.read(directories)
    except OSError as error:
        named, cause = None, unreadable.cause(error)
    others = [most for votes in _state(directories) if (most := _most(votes))]
    if named in others:
        return Verdict(named or "", "")
    if most := _most(_folders(directories)):
        others.insert(0, most)
    if named is not None and (named in others or len(set(others)) != 1):
        return Verdict(named, "")
    if named is not None:
        problem = f"names {named}, which no other file of the store does"
    return Verdict(_most(Counter(others)) or store_id.new(), "" if cause else problem, cause)


def _most(votes: Counter[str]) -> str:
    """The id with most votes, the first of several; empty without any."""
    return votes.most_common(1)[0][0] if votes else ""


def _state(directories: Directories) -> Iterator[Counter[str]]:
    yield Counter(_index(directories))
    yield Counter(_segments(directories))
    written = (snapshots.store_of(directories, seq) for seq in snapshots.everything(directories))
    yield Counter(store for store in written if store)


def _index(directories: Directories) -> Iterator[str]:
    path = layout.absolute(directories.root, layout.INDEX_FILE)
    with contextlib.suppress(sqlite3.Error, OSError):
        if tables.is_file(path):
            with contextlib.closing(tables.connect(path)) as connection:
                store = index.store_of(connection)
                if store_id.FORM.match(store):
                    yield store


def _segments(directories: Directories) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        for first in Journal(directories).segments():
            with contextlib.suppress(OSError):
                if (header := header_of(directories, first)) is not None:
                    yield header.store


def _folders(directories: Directories) -> Counter[str]:
    votes: Counter[str] = Counter()
    for where in _folder_directories(directories):
        with contextlib.suppress(OSError), directories.open(where) as directory:
            known = folder_identity.decode(disk.read_file(directory, layout.IDENTITY_FILE))
            if known is not None:
                votes[known.store] += 1
        if votes.total() >= _MOST_FOLDERS:
            break
    return votes


def _folder_directories(directories: Directories) -> Iterator[layout.Parts]:
    for mailbox in _inside(directories, layout.MAILBOXES):
        for entry in _inside(directories, layout.mailbox_directory(mailbox)):
            yield (*layout.mailbox_directory(mailbox), entry)


def _inside(directories: Directories, where: layout.Parts) -> Iterator[str]:
    with contextlib.suppress(OSError), directories.open(where) as parent, os.scandir(parent) as found:
        yield from (entry.name for entry in found if entry.is_dir(follow_symlinks=False))
