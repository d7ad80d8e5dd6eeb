"""The handler of each command, below its RFC section. ``protocol.smtp.states`` has decided before that it is allowed.

A handler returns its reply or replies, or None if it sends them itself; it raises SmtpError or MailError to refuse.
DATA and BDAT read downwards: open the message, receive it (``message``), deliver it (``delivery``), return the replies.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from adapter.accounts.recipients import Target
from adapter.content.html import html_alternative
from adapter.net.networks import UNIX
from adapter.sessions.admission import Stage
from adapter.smtp.delivery import Origin, deliver, final_replies
from adapter.smtp.message import IncomingMessage, Reader, TooSlowError, receive
from adapter.smtp.submission import check_sender, header_editor
from adapter.smtp.transaction import Recipient, Transaction
from protocol.errors import MailError
from protocol.sasl import mechanisms
from protocol.smtp import commands, ehlo, replies, trace
from protocol.smtp.data import ChunkReader, DataReader, Intake, LineEnds, parse_bdat
from protocol.smtp.lines import MAX_AUTH_LINE
from protocol.smtp.paths import Path
from protocol.smtp.replies import Reply, SmtpError
from protocol.smtp.states import Event, Service
from protocol.smtp.xclient import parse_xclient

if TYPE_CHECKING:
    from adapter.smtp.session import SmtpSession

_log = logging.getLogger(__name__)

Replies = Reply | list[Reply] | None

# The same few senders and recipients come again and again; the parsed values are immutable.
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
        session.apply_settings()
        session.client.hello = name
        session.state.extended = extended
        session.state.advance(Event.HELLO)
        self._mail_parameters = ehlo.mail_parameters(session.state)
        self._rcpt_parameters = ehlo.rcpt_parameters(session.state)
        keywords = ehlo.keywords(session.state, session.config.message_limits) if extended else ()
        return replies.hello(session.config.context.hostname, keywords)

    # --- RFC 5321 4.1.1.2 ------------------------------------------------------------------------------------------

    async def mail(self, argument: bytes) -> Reply:
        session = self._session
        session.apply_settings()
        is_lmtp = session.config.service is Service.LMTP
        command = _parse_mail(argument, self._mail_parameters, allow_bare_name=is_lmtp)
        if command.size is not None and command.size > session.config.message_limits.message_size:
            return replies.TOO_BIG
        if session.account is not None:
            check_sender(session.store.recipients, session.account, command.path)
        self._transactions += 1
        session.transaction = Transaction(f"{session.peer.session}.{self._transactions}", command.path.address, command)
        session.set_stage(Stage.TRANSACTION)
        session.state.advance(Event.SENDER)
        session.state.binary = session.transaction.is_binary
        return replies.SENDER_OK

    # --- RFC 5321 4.1.1.3 ------------------------------------------------------------------------------------------

    async def rcpt(self, argument: bytes) -> Reply:
        session, transaction = self._session, self._open_transaction
        if len(transaction.recipients) >= session.config.message_limits.recipients:
            return replies.TOO_MANY_RECIPIENTS
        command = _parse_rcpt(argument, self._rcpt_parameters, smtputf8=transaction.mail.smtputf8)
        try:
            targets = await self._find_targets(command.path)
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

    async def _find_targets(self, path: Path) -> tuple[Target, ...] | None:
        """The mailboxes of an address, provisioned if need be; None: the domain is not ours. Raises MailError."""
        store = self._session.store
        loop = asyncio.get_running_loop()
        await store.provisioner.provision_recipient(path)
        try:
            targets = store.recipients.resolve(path)
        except MailError:
            targets = None
        if targets is None or not store.recipients.is_certain(path):
            targets = await loop.run_in_executor(store.pool, store.recipients.resolve_fresh, path)
        if targets is None or not any(map(store.recipients.needs_query, targets)):
            return targets
        checked: list[Target] = []
        errors: list[MailError] = []
        size = self._open_transaction.mail.size or 0
        for target in targets:
            try:
                checked.append(await loop.run_in_executor(store.pool, store.recipients.check, target, size))
            except MailError as error:
                errors.append(error)
        # As after the message: one temporary error defers all mailboxes; permanent errors do not affect the others.
        temporary = [error for error in errors if error.temporary]
        if temporary or not checked:
            raise (temporary or errors)[0]
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
        # Before 354: if this fails, the client has not been asked for the message and goes on with commands.
        message = transaction.message = self._open_message(transaction)
        session.queue_reply(replies.START_DATA.wire)
        await self._receive(DataReader(message.intake), transaction, is_last=True)
        return await self._deliver(transaction, message)

    async def bdat(self, argument: bytes) -> Replies:
        session, transaction = self._session, self._open_transaction
        chunk = parse_bdat(argument)
        session.is_in_sync = False  # the octets of the chunk follow even if this fails
        message = transaction.message = transaction.message or self._open_message(transaction)
        await self._receive(ChunkReader(chunk, message.intake), transaction, is_last=chunk.last)
        if chunk.last:
            return await self._deliver(transaction, message)
        refusal = message.refusal
        session.state.advance(Event.CHUNK if refusal is None else Event.CHUNK_FAILED)
        return replies.CHUNK_OK if refusal is None else refusal

    async def skip_chunk(self, argument: bytes) -> None:
        """RFC 3030 section 2: the octets of a refused BDAT follow all the same."""
        session = self._session
        session.is_in_sync = False
        await receive(session, session.limits, ChunkReader(parse_bdat(argument), None), None)
        session.is_in_sync = True

    def _open_message(self, transaction: Transaction) -> IncomingMessage:
        """Open a spool for the message, with the trace fields that it gets (RFC 5321 4.4)."""
        session, recipients = self._session, transaction.recipients
        store, config, client = session.store, session.config, session.client
        now = datetime.now(UTC)
        hop = trace.Hop(
            hello=client.override_hello or client.hello,
            peer=None if session.peer_address == UNIX else session.peer_address,
            peer_name=client.override_name,
            host=config.context.hostname,
            keyword=trace.with_keyword(session.state, smtputf8=transaction.mail.smtputf8),
            id=transaction.id,
            date=now,
            recipient=recipients[0].address if len(recipients) == 1 else None,
            tls=client.cipher,
        )
        fields = trace.received_field(hop)
        # RFC 5321 4.4: Return-Path is for final delivery; the relay removes it from mail for other hosts.
        if any(recipient.targets for recipient in recipients):
            fields = trace.return_path(transaction.sender) + fields
        intake = Intake(config.message_limits, LineEnds.KEEP if transaction.is_binary else config.line_ends)
        account = session.account
        if account is None:
            return IncomingMessage(store, intake, fields)
        return IncomingMessage(
            store,
            intake,
            fields,
            header_editor(store.recipients, account, now),
            html_alternative.add_html if store.recipients.adds_html(account) else None,
            html_alternative.is_markdown,
        )

    async def _receive(self, reader: Reader, transaction: Transaction, *, is_last: bool) -> None:
        session, message = self._session, transaction.message
        session.is_in_sync = False
        try:
            await receive(session, session.limits, reader, message)
        except TooSlowError:
            if message is not None and message.refusal is not None:  # the client learns the refusal as well
                refusal = message.refusal
                given = final_replies(session.config.service, transaction, refusal) if is_last else [refusal]
                for reply in given:
                    session.queue_reply(reply.wire)
            raise
        session.is_in_sync = True

    async def _deliver(self, transaction: Transaction, message: IncomingMessage) -> list[Reply]:
        """RFC 5321 4.1.1.4: whatever the replies are, the transaction is over and the next may begin."""
        session = self._session
        session.set_stage(Stage.STORING)
        origin = Origin(session.config.service, session.peer, session.account, session.config.context.hostname)
        given = await deliver(session.store, transaction, message, origin)
        await session.end_transaction()
        session.state.advance(Event.END)
        if any(reply.positive for reply in given):
            session.reset_penalties()
        return given

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
        """RFC 5321 7.3: never reveal which addresses exist."""
        return replies.CANNOT_VERIFY if argument else replies.BAD_SYNTAX

    async def quit(self, argument: bytes) -> Reply:
        return replies.NO_ARGUMENTS if argument else replies.GOODBYE

    # --- RFC 3207 --------------------------------------------------------------------------------------------------

    async def starttls(self, argument: bytes) -> Reply | None:
        session = self._session
        if argument:
            return replies.NO_ARGUMENTS
        if session.config.context.certificates.context is None:
            return replies.TLS_UNAVAILABLE
        session.lines.take()
        session.queue_reply(replies.TLS_READY.wire)
        await session.flush(session.limits.idle)
        await session.secure()
        return None

    # --- RFC 4954 --------------------------------------------------------------------------------------------------

    async def auth(self, argument: bytes) -> Reply:
        session = self._session
        mechanism, response = commands.parse_auth(argument)
        initial = None if response is None else mechanisms.decode_initial(response)
        if isinstance(initial, mechanisms.Failure):
            return replies.AUTH_ERRORS[initial.cause]
        login = session.store.authenticator.authenticate(mechanism, initial, self._exchange_line, session.peer)
        outcome = await session.while_connected(login)
        if outcome is None:
            return replies.UNKNOWN_MECHANISM
        if isinstance(outcome, mechanisms.Failure):
            return replies.AUTH_ERRORS[outcome.cause]
        if session.ticket is not None and not session.ticket.enter(outcome.user):
            return replies.TOO_MANY_CONNECTIONS
        session.account = outcome.user
        session.peer = session.peer._replace(user=outcome.user)
        session.state.authenticated = True
        return replies.AUTHENTICATED

    async def _exchange_line(self, challenge: bytes) -> bytes | mechanisms.Failure:
        session = self._session
        session.queue_reply(replies.challenge(challenge))
        try:
            line = await session.next_line(session.limits.idle, MAX_AUTH_LINE)
        except SmtpError:
            return mechanisms.Failure(mechanisms.FailureCause.TOO_LONG)
        return mechanisms.decode_line(line)

    # --- Postfix XCLIENT -------------------------------------------------------------------------------------------

    async def xclient(self, argument: bytes) -> Reply:
        session = self._session
        override = parse_xclient(argument)
        if override.address is not None and not session.change_peer(override.address):
            return replies.TOO_MANY_CONNECTIONS
        session.state.advance(Event.RESTART)
        session.client.hello = ""
        session.client.override_hello = override.hello
        session.client.override_name = override.name
        _log.info("%s client set by XCLIENT", session.peer)
        return session.config.greeting


Handler = Callable[[Commands, bytes], Awaitable[Replies]]
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
