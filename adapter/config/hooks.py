"""The ``[hook.NAME]`` sections of the configuration: what is told of new mail."""

# ruff: noqa: RUF009 - Seconds(…) names a type, it makes nothing

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from adapter.config.loader import Seconds
from adapter.net import http
from adapter.store import names
from protocol.errors import MailError

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
ALL = "*"


@dataclass(frozen=True, slots=True)
class HookSettings:
    """A command or a URL, and which mail it is told of."""

    command: tuple[str, ...] = ()  # program and arguments; gets JSON on standard input and MARKPOST_ variables
    url: str = ""  # or: gets the JSON by POST; any status from 200 to 299 is a success
    authorization_file: str = ""  # its first line is sent to the URL as Authorization header
    accounts: tuple[str, ...] = ()  # addresses; empty: all
    folders: tuple[str, ...] = ("INBOX",)  # "*": all
    concurrency: int = 1  # calls at once
    timeout: Seconds = Seconds(30.0)  # for one call
    first_retry: Seconds = Seconds(5.0)  # each failure doubles it
    longest_retry: Seconds = Seconds(900.0)
    give_up: Seconds = Seconds(86400.0)  # after so long a message is no longer tried; 0: never


def problems(name: str, settings: HookSettings) -> Iterator[tuple[str, str]]:
    """What is wrong with a section: the setting, and why."""
    if not _NAME.fullmatch(name):
        yield "", "must be named with letters, digits, '_', '-' and '.'"
    if bool(settings.command) == bool(settings.url):
        yield "command", "give one of command and url"
    if settings.url and not http.is_web_address(settings.url):
        yield "url", "must be an http or https URL"
    path = settings.authorization_file
    if path and not os.access(path, os.R_OK):
        yield "authorization_file", f"{path} cannot be read"
    for key in ("concurrency", "timeout", "first_retry", "longest_retry"):
        if not getattr(settings, key):
            yield key, "must be more than 0"
    for address in settings.accounts:
        try:
            names.normalise_address(address)
        except MailError:
            yield "accounts", f"{address!r} is not an address"
    for folder in settings.folders:
        try:
            names.normalise_folder(folder)
        except MailError:
            yield "folders", f"{folder!r} is not the name of a folder"
