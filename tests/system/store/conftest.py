"""The directories of a new store, its journal, its index and its locks."""

from tests.support.store.journals import directories, written
from tests.support.store.locking import held, lock_directories
from tests.support.store.tables import index_directories, opened

__all__ = ["directories", "held", "index_directories", "lock_directories", "opened", "written"]
