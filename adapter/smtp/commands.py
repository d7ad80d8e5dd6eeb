"""What each command does. The RFC section stands above each; what is allowed when is decided before (``states``).

A handler returns its reply or replies, or None if there is nothing to say; it raises SmtpError or MailError for a
refusal.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from adapter.accounts.recipients import Target
from adapter.sessions.admission import Stage
from adapter.smtp import message
from adapter.smtp.pace import TooSlowError
from adapter.smtp.spool import Incoming
from adapter.smtp.submission import check_sender
from adapter.smtp.transaction import Recipient, Transaction
from protocol.errors import MailError
from protocol.sasl import mechanisms
from protocol.smtp import commands, ehlo, replies
from protocol.smtp.data import ChunkReader, DataReader, parse_bdat
from protocol.smtp.lines import AUTH_LIMIT
from protocol.smtp.paths import Path
from protocol.smtp.replies import Reply, SmtpError
from protocol.smtp.states import Event, Service
from protocol.smtp.xclient import parse_xclient

if TYPE_CHECKING:
    from adapter.smtp.session import SmtpSession

_log = logging.getLogger(__name__)

Answer = Reply | list[Reply] | None

# The same few senders and recipients come again and again; what was parsed is immutable.
_parse_mail = functools.lru_cache(512)(commands.parse_mail)
_parse_rcpt = functools.lru_cache(512)(commands.parse_rcpt)


class Commands:
    def __init__(self, session: SmtpSession) -> None:
        self._session = session
        self._mail_parameters: frozenset[str] = frozenset()
        self._rcpt_parameters: frozenset[str] = frozenset()
        self._transactions = 0

    # --- RFC 5321 4.1.1.1, RFC 2033 4.1 ----------------------------------------------------------------------------

    async def helo(self, argument: bytes) -> Reply:
        return await self._greet(argument, extended=False)

    async def ehlo(self, argument: bytes) -> Reply:
        return await self._greet(argument, extended=True)

    async def _greet(self, argument: bytes, *, extended: bool) -> Reply:
        session = self._session
        name = commands.parse_hello(argument)
        await session.end_transaction()
        session.renew()
        session.hello = name
        session.state.extended = extended
        session.state.advance(Event.HELLO)
        self._mail_parameters = ehlo.mail_parameters(session.state)
        self._rcpt_parameters = ehlo.rcpt_parameters(session.state)
        keywords = ehlo.keywords(session.state, session.edge.limits) if extended else ()
        return replies.hello(session.edge.services.hostname, keywords)

    # --- RFC 5321 4.1.1.2 ------------------------------------------------------------------------------------------

    async def mail(self, argument: bytes) -> Reply:
        session = self._session
        session.renew()
        is_lmtp = session.edge.service is Service.LMTP
        command = _parse_mail(argument, self._mail_parameters, allow_bare_name=is_lmtp)
        if command.size is not None and command.size > session.edge.limits.message_size:
            return replies.TOO_BIG
        if session.account is not None:
            check_sender(session.store.recipients, session.account, command.path)
        self._transactions += 1
        session.transaction = Transaction(f"{session.peer.session}.{self._transactions}", command.path.address, command)
        session.set_stage(Stage.TRANSACTION)
        session.state.advance(Event.SENDER)
        session.state.binary = session.transaction.binary
        return replies.SENDER_OK

    # --- RFC 5321 4.1.1.3 ------------------------------------------------------------------------------------------

    async def rcpt(self, argument: bytes) -> Reply:
        session, transaction = self._session, self._open_transaction
        if len(transaction.recipients) >= session.edge.limits.recipients:
            return replies.TOO_MANY_RECIPIENTS
        command = _parse_rcpt(argument, self._rcpt_parameters, smtputf8=transaction.mail.smtputf8)
        try:
            targets = await self._targets(command.path)
        except MailError as error:
            _log.info("%s recipient <%s> refused: %s", session.peer, command.path.address, error.public)
            raise
        if targets is None and not (session.account and session.store.settings.relay.host):
            refusal = replies.NO_RELAY if session.account else replies.RELAY_DENIED
            _log.info("%s recipient <%s> refused: %s", session.peer, command.path.address, refusal.text)
            return refusal
        transaction.recipients.append(Recipient(command.path.address, command, targets or ()))
        session.state.advance(Event.RECIPIENT)
        return replies.RECIPIENT_OK

    async def _targets(self, path: Path) -> tuple[Target, ...] | None:
        store = self._session.store
        loop = asyncio.get_running_loop()
        await store.newcomers.look_for(path)
        try:
            found = store.recipients.find(path)
        except MailError:
            found = None
        if found is None or not store.recipients.is_certain(path):
            found = await loop.run_in_executor(store.pool, store.recipients.find_again, path)
        if found is None or not any(map(store.recipients.needs_query, found)):
            return found
        checked: list[Target] = []
        errors: list[MailError] = []
        size = self._open_transaction.mail.size or 0
        for target in found:
            try:
                checked.append(await loop.run_in_executor(store.pool, store.recipients.check, target, size))
            except MailError as error:
                errors.append(error)
        # As after the message: one who may have it later makes all wait, one who will never have it does not.
        later = [error for error in errors if error.temporary]
        if later or not checked:
            raise (later or errors)[0]
        return tuple(checked)

    @property
    def _open_transaction(self) -> Transaction:
        transaction = self._session.transaction
        if transaction is None:
            raise SmtpError(replies.MAIL_FIRST)
        return transaction

    # --- RFC 5321 4.1.1.4, RFC 3030 --------------------------------------------------------------------------------

    async def data(self, argument: bytes) -> list[Reply]:
        session, transaction = self._session, self._open_transaction
        if argument:
            raise SmtpError(replies.NO_ARGUMENTS)
        # First: should that fail, the client has not been asked for the message, and what comes next are commands.
        incoming = transaction.incoming = message.begin(session, transaction)
        session.say(replies.START_DATA.wire)
        await self._pump(DataReader(incoming.intake), incoming)
        return await message.complete(session, transaction, incoming)

    async def bdat(self, argument: bytes) -> Answer:
        session, transaction = self._session, self._open_transaction
        chunk = parse_bdat(argument)
        session.in_step = False  # the octets of the chunk come whatever happens here
        if transaction.incoming is None:
            transaction.incoming = message.begin(session, transaction)
        incoming = transaction.incoming
        await self._pump(ChunkReader(chunk, incoming.intake), incoming, last=chunk.last)
        if chunk.last:
            return await message.complete(session, transaction, incoming)
        refusal = incoming.refusal
        session.state.advance(Event.CHUNK if refusal is None else Event.CHUNK_FAILED)
        return replies.CHUNK_OK if refusal is None else refusal

    async def skip_chunk(self, argument: bytes) -> None:
        """RFC 3030 section 2: the octets of a refused BDAT come all the same."""
        await self._pump(ChunkReader(parse_bdat(argument), None), None)

    async def _pump(self, reader: message.Reader, incoming: Incoming | None, *, last: bool = True) -> None:
        session = self._session
        session.in_step = False
        try:
            await message.pump(session, reader, incoming)
        except TooSlowError:
            if incoming is not None and incoming.refusal is not None:  # not for its pace alone: that is said
                refusal = incoming.refusal
                told = message.replies_to(session, self._open_transaction, refusal) if last else [refusal]
                for reply in told:
                    session.say(reply.wire)
            raise
        session.in_step = True

    # --- RFC 5321 4.1.1.5 to 4.1.1.10 ------------------------------------------------------------------------------

    async def rset(self, argument: bytes) -> Reply:
        if argument:
            return replies.NO_ARGUMENTS
        await self._session.end_transaction()
        self._session.state.advance(Event.END)
        return replies.OK

    async def noop(self, argument: bytes) -> Reply:
        return replies.OK

    async def help(self, argument: bytes) -> Reply:
        return replies.HELP

    async def vrfy(self, argument: bytes) -> Reply:
        """RFC 5321 7.3: nothing is told about who is here."""
        return replies.CANNOT_VERIFY if argument else replies.BAD_SYNTAX

    async def quit(self, argument: bytes) -> Reply:
        return replies.NO_ARGUMENTS if argument else replies.GOODBYE

    # --- RFC 3207 --------------------------------------------------------------------------------------------------

    async def starttls(self, argument: bytes) -> Reply | None:
        session = self._session
        if argument:
            return replies.NO_ARGUMENTS
        if session.edge.services.certificates.context is None:
            return replies.TLS_UNAVAILABLE
        session.lines.take()
        session.say(replies.TLS_READY.wire)
        await session.flush(session.limits.idle)
        await session.secure()
        return None

    # --- RFC 4954 --------------------------------------------------------------------------------------------------

    async def auth(self, argument: bytes) -> Reply:
        session = self._session
        mechanism, response = commands.parse_auth(argument)
        initial = None if response is None else mechanisms.decode_initial(response)
        if isinstance(initial, mechanisms.Failure):
            return replies.AUTH_TROUBLES[initial.trouble]
        login = session.store.authenticator.authenticate(mechanism, initial, self._ask, session.peer)
        outcome = await session.while_connected(login)
        if outcome is None:
            return replies.UNKNOWN_MECHANISM
        if isinstance(outcome, mechanisms.Failure):
            return replies.AUTH_TROUBLES[outcome.trouble]
        if session.ticket is not None and not session.ticket.enter(outcome.user):
            return replies.TOO_MANY_CONNECTIONS
        session.account = outcome.user
        session.peer = session.peer._replace(user=outcome.user)
        session.state.authenticated = True
        return replies.AUTHENTICATED

    async def _ask(self, challenge: bytes) -> bytes | mechanisms.Failure:
        session = self._session
        session.say(replies.challenge(challenge))
        try:
            line = await session.next_line(session.limits.idle, AUTH_LIMIT)
        except SmtpError:
            return mechanisms.Failure(mechanisms.Trouble.TOO_LONG)
        return mechanisms.decode_line(line)

    # --- Postfix XCLIENT -------------------------------------------------------------------------------------------

    async def xclient(self, argument: bytes) -> Reply:
        session = self._session
        override = parse_xclient(argument)
        if override.address is not None and not session.speak_for(override.address):
            return replies.TOO_MANY_CONNECTIONS
        session.state.advance(Event.RESTART)
        session.hello = ""
        session.told_hello = override.hello
        session.told_name = override.name
        _log.info("%s speaks for this client now", session.peer)
        return session.edge.greeting


Handler = Callable[[Commands, bytes], Awaitable[Answer]]
HANDLERS: dict[str, Handler] = {
    "HELO": Commands.helo,
    "EHLO": Commands.ehlo,
    "LHLO": Commands.ehlo,
    "MAIL": Commands.mail,
    "RCPT": Commands.rcpt,
    "DATA": Commands.data,
    "BDAT": Commands.bdat,
    "RSET": Commands.rset,
    "NOOP": Commands.noop,
    "HELP": Commands.help,
    "VRFY": Commands.vrfy,
    "QUIT": Commands.quit,
    "STARTTLS": Commands.starttls,
    "AUTH": Commands.auth,
    "XCLIENT": Commands.xclient,
}
