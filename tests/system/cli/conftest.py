"""The commands of a new store, and a store to export."""

from tests.support.mail.api_stores import exchange_root
from tests.support.mail.command_line import cli

__all__ = ["cli", "exchange_root"]
