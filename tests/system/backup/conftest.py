"""The store to be backed up."""

from tests.support.store.backups import root

__all__ = ["root"]
