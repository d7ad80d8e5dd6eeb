"""Copy the index for maintenance, and check its integrity, its store id and its history."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adapter.maintenance.expected import tables


class IndexCopy(NamedTuple):
    """The state of the index as a whole."""

    applied: int  # last applied record; 0 for an index of another store
    kind: str = ""  # kind of the finding, or ""
    detail: str = ""
    problem: str = ""  # why it cannot be compared with the tables, or ""


def take(root: str, copy: str, store: str, durable: int, checksum_at: Callable[[int], str | None]) -> IndexCopy:
    """Copy the index of the store with this id, and check it.

    ``durable``: the record of the checkpoint, which the index must contain. ``checksum_at``: returns the checksum of a
    journal record, or None. A diverged index is readable; the caller decides whether it wins.
    """
    problem = tables.copy_index(root, copy)
    index_store = tables.store_of(copy)
    applied, checksum = tables.applied(copy)
    if problem == "missing":
        return IndexCopy(0, "index-missing", problem, problem)
    if index_store and index_store != store:
        problem = f"belongs to store {index_store}"
        return IndexCopy(0, "index-foreign", problem, problem)
    if problem:
        kind = "index-schema-wrong" if tables.has_foreign_schema(problem) else "index-unreadable"
        return IndexCopy(applied, kind, problem, problem)
    if (journaled := checksum_at(applied)) not in (None, checksum):
        detail = f"record {applied} has checksum {checksum} in the index, but {journaled} in the journal"
        return IndexCopy(applied, "index-diverged", detail)
    if applied < durable:
        problem = f"ends with record {applied}, but the checkpoint covers record {durable}"
        return IndexCopy(applied, "index-outdated", problem, problem)
    return IndexCopy(applied)
