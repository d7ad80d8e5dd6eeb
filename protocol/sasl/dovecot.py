"""Dovecot's authentication protocol: the lines sent to its auth process and the lines it returns.

Dovecot has two such sockets: the client socket verifies passwords (AUTH), the userdb socket looks up users (USER). A
line is a command and parameters separated by tabs; tabs and line ends in a parameter are escaped.
"""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

MAJOR = 1
_ESCAPE = str.maketrans({"\0": "\x010", "\x01": "\x011", "\t": "\x01t", "\r": "\x01r", "\n": "\x01n"})
_ESCAPED = re.compile("\x01(.)", re.DOTALL)
_UNESCAPE = {"0": "\0", "1": "\x01", "t": "\t", "r": "\r", "n": "\n"}


class Line(NamedTuple):
    """``words`` are the parameters by position, ``named`` those of the form name=value; a flag has an empty value."""

    command: str
    words: tuple[str, ...]
    named: dict[str, str]

    @property
    def number(self) -> int:
        """The number of the request that this line answers; -1: none."""
        first = self.words[0] if self.words else ""
        return int(first) if first.isascii() and first.isdigit() and len(first) <= 10 else -1

    @property
    def temporary(self) -> bool:
        """True for a FAIL that does not concern the password."""
        return "temp" in self.named or self.named.get("code") == "temp_fail"


def client_hello(number: int) -> bytes:
    """The first lines of a client; no other client of the same Dovecot may use ``number``."""
    return b"VERSION\t%d\t2\nCPID\t%d\n" % (MAJOR, number)


def userdb_hello() -> bytes:
    """The first line to the userdb socket."""
    return b"VERSION\t%d\t0\n" % MAJOR


def auth_request(number: int, user: str, password: str, peer: str) -> bytes:
    """Ask to verify a password. ``peer`` is the client's IP address, if it has one. Raises ValueError.

    The mechanism is PLAIN (RFC 4616), which separates its fields by NUL.
    """
    if "\0" in user or "\0" in password:
        raise ValueError("NUL in a user name or password")
    response = base64.b64encode(f"\0{user}\0{password}".encode())
    # Markpost has its own delays after wrong passwords, and its own rules for connections without TLS.
    options = b"service=imap\tsecured\tnologin\tno-penalty"
    if peer:
        options += b"\trip=" + escape(peer).encode()
    return b"AUTH\t%d\tPLAIN\t%b\tresp=%b\n" % (number, options, response)


def user_request(number: int, name: str) -> bytes:
    """Look up a user."""
    return b"USER\t%d\t%b\tservice=lmtp\n" % (number, escape(name).encode())


def escape(text: str) -> str:
    return text.translate(_ESCAPE)


def unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: _UNESCAPE.get(match[1], match[1]), text)


def parse_line(line: bytes) -> Line:
    """Parse any line; the caller checks the command. Invalid UTF-8 is replaced."""
    command, *parameters = line.decode("utf-8", "replace").rstrip("\r\n").split("\t")
    named = {}
    for parameter in parameters[1:]:
        name, _, value = parameter.partition("=")
        named[name] = unescape(value)
    return Line(command, tuple(unescape(parameter) for parameter in parameters), named)
