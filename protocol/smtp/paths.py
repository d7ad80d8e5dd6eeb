"""Forward and reverse paths (RFC 5321 4.1.2, 4.1.3; RFC 6531 3.3).

More tolerant than the grammar, as real mail requires: dots are allowed anywhere in an unquoted local part, underscores
in host names, and more than 64 octets in a local part (RFC 5321 4.5.3.1 wants no limits where possible).
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

MAX_LOCAL_BYTES = 256
MAX_DOMAIN_BYTES = 255

_ATOM = r"""[^\x00-\x20\x7f()<>@,;:\\"\[\]]+"""
_QUOTED = r'"(?:[^"\\\x00-\x1f\x7f]|\\[ -~])+"'
_ROUTE = r'(?:@[^\s@,:<>"]+(?:,@[^\s@,:<>"]+)*:)?'
_PATH = re.compile(rf"<(?:{_ROUTE}({_ATOM}|{_QUOTED})(?:@([^\s<>@]+))?)?>")
_LABEL = re.compile(r"[A-Za-z0-9_\u0080-\U0010ffff](?:[A-Za-z0-9_\u0080-\U0010ffff-]*[A-Za-z0-9_\u0080-\U0010ffff])?")
_UNESCAPE = re.compile(r"\\(.)")
_NEEDS_ESCAPE = re.compile(r'(["\\])')
_IS_ATOM = re.compile(_ATOM)


class Path(NamedTuple):
    """A mailbox: the local part without quotes, case kept; the domain in lower case. Both empty: ``<>``."""

    local: str
    domain: str

    @property
    def address(self) -> str:
        """The canonical address: quoted only if necessary."""
        local = self.local
        if local and not _IS_ATOM.fullmatch(local):
            local = '"' + _NEEDS_ESCAPE.sub(r"\\\1", local) + '"'
        return f"{local}@{self.domain}" if self.domain else local

    @property
    def needs_utf8(self) -> bool:
        return not (self.local.isascii() and self.domain.isascii())


NULL = Path("", "")


def parse_path(text: str) -> tuple[Path, str] | None:
    """The path at the beginning of ``text`` and the rest, or None. Source routes are dropped (RFC 5321 C).

    The domain is empty for ``<>`` and for ``<name>``; the caller decides whether these are allowed.
    """
    match = _PATH.match(text)
    if match is None:
        return None
    rest = text[match.end() :]
    local, domain = match[1], match[2]
    if local is None:
        return (NULL, rest) if match[0] == "<>" else None
    if local.startswith('"'):
        local = _UNESCAPE.sub(r"\1", local[1:-1])
    if not local.isprintable() or len(local.encode()) > MAX_LOCAL_BYTES:
        return None
    if domain is None:
        return (Path(local, ""), rest) if match[0] == f"<{local}>" else None
    checked = parse_domain(domain)
    return None if checked is None else (Path(local, checked), rest)


def parse_domain(text: str) -> str | None:
    """A domain name or address literal in canonical form, or None."""
    if not text.isprintable() or len(text.encode()) > MAX_DOMAIN_BYTES:
        return None
    if text.startswith("["):
        return _literal(text)
    domain = text.lower()
    # Lower-casing can turn one character into two (U+0130), so lengths are checked on the result.
    for label in domain.split("."):
        if len(label.encode()) > 63 or not _LABEL.fullmatch(label):
            return None
    return domain


def _literal(text: str) -> str | None:
    """RFC 5321 4.1.3: ``[192.0.2.1]`` or ``[IPv6:2001:db8::1]``; no other tag is registered."""
    if not text.endswith("]"):
        return None
    inner = text[1:-1]
    try:
        if inner[:5].lower() == "ipv6:":
            address = ipaddress.IPv6Address(inner[5:])
            return None if address.scope_id else f"[IPv6:{address}]"
        return f"[{ipaddress.IPv4Address(inner)}]"
    except ValueError:
        return None
