"""The arguments of MAIL, RCPT, HELO/EHLO/LHLO and AUTH.

Invariants: a parameter that was not offered is refused with 555, a duplicate or invalid one with 501; values are
decoded and have no control characters, so they can be written into headers and logs; case is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

from protocol.smtp import replies
from protocol.smtp.paths import Path, parse_path
from protocol.smtp.replies import Reply, SmtpError

MAIL_PARAMETERS = frozenset({"SIZE", "BODY", "SMTPUTF8", "AUTH", "RET", "ENVID", "REQUIRETLS"})
RCPT_PARAMETERS = frozenset({"NOTIFY", "ORCPT"})

_MAX_ENVID_CHARS = 100  # RFC 3461 4.4
_MAX_ORCPT_CHARS = 500  # RFC 3461 4.2
_MAX_AUTH_CHARS = 500  # RFC 4954 section 3
_KEYWORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")
_VALUE = re.compile(r"[!-<>-~\u0080-\U0010ffff]+")
_ADDRESS_TYPE = re.compile(r"[A-Za-z0-9-]{1,32}")
_UNICODE_ESCAPE = re.compile(r"\\x\{([0-9A-F]{2,6})\}")
_NOTIFY = frozenset({"SUCCESS", "FAILURE", "DELAY"})
_MECHANISM = re.compile(rb"[A-Za-z0-9_-]{1,20}")
# xtext (RFC 3461 section 4): printable ASCII in which "+", "=" and every other octet are written as +HH.
_XTEXT = re.compile(rb"(?:[!-*,-<>-~]|\+[0-9A-F]{2})*")
_HEX = re.compile(rb"\+([0-9A-Fa-f]{2})")

T = TypeVar("T")


class Body(Enum):
    """RFC 6152 and RFC 3030."""

    SEVEN_BIT = "7BIT"
    EIGHT_BIT = "8BITMIME"
    BINARY = "BINARYMIME"


class Ret(Enum):
    """RFC 3461 4.3: how much of the message a failure report returns."""

    FULL = "FULL"
    HEADERS = "HDRS"


class OriginalRecipient(NamedTuple):
    """RFC 3461 4.2: the address type and the decoded address as the sender gave them."""

    type: str
    address: str

    @property
    def parameter(self) -> str:
        """The value of ORCPT=, to be passed on."""
        if self.type.lower() == "utf-8":
            # RFC 6533 section 3, utf-8-addr-xtext: ASCII whatever the address holds.
            return f"{self.type};" + "".join(
                c if "!" <= c <= "~" and c not in "+=\\" else f"\\x{{{ord(c):02X}}}" for c in self.address
            )
        return f"{self.type};{encode_xtext(self.address.encode())}"


@dataclass(frozen=True, slots=True)
class MailCommand:
    """MAIL FROM (RFC 5321 4.1.1.2). The null sender has an empty address."""

    path: Path
    size: int | None = None  # RFC 1870
    body: Body = Body.SEVEN_BIT
    smtputf8: bool = False  # RFC 6531
    auth: str | None = None  # RFC 4954 section 5; empty for AUTH=<>
    ret: Ret | None = None
    envid: str | None = None  # RFC 3461 4.4
    requiretls: bool = False  # RFC 8689


@dataclass(frozen=True, slots=True)
class RcptCommand:
    """RCPT TO (RFC 5321 4.1.1.3). Only ``<postmaster>`` has no domain."""

    path: Path
    notify: frozenset[str] | None = None  # RFC 3461 4.1; empty for NEVER
    orcpt: OriginalRecipient | None = None

    @property
    def orcpt_parameter(self) -> str | None:
        return None if self.orcpt is None else self.orcpt.parameter


def parse_mail(
    argument: bytes, offered: Collection[str] = MAIL_PARAMETERS, *, allow_bare_name: bool = False
) -> MailCommand:
    """Parse ``FROM:<path> [parameters]``; raises SmtpError.

    ``allow_bare_name``: a sender without a domain is accepted, as LMTP clients such as getmail give one.
    """
    path, values = _split(argument, "FROM:", offered, replies.BAD_SENDER)
    if path.local and not path.domain and not allow_bare_name:
        raise SmtpError(replies.BAD_SENDER)
    smtputf8 = _flag(values, "SMTPUTF8")
    _require_ascii(path, values, smtputf8)
    return MailCommand(
        path=path,
        size=_value(values, "SIZE", _size),
        body=_value(values, "BODY", _body) or Body.SEVEN_BIT,
        smtputf8=smtputf8,
        auth=_value(values, "AUTH", _auth),
        ret=_value(values, "RET", _ret),
        envid=_value(values, "ENVID", _envid),
        requiretls=_flag(values, "REQUIRETLS"),
    )


def parse_rcpt(argument: bytes, offered: Collection[str] = RCPT_PARAMETERS, *, smtputf8: bool = False) -> RcptCommand:
    """``TO:<path> [parameters]``; ``smtputf8`` as given with MAIL. Raises SmtpError."""
    path, values = _split(argument, "TO:", offered, replies.BAD_RECIPIENT)
    if not path.domain and path.local.lower() != "postmaster":
        raise SmtpError(replies.BAD_RECIPIENT)
    _require_ascii(path, values, smtputf8)
    return RcptCommand(path=path, notify=_value(values, "NOTIFY", _notify), orcpt=_value(values, "ORCPT", _orcpt))


def parse_hello(argument: bytes) -> str:
    """The client's name for itself. Barely checked: many are wrong, and only trace fields use it."""
    try:
        name = argument.decode("utf-8")
    except UnicodeDecodeError:
        raise SmtpError(replies.BAD_SYNTAX) from None
    if not name or len(argument) > 255 or " " in name or not name.isprintable():
        raise SmtpError(replies.BAD_SYNTAX)
    return name


