"""The command handlers, a module for each group of commands. Importing the package checks that none is missing."""

from __future__ import annotations

from typing import Final

from adapter.imap.commands import append, basic, copy, fetch, idle, login, mailbox, quota, search, select, store
from adapter.imap.handlers import bound_handlers
from protocol.imap.commands.registry import COMMANDS

__all__ = [
    "HANDLERS",
    "append",
    "basic",
    "copy",
    "fetch",
    "idle",
    "login",
    "mailbox",
    "quota",
    "search",
    "select",
    "store",
]

HANDLERS: Final = bound_handlers(spec.value for spec in COMMANDS.values())
