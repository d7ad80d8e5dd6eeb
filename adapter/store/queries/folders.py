"""Rows of folders and registrations: their changes, and what recovery compares with the directories."""

from __future__ import annotations

import sqlite3

from adapter.store.effects import CreateFolder, RaiseUidFloor, RemoveFolder, RenameFolder, SetRegistration, Subscribe

_RAISE_UIDVALIDITY = "UPDATE meta SET value = max(value, ?) WHERE key = 'last_uidvalidity'"


def create_folder(connection: sqlite3.Connection, effect: CreateFolder) -> None:
    connection.execute(
        "INSERT INTO folders (folder_id, registration_id, name, special_use, uidvalidity, uidnext, highestmodseq)"
        " VALUES (?, ?, ?, ?, ?, 1, 1)",
        (effect.folder, effect.registration, effect.name, effect.special_use, effect.uidvalidity),
    )
    connection.execute(_RAISE_UIDVALIDITY, (effect.uidvalidity,))


def raise_uid_floor(connection: sqlite3.Connection, effect: RaiseUidFloor) -> None:
    connection.execute(
        "UPDATE folders SET uidnext = max(uidnext, ?), uidvalidity = coalesce(?, uidvalidity) WHERE folder_id = ?",
        (effect.uidnext, effect.uidvalidity, effect.folder),
    )
    if effect.uidvalidity is not None:
        connection.execute(_RAISE_UIDVALIDITY, (effect.uidvalidity,))


def last_uidvalidity(connection: sqlite3.Connection) -> int:
    """The greatest UIDVALIDITY that was ever assigned."""
    return int(connection.execute("SELECT value FROM meta WHERE key = 'last_uidvalidity'").fetchone()[0])


def rename_folder(connection: sqlite3.Connection, effect: RenameFolder) -> None:
    connection.execute("UPDATE folders SET name = ? WHERE folder_id = ?", (effect.new_name, effect.folder))


def remove_folder(connection: sqlite3.Connection, effect: RemoveFolder) -> None:
    connection.execute("DELETE FROM folders WHERE folder_id = ?", (effect.folder,))
    connection.execute("DELETE FROM expunged WHERE folder_id = ?", (effect.folder,))


def subscribe(connection: sqlite3.Connection, effect: Subscribe) -> None:
    sql = (
        "INSERT OR IGNORE INTO subscriptions VALUES (?, ?)"
        if effect.on
        else "DELETE FROM subscriptions WHERE registration_id = ? AND name = ?"
    )
    connection.execute(sql, (effect.registration, effect.name))


def set_registration(connection: sqlite3.Connection, effect: SetRegistration, now: int) -> None:
    """``now`` is in seconds."""
    connection.execute(
        "INSERT INTO mailbox_registrations VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " status = excluded.status, directory = excluded.directory, changed_at = excluded.changed_at",
        (effect.registration, effect.address, effect.status, effect.directory, now, now),
    )
    if effect.status == "purged":
        connection.execute("DELETE FROM subscriptions WHERE registration_id = ?", (effect.registration,))


# --- for recovery ----------------------------------------------------------------------------------------------------


def mailbox_directories(connection: sqlite3.Connection) -> list[str]:
    """The directories of all mailboxes that were not purged."""
    rows = connection.execute("SELECT DISTINCT directory FROM mailbox_registrations WHERE status <> 'purged'")
    return [row[0] for row in rows.fetchall()]


def folder_ids(connection: sqlite3.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT folder_id FROM folders").fetchall()]


def is_folder(connection: sqlite3.Connection, directory: str, name: str) -> bool:
    """True if a mailbox, given by its directory, has a folder of this name."""
    row = connection.execute(
        "SELECT 1 FROM folders f JOIN mailbox_registrations r USING (registration_id)"
        " WHERE r.directory = ? AND f.name = ?",
        (directory, name),
    ).fetchone()
    return row is not None


def mailbox_of(connection: sqlite3.Connection, registration: str) -> tuple[str, str] | None:
    """Directory and status of a registration."""
    row: tuple[str, str] | None = connection.execute(
        "SELECT directory, status FROM mailbox_registrations WHERE registration_id = ?", (registration,)
    ).fetchone()
    return row


def purged_directory(connection: sqlite3.Connection, registration: str) -> str | None:
    """The directory of a registration that was purged, unless another one uses it."""
    row = connection.execute(
        "SELECT directory FROM mailbox_registrations p WHERE registration_id = ? AND status = 'purged' AND NOT EXISTS"
        " (SELECT 1 FROM mailbox_registrations r WHERE r.directory = p.directory AND r.status <> 'purged')",
        (registration,),
    ).fetchone()
    return row[0] if row else None


def projections(connection: sqlite3.Connection, folder_id: int) -> list[tuple[int, str]]:
    """UID and message id of everything that a folder shows."""
    sql = "SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?"
    return connection.execute(sql, (folder_id,)).fetchall()
