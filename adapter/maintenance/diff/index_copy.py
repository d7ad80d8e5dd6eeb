"""The copy of the index that maintenance reads: whether it is whole, of this store, and of the journal's history."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adapter.maintenance.expected import tables


class IndexCopy(NamedTuple):
    """What is known of an index as a whole."""

    applied: int  # the record it applied last; 0 if it is another store's
    kind: str = ""  # the finding it is; empty if nothing is wrong
    detail: str = ""
    trouble: str = ""  # why it cannot be compared with the tables; empty if it can


def take(root: str, copy: str, store: str, durable: int, checksum_at: Callable[[int], str | None]) -> IndexCopy:
    """Copy the index of the store with this id.

    ``durable``: the record of the checkpoint, which the index must have. ``checksum_at``: that of a record in the
    journal, None if it is not there. An index of another history can be read: the caller decides what it is worth.
    """
    trouble = tables.copy_index(root, copy)
    found = tables.store_of(copy)
    applied, checksum = tables.applied(copy)
    if trouble == "missing":
        return IndexCopy(0, "index-missing", trouble, trouble)
    if found and found != store:
        trouble = f"belongs to store {found}"
        return IndexCopy(0, "index-foreign", trouble, trouble)
    if trouble:
        kind = "index-schema-wrong" if tables.has_foreign_schema(trouble) else "index-unreadable"
        return IndexCopy(applied, kind, trouble, trouble)
    if (journaled := checksum_at(applied)) not in (None, checksum):
        why = f"record {applied} has the checksum {checksum} in the index, {journaled} in the journal"
        return IndexCopy(applied, "index-diverged", why)
    if applied < durable:
        trouble = f"ends with record {applied}, record {durable} was applied"
        return IndexCopy(applied, "index-outdated", trouble, trouble)
    return IndexCopy(applied)
