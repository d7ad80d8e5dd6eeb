"""The command line. Each command is in a module of its own, which is imported when the command runs."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

import click

from adapter.cli.failures import CommandError, explain
from protocol.errors import MailError

#: command -> its module in this package, and its name there
_COMMANDS = {
    "account": ("account", "account"),
    "autoconfig": ("config", "autoconfig"),
    "backup": ("backup", "backup"),
    "check": ("repair", "check"),
    "config": ("config", "configuration"),
    "deliver": ("deliver", "deliver"),
    "demo": ("demo", "demo"),
    "doctor": ("doctor", "doctor"),
    "export": ("import_export", "export"),
    "import": ("import_export", "import_"),
    "init": ("store", "init"),
    "maintenance": ("store", "maintenance"),
    "pull": ("pull", "pull"),
    "queue": ("queue", "queue"),
    "repair": ("repair", "repair"),
    "restore": ("backup", "restore"),
    "serve": ("serve", "serve"),
    "snapshot": ("store", "snapshot"),
}


class _Commands(click.Group):
    """A group that imports commands on demand and reports every failure in one line."""

    def main(self, *args: Any, **extra: Any) -> Any:
        _open_standard_streams()
        return super().main(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=_COMMANDS, ctx=ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (MailError, CommandError, OSError) as error:
            line, status = explain(error)
            click.echo(f"markpost: {line}", err=True)
            ctx.exit(status)


def _open_standard_streams() -> None:
    """Open closed standard streams on /dev/null, so that no file of the store gets descriptor 0, 1 or 2."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False, encoding="utf-8"))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="markpost", message="%(prog)s %(version)s")
def main() -> None:
    """A mail server whose mailbox is a folder of Markdown.

    Failures go to stderr as one line. Exit status: 0 success, 1 failure, 2 wrong usage; 3 refused (repair,
    maintenance); 65 to 77 as in sysexits.h, of which 75 is temporary: try again later.
    """
    logging.basicConfig(format="markpost: %(levelname)s: %(message)s", level=logging.WARNING)
