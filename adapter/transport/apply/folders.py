"""Folders: a directory with its identity file, and a row. Subscriptions go with them."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from functools import partial

from adapter.store import disk, folder_identity, layout, names, quarantine, store_id
from adapter.store.disk import Directories
from adapter.store.effects import CreateFolder, RemoveFolder, RenameFolder, SetRegistration
from adapter.transport.apply.undo import Undo

_log = logging.getLogger(__name__)


def make(effect: CreateFolder, directories: Directories, undo: Undo) -> None:
    with directories.open(layout.mailbox_directory(effect.directory), create=True) as parent:
        entry = names.folder_entry(effect.name)
        set_aside_stray(directories, effect.directory, effect.name)
        disk.make_directory(parent, entry)
        undo.add(partial(_remove, directories, effect.directory, effect.name))
    identify(effect, directories)


def identify(effect: CreateFolder, directories: Directories, uidnext: int = 1) -> None:
    """Write the identity file (and the full name, where the directory's name is shortened)."""
    with directories.open(layout.folder_directory(effect.directory, effect.name)) as directory:
        if not disk.exists(directory, layout.IDENTITY_FILE):
            identity = folder_identity.Identity(
                store_id.read(directories) or "",
                effect.folder,
                effect.registration,
                effect.uidvalidity,
                effect.special_use,
                folder_identity.mark(uidnext),
            )
            disk.write_new(directory, layout.IDENTITY_FILE, identity.encode())
        _write_full_name(directory, effect.name)


def raise_mark(directories: Directories, parts: layout.Parts, folder: int, mark: int) -> None:
    """Raise the high-water mark of a folder's UIDs; never lowers it, so there is no way back.

    Not synced: the journal holds the record that raises it. A file that is damaged, or another folder's, is left to
    repair: the index knows UIDNEXT, and mail goes on.
    """
    with directories.open(parts) as directory:
        try:
            identity = folder_identity.decode(disk.read_file(directory, layout.IDENTITY_FILE))
        except OSError:
            identity = None
        if identity is None or identity.folder != folder:
            where = layout.absolute(*parts, layout.IDENTITY_FILE)
            _log.error("%s: not the identity of the folder, UID mark not raised; run markpost repair", where)
        elif identity.uids_below < mark:
            new = f"{layout.IDENTITY_FILE}.new"
            if disk.exists(directory, new):  # of a process that died
                disk.unlink(directory, new)
            try:
                disk.write_new(directory, new, replace(identity, uids_below=mark).encode())
                disk.rename(directory, new, directory, layout.IDENTITY_FILE)
            except OSError:
                with contextlib.suppress(OSError):
                    disk.unlink(directory, new)
                raise


def rename(effect: RenameFolder, directories: Directories, undo: Undo) -> None:
    set_aside_stray(directories, effect.directory, effect.new_name)
    _rename(directories, effect.directory, effect.name, effect.new_name)
    # Noted before the full name is written: that may fail, and the directory has its new name already.
    undo.add(partial(_rename_back, directories, effect.directory, effect.new_name, effect.name))
    _write_full_name_in(directories, effect.directory, effect.new_name)


def _rename(directories: Directories, where: str, old: str, new: str) -> None:
    with directories.open(layout.mailbox_directory(where)) as parent:
        disk.rename(parent, names.folder_entry(old), parent, names.folder_entry(new))


def _rename_back(directories: Directories, where: str, old: str, new: str) -> None:
    _rename(directories, where, old, new)
    _write_full_name_in(directories, where, new)


def _write_full_name_in(directories: Directories, where: str, name: str) -> None:
    with directories.open(layout.folder_directory(where, name)) as directory:
        _write_full_name(directory, name)


def _write_full_name(directory: int, name: str) -> None:
    """Not synced, and not in one step: recovery writes it again."""
    new = name.encode() if names.is_shortened(names.folder_entry(name)) else None
    try:
        old = disk.read_file(directory, layout.FULL_NAME_FILE)
    except FileNotFoundError:
        old = None
    if old != new:
        if old is not None:
            disk.unlink(directory, layout.FULL_NAME_FILE)
        if new is not None:
            disk.write_new(directory, layout.FULL_NAME_FILE, new)


def remove(effect: RemoveFolder, directories: Directories, undo: Undo) -> None:
    parts = layout.folder_directory(effect.directory, effect.name)
    identity_file = b""
    with contextlib.suppress(FileNotFoundError), directories.open(parts) as directory:  # else it need not go
        identity_file = disk.read_file(directory, layout.IDENTITY_FILE)

    def back() -> None:
        with directories.open(parts, create=True) as directory:
            if identity_file and not disk.exists(directory, layout.IDENTITY_FILE):
                disk.write_new(directory, layout.IDENTITY_FILE, identity_file)
            _write_full_name(directory, effect.name)

    undo.add(back)  # before: it may fail half-way
    _remove(directories, effect.directory, effect.name)


def _remove(directories: Directories, where: str, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        with directories.open(layout.folder_directory(where, name)) as directory:
            for own in (layout.IDENTITY_FILE, layout.FULL_NAME_FILE):
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(directory, own)
        set_aside_stray(directories, where, name)


def set_aside_stray(directories: Directories, where: str, name: str) -> None:
    """Free a folder's path: an empty directory is removed, one with files of others goes to quarantine."""
    entry = names.folder_entry(name)
    with directories.open(layout.mailbox_directory(where)) as parent:
        if not disk.exists(parent, entry):
            return
        try:
            disk.remove_directory(parent, entry)
        except OSError:
            quarantine.set_aside(directories, parent, entry)


# --- mailboxes -------------------------------------------------------------------------------------------------------


def move_mailbox(effect: SetRegistration, directories: Directories, undo: Undo) -> None:
    if effect.status == "purged":
        set_aside_mailbox(directories, effect.directory)
    elif effect.moved_from is not None:
        _rename_mailbox(directories, effect.moved_from, effect.directory)
        undo.add(partial(_rename_mailbox, directories, effect.directory, effect.moved_from))
    else:
        with directories.open(layout.MAILBOXES) as mailboxes:
            if not disk.exists(mailboxes, effect.directory):
                disk.make_directory(mailboxes, effect.directory)
                undo.add(partial(set_aside_mailbox, directories, effect.directory))


def _rename_mailbox(directories: Directories, old: str, new: str) -> None:
    with directories.open(layout.MAILBOXES) as mailboxes:
        disk.rename(mailboxes, old, mailboxes, new)


def set_aside_mailbox(directories: Directories, entry: str) -> None:
    """Remove an emptied mailbox directory; what others put into it goes to quarantine."""
    with directories.open(layout.MAILBOXES) as mailboxes, contextlib.suppress(FileNotFoundError):
        try:
            disk.remove_directory(mailboxes, entry)
        except FileNotFoundError:
            raise
        except OSError:
            quarantine.set_aside(directories, mailboxes, entry)
