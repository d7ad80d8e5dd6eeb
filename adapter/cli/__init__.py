"""The command line. Each command lives in a module of its own and is imported when it is called."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

import click

from adapter.cli.failures import CommandError, explain
from protocol.errors import MailError

#: command -> module of this package and the name it has there
_COMMANDS = {
    "account": ("account", "account"),
    "autoconfig": ("autoconfig", "autoconfig"),
    "backup": ("backup", "backup"),
    "check": ("repair", "check"),
    "config": ("config", "configuration"),
    "deliver": ("deliver", "deliver"),
    "demo": ("demo", "demo"),
    "doctor": ("doctor", "doctor"),
    "export": ("import_export", "export"),
    "import": ("import_export", "import_"),
    "init": ("store", "init"),
    "maintenance": ("maintenance", "maintenance"),
    "migrate": ("maintenance", "migrate"),
    "pull": ("pull", "pull"),
    "queue": ("queue", "queue"),
    "repair": ("repair", "repair"),
    "restore": ("backup", "restore"),
    "serve": ("serve", "serve"),
    "snapshot": ("store", "snapshot"),
}


class _Commands(click.Group):
    """Imports a command only when it is wanted, and tells every failure in one line."""

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
    """Whoever starts us may have closed some: no file of the store may get their numbers, and what is said there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False, encoding="utf-8"))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="markpost", message="%(prog)s %(version)s")
def main() -> None:
    """A mail server whose mailbox is a folder of Markdown."""
    logging.basicConfig(format="markpost: %(levelname)s: %(message)s", level=logging.WARNING)
