"""The directories of a new store, and its journal."""

from tests.support.store.journals import directories, written

__all__ = ["directories", "written"]
