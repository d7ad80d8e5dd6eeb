"""One SMTP, LMTP or submission session: commands in, replies out.

The tables and parsers of ``protocol.smtp`` decide which command is allowed when and what its arguments mean;
``commands`` has the handlers. This module runs the connection: admission, TLS, the command loop, and the end.

Invariants: every command gets exactly one reply (LMTP: one for each recipient after a message), in order; after any
reply that does not close, the session is usable; no state of a transaction survives its end.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from adapter.net.networks import canonical
from adapter.observability.metrics import COMMAND_SECONDS, COMMANDS
from adapter.observability.peer import Peer, new_session_id
from adapter.sessions.admission import Stage, Ticket
from adapter.sessions.context import OpenStore
from adapter.smtp.commands import HANDLERS, Commands, Replies
from adapter.smtp.listener_config import ListenerConfig
from adapter.smtp.message import TooSlowError
from adapter.smtp.stream import InterruptedWaitError, PeerGoneError, Stream
from adapter.smtp.transaction import Transaction
from protocol.errors import MailError, ProtocolError, Reason
from protocol.smtp import replies, states
from protocol.smtp.lines import split_command
from protocol.smtp.replies import Reply, SmtpError
from protocol.smtp.states import Event, Phase, Service

_log = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0
_COMMANDS_PER_TURN = 32  # then other sessions get their turn
#: Commands that make progress towards a delivery; all others are counted against the client.
_PROGRESS = frozenset({"RCPT", "DATA", "BDAT"})


@dataclass(slots=True)
class ClientInfo:
    """The client's description in trace fields."""

    hello: str = ""
    override_hello: str | None = None  # by XCLIENT
    override_name: str | None = None  # the client's DNS name, by XCLIENT
    cipher: str | None = None


