"""Authentication and options of the connection: STARTTLS, AUTHENTICATE, LOGIN, ENABLE, COMPRESS, UNAUTHENTICATE.

Invariant: a client cannot distinguish a wrong password from an unknown user (:mod:`adapter.accounts.login`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapter.imap.handlers import TaggedResponse, handles, no
from protocol.imap import capabilities
from protocol.imap.commands import model
from protocol.imap.commands.auth import sasl_response
from protocol.imap.responses import codes, status
from protocol.imap.states import StateEvent
from protocol.imap.wire.lexer import CommandError
from protocol.sasl.mechanisms import Failure, FailureCause, Success, encode_line

if TYPE_CHECKING:
    from adapter.imap.session import Session

_TOO_MANY = "Too many connections of this user"
_NO_LOGIN = "Use STARTTLS before you log in"


# RFC 3501 6.2.1
@handles(model.StartTls)
async def starttls(session: Session, command: model.StartTls) -> TaggedResponse | None:
    context = session.server.certificates.context
    if session.tls or context is None:
        raise CommandError("TLS is already active" if session.tls else "TLS is not available")
    session.send(status.ok(session.tag, "Begin TLS negotiation now"))
    if await session.connection.start_tls(context, session.server.settings.tls.handshake):
        session.apply(StateEvent.TLS_STARTED)
    return None


# RFC 3501 6.2.2, RFC 4959
@handles(model.Authenticate)
async def authenticate(session: Session, command: model.Authenticate) -> TaggedResponse:
    offered = capabilities.offered(session.situation)
    if f"AUTH={command.mechanism}" not in offered:
        if session.situation.passwords:
            return no("Mechanism is not supported", codes.CANNOT)
        return no(_NO_LOGIN, codes.PRIVACYREQUIRED)

    async def ask(challenge: bytes) -> bytes | Failure:
        session.send(status.challenge(encode_line(challenge)))
        line = await session.connection.next_line()
        if line is None:
            return Failure(FailureCause.TOO_LONG)
        try:
            response = sasl_response(line.data)
        except CommandError:
            return Failure(FailureCause.MALFORMED)
        return Failure(FailureCause.CANCELLED) if response is None else response

    authenticator = session.backend.authenticator
    outcome = await authenticator.authenticate(command.mechanism, command.initial, ask, session.peer)
    return await _respond(session, outcome)


# RFC 3501 6.2.3
@handles(model.Login)
async def login(session: Session, command: model.Login) -> TaggedResponse:
    if not session.situation.passwords:
        return no(_NO_LOGIN, codes.PRIVACYREQUIRED)
    try:
        password = command.password.decode("utf-8")
    except UnicodeDecodeError:
        password = command.password.decode("latin-1")  # from an old client
    outcome = await session.backend.authenticator.check_password(command.user, password, session.peer)
    return await _respond(session, outcome)


async def _respond(session: Session, outcome: Success | Failure | None) -> TaggedResponse:
    match outcome:
        case Success(user):
            return await _enter(session, user)
        case Failure(FailureCause.UNAVAILABLE):
            return no("Login is not possible now, try again later", codes.UNAVAILABLE)
        case Failure(FailureCause.CANCELLED):
            raise CommandError("Authentication cancelled")
        case Failure(FailureCause.MALFORMED | FailureCause.TOO_LONG):
            raise CommandError("Invalid authentication response")
    session.count_error()
    return no("User name or password is wrong", codes.AUTHENTICATIONFAILED)


# RFC 3501 6.2.2, 6.2.3: the response may carry the capabilities, which have changed
async def _enter(session: Session, user: str) -> TaggedResponse:
    if not session.log_in(user):
        return no(_TOO_MANY, codes.LIMIT)
    return TaggedResponse("Logged in", codes.capability(session.capabilities()))


# RFC 5161 3.1
@handles(model.Enable)
async def enable(session: Session, command: model.Enable) -> TaggedResponse:
    dialect, names = capabilities.enable(command.capabilities, session.dialect, session.situation)
    session.send(status.enabled(name.encode("ascii") for name in names))
    session.enable(dialect)
    return TaggedResponse("Enabled")


# RFC 4978 3
@handles(model.Compress)
async def compress(session: Session, command: model.Compress) -> TaggedResponse | None:
    if session.connection.is_compressed:
        return no("Compression is active already", codes.COMPRESSIONACTIVE)
    if command.mechanism != "DEFLATE" or not session.server.settings.imap.compress:
        return no("Mechanism is not supported", codes.CANNOT)
    session.send(status.ok(session.tag, "Compression starts now"))
    session.connection.start_compression()
    return None


# RFC 8437 3
@handles(model.Unauthenticate)
async def unauthenticate(session: Session, command: model.Unauthenticate) -> TaggedResponse | None:
    if not session.server.settings.imap.unauthenticate:
        raise CommandError("Unknown command")
    if not session.log_out():
        session.connection.bye("Too many connections", codes.UNAVAILABLE)
        return no("Too many connections", codes.LIMIT)
    session.send(status.ok(session.tag, "Logged out"))
    session.connection.end_compression()
    return None
