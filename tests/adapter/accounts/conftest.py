"""The credentials of an empty store."""

from tests.support.passwords import credentials

__all__ = ["credentials"]
