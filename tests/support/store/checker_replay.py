"""A new index made from snapshots and journal alone, to compare with the one a store has."""

from __future__ import annotations

import os
import sqlite3

from adapter.store import layout, snapshots
from adapter.store.disk import Directories
from adapter.store.journal import PADDING, Journal, without_aborted
from adapter.transport import apply
from adapter.transport.recovery import rebuild


class Replayer:
    """Remembers what the journals of prepared stores lead to: their copies only add to them."""

    def __init__(self, scratch: str) -> None:
        self._scratch = scratch
        self._indexes: dict[bytes, tuple[int, sqlite3.Connection]] = {}  # journal -> last seq, index

    def remember(self, directories: Directories, journal: Journal) -> None:
        if not snapshots.available(directories):
            self._indexes[_first_segment(directories)] = (journal.last_seq, self._build(directories, journal))

    def replay(self, directories: Directories, journal: Journal) -> sqlite3.Connection:
        data = _first_segment(directories)
        for prefix, (seq, index) in self._indexes.items():
            if data.startswith(prefix) and not snapshots.available(directories):
                copy = sqlite3.connect(":memory:", isolation_level=None)
                index.backup(copy)
                copy.execute("BEGIN")
                for record in without_aborted(journal.records(seq, journal.last_seq)):
                    for effect in record.effects:
                        apply.apply_index(effect, copy, record.at)
                copy.execute("COMMIT")
                return copy
        return self._build(directories, journal)

    def _build(self, directories: Directories, journal: Journal) -> sqlite3.Connection:
        path = f"{self._scratch}/replayed-{os.getpid()}.sqlite"
        if os.path.exists(path):
            os.unlink(path)
        rebuild.build(directories, journal, path)
        return sqlite3.connect(path, isolation_level=None)


def _first_segment(directories: Directories) -> bytes:
    """Its records, without the padding behind them, into which the next ones are written."""
    path = layout.absolute(directories.root, *layout.JOURNAL, layout.journal_segment(1))
    try:
        with open(path, "rb") as file:
            return file.read().rstrip(PADDING)
    except FileNotFoundError:
        return b""
