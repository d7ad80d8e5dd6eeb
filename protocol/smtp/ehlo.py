"""Extensions: when each is offered, and the MAIL and RCPT parameters it brings, in one table.

Invariant: a parameter is accepted exactly when its keyword is offered in the current state of the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from protocol.smtp.data import MessageLimits
from protocol.smtp.states import SessionState


def _always(session: SessionState) -> bool:
    return True


class Extension(NamedTuple):
    keyword: str
    rfc: str
    offered: Callable[[SessionState], bool] = _always
    value: Callable[[SessionState, MessageLimits], str] | None = None
    mail: frozenset[str] = frozenset()
    rcpt: frozenset[str] = frozenset()


EXTENSIONS: tuple[Extension, ...] = (
    Extension("PIPELINING", "RFC 2920"),
    Extension("SIZE", "RFC 1870", value=lambda _, limits: str(limits.message_size), mail=frozenset({"SIZE"})),
    Extension("8BITMIME", "RFC 6152", mail=frozenset({"BODY"})),
    Extension("SMTPUTF8", "RFC 6531", mail=frozenset({"SMTPUTF8"})),
    Extension("ENHANCEDSTATUSCODES", "RFC 2034"),
    Extension("CHUNKING", "RFC 3030"),
    Extension("BINARYMIME", "RFC 3030", mail=frozenset({"BODY"})),
    Extension(
        "DSN",
        "RFC 3461",
        offered=lambda session: session.reports,
        mail=frozenset({"RET", "ENVID"}),
        rcpt=frozenset({"NOTIFY", "ORCPT"}),
    ),
    Extension(
        "STARTTLS",
        "RFC 3207",
        offered=lambda session: session.tls_available and not session.tls and not session.authenticated,
    ),
    Extension(
        "AUTH",
        "RFC 4954",
        offered=lambda session: session.auth_open,
        value=lambda session, _: " ".join(session.mechanisms),
        mail=frozenset({"AUTH"}),
    ),
    Extension("REQUIRETLS", "RFC 8689", offered=lambda session: session.tls, mail=frozenset({"REQUIRETLS"})),
    Extension("LIMITS", "RFC 9422", value=lambda _, limits: f"RCPTMAX={limits.recipients}"),
    Extension(
        "XCLIENT",
        "Postfix XCLIENT",
        offered=lambda session: session.xclient_trusted,
        value=lambda *_: "NAME ADDR PORT PROTO HELO DESTADDR DESTPORT",
    ),
)


def keywords(session: SessionState, limits: MessageLimits) -> list[str]:
    """The lines after the host name in the reply to EHLO or LHLO."""
    return [
        extension.keyword if extension.value is None else f"{extension.keyword} {extension.value(session, limits)}"
        for extension in EXTENSIONS
        if extension.offered(session)
    ]


def mail_parameters(session: SessionState) -> frozenset[str]:
    """The parameters that MAIL accepts; none after HELO."""
    return _parameters(session, lambda extension: extension.mail)


def rcpt_parameters(session: SessionState) -> frozenset[str]:
    """The parameters that RCPT accepts; none after HELO."""
    return _parameters(session, lambda extension: extension.rcpt)


def _parameters(session: SessionState, which: Callable[[Extension], frozenset[str]]) -> frozenset[str]:
    if not session.extended:
        return frozenset()
    return frozenset().union(*(which(extension) for extension in EXTENSIONS if extension.offered(session)))
