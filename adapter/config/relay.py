"""The ``[relay]`` section of the configuration: the smarthost, and how patiently mail for it is tried."""

# ruff: noqa: RUF009 - Seconds(…) names a type, it makes nothing

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapter.config.loader import Seconds


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Without a host there is no mail to the outside."""

    host: str = ""
    port: int = 587
    tls: Literal["starttls", "implicit", "none"] = "starttls"  # or "implicit", "none"; certificates are verified
    ca_file: str = ""  # PEM file of authorities trusted besides the system's
    certificate: str = ""  # PEM file that shows who we are, for a smarthost that asks
    key: str = ""  # PEM file; empty: in the certificate's file
    user: str = ""
    password_file: str = ""  # its first line; read again for every connection
    helo: str = ""  # how we call ourselves; empty: the server's own name
    connections: int = 4  # to the smarthost, at once
    recipients: int = 50  # of one message, in one transaction
    idle: Seconds = Seconds(5.0)  # so long a connection waits for the next message
    connect: Seconds = Seconds(30.0)
    command: Seconds = Seconds(300.0)  # RFC 5321 4.5.3.2
    accept: Seconds = Seconds(600.0)  # from the end of the data to the answer
    first_retry: Seconds = Seconds(60.0)  # each failure doubles it
    longest_retry: Seconds = Seconds(3600.0)
    warn_after: Seconds = Seconds(4 * 3600.0)  # the sender is told of the delay; 0: never
    expire_after: Seconds = Seconds(5 * 86400.0)  # the sender gets the message back
