"""A store that the Python API opened, and mailboxes of it."""

from tests.support.mail.api_stores import ada, bob, store

__all__ = ["ada", "bob", "store"]
