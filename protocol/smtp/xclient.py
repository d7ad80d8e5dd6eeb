"""XCLIENT as Postfix defines it: a trusted proxy passes on the client's address and name.

Attributes are NAME=value pairs, values in xtext; ``[UNAVAILABLE]`` and ``[TEMPUNAVAIL]`` mean "not known".
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from protocol.smtp import replies
from protocol.smtp.commands import decode_xtext
from protocol.smtp.replies import SmtpError

_UNAVAILABLE = frozenset({"[UNAVAILABLE]", "[TEMPUNAVAIL]"})
_ATTRIBUTES = frozenset({"NAME", "ADDR", "PORT", "PROTO", "HELO", "LOGIN", "DESTADDR", "DESTPORT"})


@dataclass(frozen=True, slots=True)
class ClientOverride:
    """The given attributes; None: not given, or not known."""

    name: str | None = None
    address: str | None = None
    port: int | None = None
    protocol: str | None = None
    hello: str | None = None
    login: str | None = None
    destination_address: str | None = None
    destination_port: int | None = None


def parse_xclient(argument: bytes) -> ClientOverride:
    """The argument of XCLIENT; raises SmtpError."""
    values: dict[str, str] = {}
    for pair in argument.split():
        name, equals, raw = pair.partition(b"=")
        key = name.decode("latin-1").upper()
        decoded = decode_xtext(raw)
        if not equals or key not in _ATTRIBUTES or key in values or decoded is None or len(decoded) > 255:
            raise SmtpError(replies.BAD_SYNTAX)
        try:
            values[key] = decoded.decode("utf-8")
        except UnicodeDecodeError:
            raise SmtpError(replies.BAD_SYNTAX) from None
        if not values[key].isprintable():
            raise SmtpError(replies.BAD_SYNTAX)
    if not values:
        raise SmtpError(replies.BAD_SYNTAX)
    given = {key: value for key, value in values.items() if value and value.upper() not in _UNAVAILABLE}
    protocol = given.get("PROTO")
    if protocol is not None and protocol.upper() not in ("SMTP", "ESMTP", "LMTP"):
        raise SmtpError(replies.BAD_SYNTAX)
    return ClientOverride(
        name=given.get("NAME"),
        address=_address(given.get("ADDR")),
        port=_port(given.get("PORT")),
        protocol=None if protocol is None else protocol.upper(),
        hello=given.get("HELO"),
        login=given.get("LOGIN"),
        destination_address=_address(given.get("DESTADDR")),
        destination_port=_port(given.get("DESTPORT")),
    )


def _address(value: str | None) -> str | None:
    if value is None:
        return None
    if value[:5].upper() == "IPV6:":
        value = value[5:]
    try:
        if "%" not in value:
            return str(ipaddress.ip_address(value))
    except ValueError:
        pass
    raise SmtpError(replies.BAD_SYNTAX)


def _port(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 5 and int(value) <= 65535):
        raise SmtpError(replies.BAD_SYNTAX)
    return int(value)
