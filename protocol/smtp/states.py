"""SMTP state machine: which command is allowed when, the reply otherwise, and the state after each event. Two tables.

Invariants: a refused command changes nothing; only :meth:`SessionState.advance` changes the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from protocol.smtp import replies
from protocol.smtp.replies import Reply


class Service(Enum):
    MX = "smtp"
    SUBMISSION = "submission"
    LMTP = "lmtp"


class Phase(Enum):
    CONNECTED = auto()  # no EHLO yet, or none since TLS or XCLIENT
    GREETED = auto()
    MAIL = auto()  # a sender, no recipient yet
    RCPT = auto()  # at least one recipient
    CHUNKS = auto()  # BDAT has begun
    BROKEN = auto()  # a BDAT failed: RFC 3030 section 2 allows only RSET


class Event(Enum):
    HELLO = auto()  # HELO, EHLO or LHLO accepted (RFC 5321 4.1.4: also resets)
    SENDER = auto()  # MAIL accepted
    RECIPIENT = auto()  # RCPT accepted
    CHUNK = auto()  # BDAT without LAST accepted
    CHUNK_FAILED = auto()  # BDAT without LAST refused
    END = auto()  # the transaction is over: final reply sent, or RSET
    RESTART = auto()  # TLS is up (RFC 3207 4.2) or XCLIENT was accepted


@dataclass(slots=True)
class SessionState:
    """The protocol state of one connection."""

    service: Service
    tls_available: bool = False  # STARTTLS can be done
    tls_required: bool = False  # no mail without TLS and a client certificate
    plaintext_auth: bool = False  # AUTH without TLS is allowed
    mechanisms: tuple[str, ...] = ()  # of AUTH; empty: none
    xclient_trusted: bool = False
    reports: bool = True  # the server can send delivery reports (DSN)
    tls: bool = False  # TLS is active, by STARTTLS or from the start
    extended: bool = False  # EHLO or LHLO, not HELO
    authenticated: bool = False
    binary: bool = False  # BODY=BINARYMIME in this transaction
    phase: Phase = field(default=Phase.CONNECTED)

    @property
    def auth_open(self) -> bool:
        """AUTH is allowed in the current state."""
        return bool(self.mechanisms) and (self.tls or self.plaintext_auth)

    def advance(self, event: Event) -> None:
        self.phase = TRANSITIONS[self.phase, event]
        if event not in (Event.SENDER, Event.RECIPIENT, Event.CHUNK, Event.CHUNK_FAILED):
            self.binary = False
        if event is Event.RESTART:
            self.extended = False
            self.authenticated = False


_TRANSACTION = (Phase.MAIL, Phase.RCPT, Phase.CHUNKS, Phase.BROKEN)

TRANSITIONS: Mapping[tuple[Phase, Event], Phase] = {
    **{(phase, Event.HELLO): Phase.GREETED for phase in Phase},
    **{(phase, Event.RESTART): Phase.CONNECTED for phase in Phase},
    **{(phase, Event.END): Phase.GREETED for phase in (Phase.GREETED, *_TRANSACTION)},
    (Phase.CONNECTED, Event.END): Phase.CONNECTED,
    (Phase.GREETED, Event.SENDER): Phase.MAIL,
    (Phase.MAIL, Event.RECIPIENT): Phase.RCPT,
    (Phase.RCPT, Event.RECIPIENT): Phase.RCPT,
    (Phase.RCPT, Event.CHUNK): Phase.CHUNKS,
    (Phase.CHUNKS, Event.CHUNK): Phase.CHUNKS,
    (Phase.RCPT, Event.CHUNK_FAILED): Phase.BROKEN,
    (Phase.CHUNKS, Event.CHUNK_FAILED): Phase.BROKEN,
}

Guard = Callable[[SessionState], Reply | None]


def _not_lmtp(session: SessionState) -> Reply | None:
    """RFC 2033 4.1: LMTP has neither HELO nor EHLO."""
    return replies.UNKNOWN_COMMAND if session.service is Service.LMTP else None


def _only_lmtp(session: SessionState) -> Reply | None:
    return None if session.service is Service.LMTP else replies.UNKNOWN_COMMAND


def _may_send(session: SessionState) -> Reply | None:
    """RFC 6409 4.3: submission requires authentication, which may require TLS; RFC 3207 section 4: so may others."""
    if session.tls_required and not session.tls:
        return replies.TLS_REQUIRED
    if session.service is not Service.SUBMISSION or session.authenticated:
        return None
    if session.tls_available and not session.tls and not session.plaintext_auth:
        return replies.TLS_REQUIRED
    return replies.AUTH_REQUIRED


def _not_binary(session: SessionState) -> Reply | None:
    """RFC 3030 section 3: BINARYMIME cannot be sent with DATA."""
    return replies.BINARY_NEEDS_BDAT if session.binary else None


def _requires_ehlo(session: SessionState) -> Reply | None:
    return None if session.extended else replies.EHLO_FIRST


def _may_start_tls(session: SessionState) -> Reply | None:
    """RFC 3207 section 4; a plaintext login must not carry over into TLS."""
    if session.tls:
        return replies.ALREADY_TLS
    if not session.tls_available:
        return replies.NOT_IMPLEMENTED
    return replies.ALREADY_AUTHENTICATED if session.authenticated else None


def _may_authenticate(session: SessionState) -> Reply | None:
    """RFC 4954 section 4."""
    if not session.mechanisms:
        return replies.NOT_IMPLEMENTED
    if session.authenticated:
        return replies.ALREADY_AUTHENTICATED
    return None if session.auth_open else replies.ENCRYPTION_REQUIRED


def _xclient_trusted(session: SessionState) -> Reply | None:
    return None if session.xclient_trusted else replies.UNKNOWN_COMMAND


def _never(session: SessionState) -> Reply | None:
    return replies.NOT_IMPLEMENTED


@dataclass(frozen=True, slots=True)
class Rule:
    """The phase decides first, then the guards in order; without a refusal the command is allowed."""

    refused: Mapping[Phase, Reply] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()


_NO_HELLO = {Phase.CONNECTED: replies.HELLO_FIRST}
_NO_TRANSACTION = dict.fromkeys(_TRANSACTION, replies.IN_TRANSACTION)
_ONLY_READY = {**_NO_HELLO, **_NO_TRANSACTION}

RULES: Mapping[str, Rule] = {
    "HELO": Rule(guards=(_not_lmtp,)),  # RFC 5321 4.1.1.1
    "EHLO": Rule(guards=(_not_lmtp,)),
    "LHLO": Rule(guards=(_only_lmtp,)),  # RFC 2033 4.1
    "MAIL": Rule({**_NO_HELLO, **dict.fromkeys(_TRANSACTION, replies.NESTED_MAIL)}, (_may_send,)),
    "RCPT": Rule(
        {
            **_NO_HELLO,
            Phase.GREETED: replies.MAIL_FIRST,
            Phase.CHUNKS: replies.CHUNKS_STARTED,
            Phase.BROKEN: replies.CHUNKS_FAILED,
        }
    ),
    "DATA": Rule(
        {
            **_NO_HELLO,
            Phase.GREETED: replies.MAIL_FIRST,
            Phase.MAIL: replies.RCPT_FIRST,
            Phase.CHUNKS: replies.CHUNKS_STARTED,
            Phase.BROKEN: replies.CHUNKS_FAILED,
        },
        (_not_binary,),
    ),
    "BDAT": Rule(  # RFC 3030 section 2
        {
            **_NO_HELLO,
            Phase.GREETED: replies.MAIL_FIRST,
            Phase.MAIL: replies.RCPT_FIRST,
            Phase.BROKEN: replies.CHUNKS_FAILED,
        }
    ),
    "RSET": Rule(),
    "NOOP": Rule(),
    "HELP": Rule(),
    "VRFY": Rule(),
    "EXPN": Rule(guards=(_never,)),
    "QUIT": Rule(),
    "STARTTLS": Rule(_ONLY_READY, (_requires_ehlo, _may_start_tls)),
    "AUTH": Rule(_ONLY_READY, (_requires_ehlo, _may_authenticate)),
    "XCLIENT": Rule(_NO_TRANSACTION, (_xclient_trusted,)),
}

# Sent first by a browser that was tricked into connecting to a mail port: its payload must not be read as commands.
NOT_MAIL = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})


def refusal(session: SessionState, command: str) -> Reply | None:
    """The reply that refuses ``command`` (upper case), or None if it is allowed now."""
    rule = RULES.get(command)
    if rule is None:
        return replies.NOT_SMTP if command in NOT_MAIL else replies.UNKNOWN_COMMAND
    reply = rule.refused.get(session.phase)
    if reply is not None:
        return reply
    for guard in rule.guards:
        reply = guard(session)
        if reply is not None:
            return reply
    return None
