"""Verify a backup before and after it is restored: against its manifest, the index copy and the attachment hashes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from urllib.parse import quote

from adapter.backup.manifest import Manifest, Totals, contents, count, walk
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.queries import contents as content_queries
from protocol.errors import MailError, Reason


def check_complete(backup: Directories, manifest: Manifest) -> Totals:
    """Count the files and links of a backup. Raises MailError if some are missing."""
    totals = count(contents(backup))
    if (totals.files, totals.links) != (manifest.files, manifest.links):
        raise MailError(
            Reason.UNKNOWN,
            f"{backup.root} is incomplete: {totals.files} of {manifest.files} files,"
            f" {totals.links} of {manifest.links} links; nothing is restored, use another backup",
        )
    return totals


def changed_content(directories: Directories) -> list[str]:
    """Return the paths of messages and attachments that differ from the index copy and from their own names."""
    message_digests = _message_digests(directories)
    if message_digests is None:
        return [layout.INDEX_FILE]
    return [
        os.path.join(*entry.parts, entry.name)
        for top, digests in ((layout.MESSAGES, message_digests), (layout.ATTACHMENTS, {}))
        for entry in walk(directories, top)
        if entry.kind == "file" and _digest(directories, entry.parts, entry.name) != digests.get(entry.name, entry.name)
    ]


def _message_digests(directories: Directories) -> dict[str, str] | None:
    """Return the digests of message files by name; None if the index cannot be read."""
    path = quote(layout.absolute(directories.root, layout.INDEX_FILE))
    try:
        # immutable: no other process uses this copy, and SQLite creates no files next to it.
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as index:
            digests = content_queries.file_digests(content_queries.on_connection(index))
    except sqlite3.Error:
        return None
    return {layout.message_name(message_id): sha256 for message_id, sha256 in digests}


def _digest(directories: Directories, parts: layout.Parts, name: str) -> str:
    with directories.open(parts) as directory, open(disk.open_read(directory, name), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
