"""Which content is not what it was, by the index that lies beside it and by the names of attachments."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from urllib.parse import quote

from adapter.backup.content_tree import walk
from adapter.store import disk, layout
from adapter.store.disk import Directories


def changed(directories: Directories) -> list[str]:
    """Paths below the root."""
    messages = _messages(directories)
    if messages is None:
        return [layout.INDEX_FILE]
    return [
        os.path.join(*entry.parts, entry.name)
        for top, wanted in ((layout.MESSAGES, messages), (layout.ATTACHMENTS, {}))
        for entry in walk(directories, top)
        if entry.kind == "file" and _digest(directories, entry.parts, entry.name) != wanted.get(entry.name, entry.name)
    ]


def _messages(directories: Directories) -> dict[str, str] | None:
    """The digests of message files by their names; None if the index cannot be read."""
    path = quote(layout.absolute(directories.root, layout.INDEX_FILE))
    try:
        # Nobody else uses it, and reading leaves nothing beside it.
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as index:
            rows = index.execute(
                "SELECT m.message_id, coalesce(d.found, m.file_sha256) FROM messages m"
                " LEFT JOIN damaged_parts d ON d.message_id = m.message_id AND d.part = '' WHERE m.file_sha256 <> ''"
            ).fetchall()
    except sqlite3.Error:
        return None
    return {layout.message_name(message_id): sha256 for message_id, sha256 in rows}


def _digest(directories: Directories, parts: layout.Parts, name: str) -> str:
    with directories.open(parts) as directory, open(disk.open_read(directory, name), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
