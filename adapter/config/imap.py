"""What can be set for IMAP: the section ``[imap]`` of the configuration."""

# ruff: noqa: RUF009 - Seconds(…) and Size(…) name types, they make nothing

from __future__ import annotations

from dataclasses import dataclass

from adapter.config.loader import Seconds, Size


@dataclass(frozen=True, slots=True)
class ImapSettings:
    login_time: Seconds = Seconds(60.0)  # how long a connection may stay without logging in
    idle: Seconds = Seconds(1800.0)  # without a command; RFC 3501 5.4 asks for 30 minutes at least
    keep_alive: Seconds = Seconds(120.0)  # between two "Still here" during IDLE
    send: Seconds = Seconds(300.0)  # a peer that takes nothing for so long is gone
    progress: Seconds = Seconds(10.0)  # between two reports of a long command (RFC 9585)
    id_from: tuple[str, ...] = ()  # proxies that say in ID for whom they speak, as Dovecot does
    bad_commands: int = 20  # in a row, before the connection is closed
    append_messages: int = 200  # in one APPEND (RFC 3502)
    message_limit: int = 0  # messages in one command (RFC 9738); 0: no limit
    literal_plus: bool = True  # false: literals of more than 4096 octets wait for the go-ahead (RFC 7888)
    compress: bool = True  # COMPRESS=DEFLATE (RFC 4978)
    unauthenticate: bool = False  # UNAUTHENTICATE (RFC 8437)
    folders: int = 10_000  # of one account
    keywords: int = 100  # in one command
    keyword_length: int = 100
    cache_folders: Size = Size(64 << 20)  # memory of one process for flags, dates, envelopes of folders in use
    cache_bodies: Size = Size(32 << 20)  # for messages that were read lately, or ahead
    cache_texts: Size = Size(32 << 20)  # for texts that were searched and are not indexed yet
    cache_time: Seconds = Seconds(120.0)  # without use, after which caches are emptied
