"""The ``[upstream.NAME]`` sections of the configuration: accounts of other IMAP servers that are mirrored here."""

# ruff: noqa: RUF009 - Seconds(…) names a type, it makes nothing

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from adapter.config.loader import Seconds
from adapter.store import names
from protocol.errors import MailError

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """One account elsewhere."""

    host: str = ""
    port: int = 993
    tls: Literal["implicit", "starttls", "none"] = "implicit"  # or "starttls", "none"; certificates are verified
    ca_file: str = ""  # PEM file of authorities trusted instead of the system's
    user: str = ""
    password: str = field(default="", repr=False)  # better one of the two below
    password_file: str = ""  # its first line; read again for every connection
    password_command: tuple[str, ...] = ()  # the first line it prints
    account: str = ""  # the address here that gets the mail
    prefix: str = ""  # a folder here: INBOX goes into it, the others below it; empty: folders have the same names here
    folders: dict[str, str] = field(default_factory=dict)  # by their names there -> their names here
    skip: tuple[str, ...] = ()  # folders there that are left out, with those below them
    follow: bool = False  # markpost serve keeps up with it
    poll: Seconds = Seconds(60.0)  # between two looks at all folders; IDLE tells of INBOX at once, NOTIFY of the others
    timeout: Seconds = Seconds(60.0)  # for one answer
    first_retry: Seconds = Seconds(5.0)  # each failure doubles it
    longest_retry: Seconds = Seconds(900.0)


def problems(name: str, settings: UpstreamSettings) -> Iterator[tuple[str, str]]:
    """What is wrong with a section: the setting, and why."""
    if not NAME.fullmatch(name):
        yield "", "must be named with letters, digits, '_', '-' and '.'"
    for key in ("host", "user", "account"):
        if not getattr(settings, key):
            yield key, "is needed"
    if not 1 <= settings.port <= 65535:
        yield "port", "must be from 1 to 65535"
    for key in ("poll", "timeout", "first_retry", "longest_retry"):
        if not getattr(settings, key):
            yield key, "must be more than 0"
    if bool(settings.password) + bool(settings.password_file) + bool(settings.password_command) != 1:
        yield "password_file", "give one of password, password_file and password_command"
    for key in ("ca_file", "password_file"):
        path: str = getattr(settings, key)
        if path and not os.access(path, os.R_OK):
            yield key, f"{path} cannot be read"
    if settings.account:
        try:
            names.normalise_address(settings.account)
        except MailError:
            yield "account", f"{settings.account!r} is not an address"
    for key, folder in (("prefix", settings.prefix), *(("folders", each) for each in settings.folders.values())):
        if folder or key == "folders":
            try:
                names.normalise_folder(folder)
            except MailError:
                yield key, f"{folder!r} is not the name of a folder"
