"""Lines of Dovecot's authentication protocol: what we say to its auth process, and what it answers.

Two sockets speak it: the client socket proves passwords (AUTH), the userdb socket knows who exists (USER). A line is a
command and parameters between tabs; what is in a parameter cannot end it, because tabs and line ends are escaped.
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
    """``words`` are what stands at a fixed place, ``named`` what has a name; a word alone has an empty value there."""

    command: str
    words: tuple[str, ...]
    named: dict[str, str]

    @property
    def number(self) -> int:
        """Of the request it answers; -1: of none."""
        first = self.words[0] if self.words else ""
        return int(first) if first.isascii() and first.isdigit() and len(first) <= 10 else -1

    @property
    def temporary(self) -> bool:
        """Whether a FAIL says nothing about the password."""
        return "temp" in self.named or self.named.get("code") == "temp_fail"


def client_hello(number: int) -> bytes:
    """``number`` must be one that no other client of the same Dovecot uses."""
    return b"VERSION\t%d\t2\nCPID\t%d\n" % (MAJOR, number)


def userdb_hello() -> bytes:
    return b"VERSION\t%d\t0\n" % MAJOR


def auth(number: int, user: str, password: str, peer: str) -> bytes:
    """Is this the password? ``peer`` is the client's IP address, if it has one. Raises ValueError.

    The mechanism is PLAIN (RFC 4616), whose message separates its parts by NUL.
    """
    if "\0" in user or "\0" in password:
        raise ValueError("NUL in a user name or password")
    response = base64.b64encode(f"\0{user}\0{password}".encode())
    # We have our own delays for those who guess, and our own rules for connections without TLS.
    options = b"service=imap\tsecured\tnologin\tno-penalty"
    if peer:
        options += b"\trip=" + escape(peer).encode()
    return b"AUTH\t%d\tPLAIN\t%b\tresp=%b\n" % (number, options, response)


def user(number: int, name: str) -> bytes:
    """Does this user exist?"""
    return b"USER\t%d\t%b\tservice=lmtp\n" % (number, escape(name).encode())


def escape(text: str) -> str:
    return text.translate(_ESCAPE)


def unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: _UNESCAPE.get(match[1], match[1]), text)


def parse(line: bytes) -> Line:
    """Whatever it is; a caller looks at the command. Octets that are no UTF-8 are replaced."""
    command, *parameters = line.decode("utf-8", "replace").rstrip("\r\n").split("\t")
    named = {}
    for parameter in parameters[1:]:
        name, _, value = parameter.partition("=")
        named[name] = unescape(value)
    return Line(command, tuple(unescape(parameter) for parameter in parameters), named)
