"""A store with two accounts, and a receiver of calls."""

from tests.support.hooks import receiver, transport

__all__ = ["receiver", "transport"]