class SmtpSession(Stream):
    def __init__(self, loop: asyncio.AbstractEventLoop, current_config: Callable[[], ListenerConfig]) -> None:
        super().__init__(loop)
        self._current_config = current_config
        self.apply_settings()
        self.state = self.config.new_session(self.peer_address)
        self.peer = Peer(new_session_id(), self.peer_address)
        self.client = ClientInfo()
        self.account: str | None = None  # of the login
        self.transaction: Transaction | None = None
        self.is_in_sync = True  # the next octets from the client are a command
        self.ticket: Ticket | None = None
        self._store: OpenStore | None = None
        self._is_exempt = False
        self._finishing = False
        self._errors = 0
        self._commands_without_progress = 0
        self._commands = Commands(self)

    def apply_settings(self) -> None:
        """Switch to the current settings; only between transactions, so that none runs under two of them."""
        self.config = self._current_config()
        self.limits = self.config.context.settings.limits

    @property
    def store(self) -> OpenStore:
        if self._store is None:
            raise MailError(Reason.MAINTENANCE)
        return self._store

    # --- the life of a connection ----------------------------------------------------------------------------------

    async def _handle_client(self) -> None:
        context = self.config.context
        context.connections.add(self)
        try:
            await self._read_proxied_address()
            self.peer = Peer(self.peer.session, self.peer_address)
            self.state = self.config.new_session(self.peer_address)
            self._is_exempt = context.admission.exempts(self.peer_address)
            self.ticket = self._admit() if self._is_trusted() else None
            self._store = context.store
            if self.config.implicit_tls:
                if self.ticket is None:  # a handshake for each would be the most expensive part
                    _log.warning("%s connection refused: %s", self.peer, replies.TOO_MANY_CONNECTIONS.text)
                    self.abort()
                    return
                await self.secure(from_start=True)
            refusal = self._refuse_connection()
            if refusal is not None:
                _log.warning("%s connection refused: %s", self.peer, refusal.text)
                self.queue_reply(refusal.wire)
                if self.ticket is None:  # no limit counts this connection: close it soon
                    self.close_soon()
                return
            _log.info("%s connected to %s", self.peer, self.config.service.value)
            await self._run_commands()
        except PeerGoneError:
            _log.info("%s disconnected", self.peer)
        except TimeoutError:
            _log.info("%s timed out", self.peer)
            self.queue_reply(replies.IDLE.wire)
        except TooSlowError:
            _log.info("%s: data rate below limit or message too long; closing", self.peer)
            self.queue_reply(replies.TOO_SLOW.wire)
        except InterruptedWaitError:
            self.queue_reply(replies.SHUTTING_DOWN.wire)
        except ProtocolError:
            _log.warning("%s invalid PROXY header; closing", self.peer)
            self.queue_reply(replies.BAD_PROXY_HEADER.wire)
        except Exception:
            _log.exception("%s session failed; closing", self.peer)
            self.queue_reply(replies.SHUTTING_DOWN.wire)
        finally:
            try:
                await self.end_transaction()
                await self._linger()
            finally:
                if self.ticket is not None:
                    self.ticket.release()
                context.connections.discard(self)

    def _refuse_connection(self) -> Reply | None:
        """The reply to a connection that is not served; None: it is."""
        if self.config.context.ending:
            return replies.SHUTTING_DOWN
        if self._store is None:
            return replies.REASONS[Reason.MAINTENANCE]
        if not self._is_trusted():
            return replies.NOT_TRUSTED
        return replies.TOO_MANY_CONNECTIONS if self.ticket is None else None

    def _is_trusted(self) -> bool:
        return self.config.trusted is None or self.peer_address in self.config.trusted

    def _admit(self) -> Ticket | None:
        return self.config.context.admission.admit(self.config.service.value, self.peer_address, self.give_way)

    def give_way(self) -> None:
        """Close in favour of another connection: the limit is reached."""
        _log.info("%s: connection limit reached; closing in favour of another connection", self.peer)
        self.close_soon(replies.TOO_MANY_CONNECTIONS.wire)

    def set_stage(self, stage: Stage) -> None:
        """Record how much work would be lost if this connection were closed for another."""
        if self.ticket is not None:
            self.ticket.set_stage(stage)

    async def _read_proxied_address(self) -> None:
        """Take the client's address from the PROXY header of a configured proxy; other peers cannot send one."""
        if self.peer_address not in self.config.proxies:
            return
        proxied = await self.read_proxy_header(self.limits.first_command)
        if proxied.source is not None:
            self.peer_address = canonical(proxied.source.address)

    def change_peer(self, address: str) -> bool:
        """Switch to the client that XCLIENT names; False if it has too many connections."""
        self.peer_address = canonical(address)
        self.peer = Peer(self.peer.session, self.peer_address)
        if self.config.service is not Service.SUBMISSION:
            return True  # one server passes on the mail of many clients: its own limits apply
        admission = self.config.context.admission
        if self.ticket is not None:
            self.ticket.release()
        self.ticket = self._admit()
        self._is_exempt = admission.exempts(self.peer_address)
        self.account = None
        return self.ticket is not None

    async def secure(self, *, from_start: bool = False) -> None:
        """Start TLS and drop what the client said before (RFC 3207 4.2). Raises PeerGoneError."""
        certificates = self.config.context.certificates
        context = certificates.verifying_context if self.state.tls_required else certificates.context
        if context is None:
            raise PeerGoneError
        await self.start_tls(context, self.config.context.settings.tls.handshake, from_start=from_start)
        self.client.cipher = self.cipher
        self.state.advance(Event.RESTART)
        self.state.tls = True
        self.client.hello = ""
        self.lines.take()

    async def _linger(self) -> None:
        """Let the last replies arrive: the network drops them if the connection closes with octets unread."""
        if self._is_closing_soon:
            return
        try:
            await self.flush(_LINGER_SECONDS)
        except (PeerGoneError, TimeoutError):
            self.abort()
            return
        if not self._ended and not self._finishing and self.end_writing():
            deadline = self.loop.time() + _LINGER_SECONDS
            try:
                while (left := deadline - self.loop.time()) > 0:
                    await self.receive(left)
            except (PeerGoneError, TimeoutError, InterruptedWaitError):
                pass
        self.close()

    def finish(self) -> None:
        self._finishing = True
        if self.state.phase in (Phase.CONNECTED, Phase.GREETED):
            self.interrupt()

    def cut_off(self) -> None:
        """RFC 5321 3.8: reply with the reason before closing, even in the middle of a transaction."""
        if not self.interrupt():
            self.abort()

    # --- commands --------------------------------------------------------------------------------------------------

    async def _run_commands(self) -> None:
        self.queue_reply(self.config.greeting.wire)
        seconds = self.limits.first_command
        for number in itertools.count(1):
            try:
                line = await self.next_line(seconds)
            except SmtpError as error:
                if self._send("", error.reply):
                    return
            else:
                command, argument = split_command(line)
                started = perf_counter()
                given = await self._execute(command, argument)
                self._count(command, given, perf_counter() - started)
                if self._send(command, given):
                    return
            seconds = self.limits.idle
            if number % _COMMANDS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def next_line(self, seconds: float, limit: int | None = None) -> bytes:
        """The next line; the time limit is for the whole line, however slowly it arrives."""
        deadline = None
        while True:
            line = self.lines.line() if limit is None else self.lines.line(limit)
            if line is not None:
                if self.must_flush:
                    await self.flush(self.limits.idle)
                return line
            await self.flush(self.limits.idle)
            if self._finishing and self.state.phase in (Phase.CONNECTED, Phase.GREETED):
                raise InterruptedWaitError
            now = self.loop.time()
            deadline = now + seconds if deadline is None else deadline
            self.lines.feed(await self.receive(max(0.0, deadline - now)))

    async def _execute(self, command: str, argument: bytes) -> Replies:
        refusal = states.refusal(self.state, command)
        try:
            if refusal is None:
                return await HANDLERS[command](self._commands, argument)
            if command == "BDAT":
                await self._commands.skip_chunk(argument)
            return refusal
        except SmtpError as error:
            return error.reply
        except MailError as error:
            _log.log(
                logging.ERROR if error.reason is Reason.UNKNOWN else logging.INFO,
                "%s %s: %s",
                self.peer,
                command,
                error,
            )
            return replies.reply_to(error) if self.is_in_sync else replies.SHUTTING_DOWN
        except (PeerGoneError, TimeoutError, TooSlowError, InterruptedWaitError):
            raise
        except Exception:
            _log.exception("%s %s failed; replying with a temporary error", self.peer, command)
            return replies.INTERNAL_ERROR if self.is_in_sync else replies.SHUTTING_DOWN

    def _send(self, command: str, given: Replies) -> bool:
        """Queue the replies to a command; True if the session is over."""
        to_send = given if isinstance(given, list) else [] if given is None else [given]
        for reply in to_send:
            self.queue_reply(reply.wire)
        if command not in _PROGRESS:
            self._commands_without_progress += 1
        # An LMTP client passes on the mail of many senders and is not to blame for their recipients.
        if self.config.service is not Service.LMTP:
            self._errors += any(reply.code >= 500 for reply in to_send)
        if any(reply.closes for reply in to_send):
            return True
        exceeded = None if self._is_exempt else self._exceeded_limit()
        if exceeded is not None:
            _log.warning("%s closed: %s", self.peer, exceeded.text)
            self.queue_reply(exceeded.wire)
        return exceeded is not None

    def _exceeded_limit(self) -> Reply | None:
        if self._errors > self.limits.errors:
            return replies.TOO_MANY_ERRORS
        is_over = self._commands_without_progress > self.limits.commands_without_mail
        return replies.TOO_MANY_COMMANDS if is_over else None

    def _count(self, command: str, given: Replies, seconds: float) -> None:
        label = command if command in HANDLERS else "unknown"
        first = given[0] if isinstance(given, list) else given
        protocol = self.config.service.value
        COMMANDS.of(protocol, label, f"{first.code // 100}xx" if first is not None else "2xx").add()
        COMMAND_SECONDS.of(protocol, label).observe(seconds)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s %s in %.1f ms", self.peer, label, seconds * 1000)

    def reset_penalties(self) -> None:
        """After an accepted message, earlier errors no longer count."""
        self._errors = self._commands_without_progress = 0
        if self.ticket is not None:
            self.ticket.remember_peer()

    async def end_transaction(self) -> None:
        """End the transaction and drop its message."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            self.set_stage(Stage.IDLE)
            if transaction.message is not None:
                await transaction.message.discard()
