"""Options and helpers that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from adapter.cli.failures import CommandError
from adapter.transport.transport import Transport

Command = TypeVar("Command", bound=Callable[..., Any])


def root_option(command: Command) -> Command:
    return click.option(
        "--root",
        metavar="DIR",
        envvar="MARKPOST_ROOT",
        required=True,
        show_envvar=True,
        type=click.Path(readable=False),  # what is wrong with it is told later, and bounces no mail
        help="The store.",
    )(command)


def config_option(command: Command) -> Command:
    return click.option(
        "--config",
        "config_file",
        metavar="FILE",
        envvar="MARKPOST_CONFIG",
        show_envvar=True,
        type=click.Path(readable=False),
        help="The configuration.",
    )(command)


def open_store(root: str) -> Transport:
    return Transport.open(root)


def on_terminal() -> bool:
    return sys.stdin.isatty()


def read_password(from_stdin: bool) -> str | None:
    """From standard input (its first line), or from the terminal; None where there is neither."""
    if from_stdin:
        line = sys.stdin.buffer.readline(4096)
        try:
            password = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise CommandError("the password on standard input is not UTF-8") from None
        if not password:
            raise CommandError("there is no password on standard input")
        return password
    if on_terminal():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return None


def size(octets: int) -> str:
    """Octets as people read them."""
    if octets < 1000:
        return f"{octets} B"
    amount, units = octets / 1000, ["kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.1f} {units[0]}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
