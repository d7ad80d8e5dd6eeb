"""Options and helpers that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from adapter.cli.failures import CommandError
from adapter.store.effects import OPERATOR, Actor
from adapter.transport.transport import Transport

Command = TypeVar("Command", bound=Callable[..., Any])


def root_option(command: Command) -> Command:
    return click.option(
        "--root",
        metavar="DIR",
        envvar="MARKPOST_ROOT",
        required=True,
        show_envvar=True,
        type=click.Path(readable=False),  # opening the store reports errors with a temporary status, click would not
        help="Directory of the store.",
    )(command)


def config_option(command: Command) -> Command:
    return click.option(
        "--config",
        "config_file",
        metavar="FILE",
        envvar="MARKPOST_CONFIG",
        show_envvar=True,
        type=click.Path(readable=False),
        help="Configuration file.",
    )(command)


def open_store(root: str) -> Transport:
    """Open the store; the journal records the operator and the command as the actor of every change."""
    command = click.get_current_context().command_path.partition(" ")[2]
    return Transport.open(root, actor=Actor(OPERATOR, f"markpost {command}"))


def is_terminal() -> bool:
    return sys.stdin.isatty()


def read_password(from_stdin: bool) -> str | None:
    """Read a password from the first line of stdin or from the terminal; None if there is neither."""
    if from_stdin:
        line = sys.stdin.buffer.readline(4096)
        try:
            password = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise CommandError("the password on standard input is not UTF-8") from None
        if not password:
            raise CommandError("no password on standard input: write it there as one line")
        return password
    if is_terminal():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return None


def size(octets: int) -> str:
    """Format a number of octets for people."""
    if octets < 1000:
        return f"{octets} B"
    amount, units = octets / 1000, ["kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.1f} {units[0]}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