def parse_auth(argument: bytes) -> tuple[str, bytes | None]:
    """RFC 4954 section 4: the mechanism in upper case and the initial response, still in base64."""
    mechanism, *rest = argument.split() or [b""]
    if len(rest) > 1 or not _MECHANISM.fullmatch(mechanism):
        raise SmtpError(replies.BAD_SYNTAX)
    return mechanism.decode("ascii").upper(), rest[0] if rest else None


def _split(
    argument: bytes, keyword: str, offered: Collection[str], bad_path: Reply
) -> tuple[Path, dict[str, str | None]]:
    try:
        text = argument.decode("utf-8")
    except UnicodeDecodeError:
        raise SmtpError(bad_path) from None
    if text[: len(keyword)].upper() != keyword:
        raise SmtpError(replies.BAD_SYNTAX)
    # A space after the colon is invalid, common and harmless.
    parsed = parse_path(text[len(keyword) :].lstrip(" \t"))
    if parsed is None:
        raise SmtpError(bad_path)
    path, rest = parsed
    if rest and rest[0] not in " \t":
        raise SmtpError(bad_path)
    values: dict[str, str | None] = {}
    for parameter in rest.replace("\t", " ").split(" "):
        if parameter:
            _add(values, parameter, offered)
    return path, values


def _add(values: dict[str, str | None], parameter: str, offered: Collection[str]) -> None:
    """RFC 5321 4.1.2: ``esmtp-keyword [= esmtp-value]``."""
    name, equals, value = parameter.partition("=")
    if not _KEYWORD.fullmatch(name) or (equals and not _VALUE.fullmatch(value)):
        raise SmtpError(replies.BAD_SYNTAX)
    name = name.upper()
    if name not in offered:
        raise SmtpError(replies.UNKNOWN_PARAMETER)
    if name in values:
        raise SmtpError(replies.DUPLICATE_PARAMETER)
    values[name] = value if equals else None


def _require_ascii(path: Path, values: dict[str, str | None], smtputf8: bool) -> None:
    """RFC 6531 3.4 and 3.5."""
    if smtputf8:
        return
    if path.needs_utf8:
        raise SmtpError(replies.UTF8_NEEDED)
    if not all(value is None or value.isascii() for value in values.values()):
        raise SmtpError(replies.BAD_PARAMETER)


def _flag(values: dict[str, str | None], name: str) -> bool:
    if values.get(name) is not None:
        raise SmtpError(replies.BAD_PARAMETER)
    return name in values


def _value(values: dict[str, str | None], name: str, read: Callable[[str], T | None]) -> T | None:
    if name not in values:
        return None
    value = values[name]
    result = None if value is None else read(value)
    if result is None:
        raise SmtpError(replies.BAD_PARAMETER)
    return result


def _size(value: str) -> int | None:
    return int(value) if len(value) <= 20 and value.isascii() and value.isdigit() else None


def _body(value: str) -> Body | None:
    return next((body for body in Body if body.value == value.upper()), None)


def _ret(value: str) -> Ret | None:
    return next((ret for ret in Ret if ret.value == value.upper()), None)


def _notify(value: str) -> frozenset[str] | None:
    words = value.upper().split(",")
    if words == ["NEVER"]:
        return frozenset()
    return frozenset(words) if _NOTIFY.issuperset(words) else None


def _printable(value: str, limit: int) -> str | None:
    """Decoded xtext, or None if it is not printable ASCII: the value must never end a header line."""
    decoded = decode_xtext(value.encode()) if len(value) <= limit else None
    if decoded is None or not decoded.isascii() or not decoded.decode("ascii").isprintable():
        return None
    return decoded.decode("ascii")


def _auth(value: str) -> str | None:
    return "" if value == "<>" else _printable(value, _MAX_AUTH_CHARS)


def _envid(value: str) -> str | None:
    return _printable(value, _MAX_ENVID_CHARS)


def _orcpt(value: str) -> OriginalRecipient | None:
    kind, mark, address = value.partition(";")
    if not mark or not address or len(value) > _MAX_ORCPT_CHARS or not _ADDRESS_TYPE.fullmatch(kind):
        return None
    if kind.lower() == "utf-8":
        # RFC 6533 section 3: a separate escape syntax instead of xtext, or plain UTF-8.
        try:
            plain = _UNICODE_ESCAPE.sub(lambda match: chr(int(match[1], 16)), address)
        except (ValueError, OverflowError):
            return None
        return OriginalRecipient(kind, plain) if plain.isprintable() else None
    decoded = _printable(address, _MAX_ORCPT_CHARS)
    return None if decoded is None else OriginalRecipient(kind, decoded)


def decode_xtext(raw: bytes) -> bytes | None:
    """Decode xtext; None if ``raw`` is not xtext. The result can contain any octet: check it before use."""
    # Lower-case hex is outside the grammar but unambiguous, and some clients send it.
    if not _XTEXT.fullmatch(_HEX.sub(lambda m: b"+" + m[1].upper(), raw)):
        return None
    return _HEX.sub(lambda m: bytes((int(m[1], 16),)), raw)


def encode_xtext(data: bytes) -> str:
    """Encode ``data`` as one word that needs no quoting."""
    return "".join(chr(c) if 33 <= c <= 126 and c not in b"+=" else f"+{c:02X}" for c in data)
