"""Registrations: who owns an address now, and the directory the mailbox lies in."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import partial

from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.effects import SetRegistration
from adapter.transport.apply import quarantine
from adapter.transport.apply.undo import Undo


def move_directory(effect: SetRegistration, directories: Directories, undo: Undo) -> None:
    if effect.status == "purged":
        set_aside(directories, effect.directory)
    elif effect.moved_from is not None:
        _rename(directories, effect.moved_from, effect.directory)
        undo.add(partial(_rename, directories, effect.directory, effect.moved_from))
    else:
        with directories.open(layout.MAILBOXES) as mailboxes:
            if not disk.exists(mailboxes, effect.directory):
                disk.make_directory(mailboxes, effect.directory)
                undo.add(partial(set_aside, directories, effect.directory))


def _rename(directories: Directories, old: str, new: str) -> None:
    with directories.open(layout.MAILBOXES) as mailboxes:
        disk.rename(mailboxes, old, mailboxes, new)


def set_aside(directories: Directories, entry: str) -> None:
    """Remove an emptied mailbox directory; what others put into it goes to quarantine."""
    with directories.open(layout.MAILBOXES) as mailboxes, contextlib.suppress(FileNotFoundError):
        try:
            disk.remove_directory(mailboxes, entry)
        except FileNotFoundError:
            raise
        except OSError:
            quarantine.set_aside(directories, mailboxes, entry)


def index(effect: SetRegistration, connection: sqlite3.Connection, at: int) -> None:
    seconds = at // 1_000_000
    connection.execute(
        "INSERT INTO mailbox_registrations VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " status = excluded.status, directory = excluded.directory, changed_at = excluded.changed_at",
        (effect.registration, effect.address, effect.status, effect.directory, seconds, seconds),
    )
    if effect.status == "purged":
        connection.execute("DELETE FROM subscriptions WHERE registration_id = ?", (effect.registration,))
