"""Registrations: who owns an address now, and the directory the mailbox lies in."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import partial

from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.journal import Effect
from adapter.transport.apply import quarantine
from adapter.transport.apply.undo import Undo


def effect(registration: str, address: str, status: str, directory: str, *, moved_from: str | None = None) -> Effect:
    """``moved_from`` names the mailbox's directory until now, when a stash or a return from one moves it."""
    return {
        "do": "registration",
        "registration": registration,
        "address": address,
        "status": status,
        "in": directory,
        "from": moved_from,
    }


def move_directory(effect: Effect, directories: Directories, undo: Undo) -> None:
    if effect["status"] == "purged":
        set_aside(directories, effect["in"])
    elif effect["from"] is not None:
        _rename(directories, effect["from"], effect["in"])
        undo.add(partial(_rename, directories, effect["in"], effect["from"]))
    else:
        with directories.open(layout.MAILBOXES) as mailboxes:
            if not disk.exists(mailboxes, effect["in"]):
                disk.make_directory(mailboxes, effect["in"])
                undo.add(partial(set_aside, directories, effect["in"]))


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


def index(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    connection.execute(
        "INSERT INTO mailbox_registrations VALUES (:registration, :address, :status, :in, :at, :at)"
        " ON CONFLICT DO UPDATE SET status = :status, directory = :in, changed_at = :at",
        {**effect, "at": at // 1_000_000},
    )
    if effect["status"] == "purged":
        connection.execute("DELETE FROM subscriptions WHERE registration_id = ?", (effect["registration"],))
