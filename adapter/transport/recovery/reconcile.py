"""Reconcile folder directories with the index, whatever half-done state they are in.

Used when records are rolled forward: some of their renames, links and removals may already be on disk, in any
combination. A folder's directory is recognised by its identity file, at any path within its account.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from adapter.store import disk, effects, folder_identity, layout, names, quarantine
from adapter.store.disk import Directories
from adapter.store.effects import Effect
from adapter.store.queries import folders as rows
from adapter.store.queries import mailboxes as queries
from adapter.store.queries.mailboxes import Folder
from adapter.transport.apply import folders as folder_files

_log = logging.getLogger(__name__)


_FolderEffect = effects.Project | effects.Unproject | effects.CreateFolder | effects.RenameFolder | effects.RemoveFolder


@dataclass(slots=True)
class Touched:
    """Folders and mailboxes that a run of records may have half-changed on disk."""

    folders: dict[int, set[tuple[str, str]]] = field(default_factory=dict)  # id -> (mailbox, name) it had
    mailboxes: dict[str, set[str]] = field(default_factory=dict)  # registration -> directories it had
    places: dict[str, set[tuple[str, str]]] = field(default_factory=dict)  # registration -> those of its folders

    def add(self, effect: Effect) -> None:
        match effect:
            case effects.SetRegistration():
                seen = self.mailboxes.setdefault(effect.registration, set())
                seen.update(entry for entry in (effect.directory, effect.moved_from) if entry)
            case effects.RenameFolder():
                self._add_folder(effect, effect.name, effect.new_name)
            case effects.Project() | effects.Unproject() | effects.CreateFolder() | effects.RemoveFolder():
                self._add_folder(effect, effect.name)
            case (
                effects.AddContent()
                | effects.DropContent()
                | effects.SetFlags()
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
                pass  # no directory
            case _:
                assert_never(effect)

    def _add_folder(self, effect: _FolderEffect, *names: str) -> None:
        places = {(effect.directory, name) for name in names}
        self.folders.setdefault(effect.folder, set()).update(places)
        self.places.setdefault(effect.registration, set()).update(places)


def reconcile(
    directories: Directories, connection: sqlite3.Connection, touched: Touched, *, rewrite: bool = False
) -> None:
    """``rewrite``: the files of a folder cannot be trusted and are written again."""
    for registration, entries in touched.mailboxes.items():  # first: they may lie where others belong
        if rows.mailbox_of(connection, registration) is None:
            _remove_unknown_mailbox(directories, registration, entries, touched.places.get(registration, set()))
    for registration, entries in touched.mailboxes.items():
        _place_mailbox(directories, connection, registration, entries)
    aside = _left_aside(directories)
    folders = {folder_id: queries.folder_by_id(connection, folder_id) for folder_id in (*touched.folders, *aside)}
    mailboxes = {entry for places in touched.folders.values() for entry, _ in places}
    mailboxes |= {folder.directory for folder in folders.values() if folder is not None}
    present = _identities(directories, mailboxes)
    # Out of the way first: names swapped by renames would collide otherwise.
    aside |= {
        folder_id: _set_aside(directories, place)
        for folder_id, place in present.items()
        if folder_id in folders and not _is_at(folders[folder_id], place)
    }
    for folder_id, folder in folders.items():
        if folder is not None:
            with _passing_strangers_by():
                if folder_id in aside:
                    _bring_back(directories, aside.pop(folder_id), folder)
                _reconcile_folder(directories, connection, folder, rewrite=rewrite)
    for entry in aside.values():
        _remove_own_files(directories, (*layout.STAGING, entry))
    # Last, what a folder leaves behind that has already lost its identity file, and mailboxes that are empty by now.
    for mailbox, name in sorted({place for places in touched.folders.values() for place in places}):
        if not rows.is_folder(connection, mailbox, name):
            with _passing_strangers_by():
                _remove_own_files(directories, layout.folder_directory(mailbox, name))
    for registration in touched.mailboxes:
        _remove_purged_mailbox(directories, connection, registration)


def lay_out(directories: Directories, connection: sqlite3.Connection) -> None:
    """Make all mailboxes with their folders and links, where there are none yet."""
    for entry in rows.mailbox_directories(connection):
        with directories.open(layout.mailbox_directory(entry), create=True):
            pass
    for folder_id in rows.folder_ids(connection):
        folder = queries.folder_by_id(connection, folder_id)
        if folder is not None:
            _reconcile_folder(directories, connection, folder)


@contextlib.contextmanager
def _passing_strangers_by() -> Iterator[None]:
    """Skip a folder if a link or a file is in the place of its directory; ``markpost repair`` handles that."""
    try:
        yield
    except NotADirectoryError as error:
        _log.error("%s is not a directory: run markpost repair", error.filename)


def _remove_unknown_mailbox(
    directories: Directories, registration: str, entries: set[str], places: set[tuple[str, str]]
) -> None:
    """Undo an aborted registration: remove its folders, and the mailbox unless it holds something else."""
    for mailbox in sorted(entries):
        identities = _identities_in(directories, mailbox)
        for name in sorted(name for where, name in places if where == mailbox):
            identity = identities.get(names.folder_entry(name))
            if identity is None or identity.registration == registration:  # not of another registration
                _remove_own_files(directories, layout.folder_directory(mailbox, name))
        with contextlib.suppress(OSError), directories.open(layout.MAILBOXES) as mailboxes:
            disk.remove_directory(mailboxes, mailbox)


def _remove_purged_mailbox(directories: Directories, connection: sqlite3.Connection, registration: str) -> None:
    purged = rows.purged_directory(connection, registration)
    if purged is not None:
        folder_files.set_aside_mailbox(directories, purged)


def _place_mailbox(
    directories: Directories, connection: sqlite3.Connection, registration: str, entries: set[str]
) -> None:
    mailbox = rows.mailbox_of(connection, registration)
    if mailbox is None:
        return
    place, status = mailbox
    with directories.open(layout.MAILBOXES) as mailboxes:
        for entry in sorted(entries - {place}):
            moved = disk.exists(mailboxes, entry) and not disk.exists(mailboxes, place)
            if moved and registration in {
                identity.registration for identity in _identities_in(directories, entry).values()
            }:
                disk.rename(mailboxes, entry, mailboxes, place)
        if status != "purged" and not disk.exists(mailboxes, place):
            disk.make_directory(mailboxes, place)


def _identities_in(directories: Directories, mailbox: str) -> dict[str, folder_identity.Identity]:
    """Directory name -> identity, for every folder directory of a mailbox that has one."""
    identities = {}
    try:
        with directories.open(layout.mailbox_directory(mailbox)) as parent:
            entries = [entry.name for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    for entry in entries:
        with (
            contextlib.suppress(OSError),
            directories.open((*layout.mailbox_directory(mailbox), entry)) as directory,
        ):
            identity = folder_identity.decode(disk.read_file(directory, layout.IDENTITY_FILE))
            if identity is not None:
                identities[entry] = identity
    return identities


def _identities(directories: Directories, mailboxes: set[str]) -> dict[int, tuple[str, str]]:
    """Folder id -> (mailbox, directory name)."""
    return {
        identity.folder: (mailbox, entry)
        for mailbox in mailboxes
        for entry, identity in _identities_in(directories, mailbox).items()
    }


def _is_at(folder: Folder | None, place: tuple[str, str]) -> bool:
    return folder is not None and place == (folder.directory, names.folder_entry(folder.name))


def _left_aside(directories: Directories) -> dict[int, str]:
    """Folder id -> name in staging, of what a recovery that was cut short had set aside."""
    entries_by_folder = {}
    with directories.open(layout.STAGING) as staging:
        entries = [name for name in os.listdir(staging) if name.startswith(layout.SET_ASIDE)]
    for entry in entries:
        with contextlib.suppress(OSError), directories.open((*layout.STAGING, entry)) as directory:
            identity = folder_identity.decode(disk.read_file(directory, layout.IDENTITY_FILE))
            if identity is not None:
                entries_by_folder[identity.folder] = entry
                continue
        _remove_own_files(directories, (*layout.STAGING, entry))
    return entries_by_folder


def _set_aside(directories: Directories, place: tuple[str, str]) -> str:
    name = f"{layout.SET_ASIDE}{os.urandom(6).hex()}"
    with (
        directories.open(layout.mailbox_directory(place[0])) as parent,
        directories.open(layout.STAGING) as staging,
    ):
        disk.rename(parent, place[1], staging, name)
    return name


def _bring_back(directories: Directories, aside: str, folder: Folder) -> None:
    folder_files.set_aside_stray(directories, folder.directory, folder.name)
    mailbox = layout.mailbox_directory(folder.directory)
    with directories.open(mailbox, create=True) as parent, directories.open(layout.STAGING) as staging:
        disk.rename(staging, aside, parent, names.folder_entry(folder.name))


def _reconcile_folder(
    directories: Directories, connection: sqlite3.Connection, folder: Folder, *, rewrite: bool = False
) -> None:
    parts = layout.folder_directory(folder.directory, folder.name)
    shown = rows.projections(connection, folder.id)
    links = {layout.projection_name(uid, message_id): message_id for uid, message_id in shown}
    with directories.open(parts, create=True) as directory:
        there = {name for name in os.listdir(directory) if layout.PROJECTION.match(name)}
        for name in sorted(there - links.keys()):
            disk.unlink(directory, name)
        for name in sorted(links.keys() - there):
            disk.symlink(directory, name, layout.projection_target(links[name]))
        doubtful = [layout.IDENTITY_FILE, layout.FULL_NAME_FILE] if rewrite else []
        mark = folder_identity.mark(folder.uidnext)
        if not rewrite and not _has_identity(directory, folder, mark):
            doubtful = [layout.IDENTITY_FILE]
        if disk.exists(directory, f"{layout.IDENTITY_FILE}.new"):
            doubtful.append(f"{layout.IDENTITY_FILE}.new")
        for name in doubtful:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(directory, name)
    folder_files.identify(effects.CreateFolder.of(folder), directories, folder.uidnext)


def _has_identity(directory: int, folder: Folder, mark: int) -> bool:
    try:
        identity = folder_identity.decode(disk.read_file(directory, layout.IDENTITY_FILE))
    except OSError:
        return False
    return identity is not None and identity.folder == folder.id and identity.uids_below >= mark


def _remove_own_files(directories: Directories, parts: layout.Parts) -> None:
    """Remove the directory of a folder that is gone; what others put into it goes to quarantine."""
    try:
        with directories.open(parts) as directory:
            # The identity last: until then a recovery that is cut short knows the directory again.
            ours = [name for name in os.listdir(directory) if layout.PROJECTION.match(name)]
            if disk.exists(directory, f"{layout.IDENTITY_FILE}.new"):
                ours.append(f"{layout.IDENTITY_FILE}.new")
            for name in (*ours, layout.FULL_NAME_FILE, layout.IDENTITY_FILE):
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(directory, name)
    except FileNotFoundError:
        return
    with directories.open(parts[:-1]) as parent:
        try:
            disk.remove_directory(parent, parts[-1])
        except OSError:
            quarantine.set_aside(directories, parent, parts[-1])
