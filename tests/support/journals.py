"""Records for journals, and what is found of them afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adapter.store import journal
from adapter.store.disk import Directories
from adapter.store.journal import Journal, Record


def record(text: str = "x") -> Record:
    return Record("test", 1_700_000_000_000_000, [{"do": "nothing", "text": text}])


def abort(first: int, last: int) -> Record:
    return Record("abort", 1, [], aborted=(first, last))


def texts(records: Iterator[Record] | list[Record]) -> list[str]:
    return [effect["text"] for found in records for effect in found.effects]


def segment(directories: Directories, first: int = 1) -> Path:
    return Path(directories.root, "journal", f"{first:016d}.jsonl")


def octets(directories: Directories) -> bytes:
    """The records of the segment, without the padding behind them."""
    return segment(directories).read_bytes().rstrip(journal.PADDING)


def reopened(directories: Directories, durable: int = 0) -> Journal:
    fresh = Journal(directories)
    fresh.durable_seq = durable
    fresh.refresh()
    return fresh
