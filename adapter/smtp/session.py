"""One SMTP, LMTP or submission session: commands in, replies out.

Which command is allowed when, what it means and what is answered are tables and parsers of ``protocol.smtp``; here
they are put to work. A handler returns its reply, or raises SmtpError or MailError for a refusal.

Invariants: every command gets exactly one reply (LMTP: one for each recipient after a message), in order; after any
reply that does not close, the session is usable; nothing of a transaction survives its end.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from time import perf_counter

from adapter.net.networks import Peer, canonical
from adapter.observability.metrics import COMMAND_SECONDS, COMMANDS
from adapter.sessions.admission import Stage, Ticket
from adapter.sessions.context import OpenStore
from adapter.smtp.commands import HANDLERS, Answer, Commands
from adapter.smtp.listener_config import Edge, fresh_session_id
from adapter.smtp.pace import TooSlowError
from adapter.smtp.stream import InterruptedWaitError, PeerGoneError, Stream
from adapter.smtp.transaction import Transaction
from protocol.errors import MailError, ProtocolError, Reason
from protocol.smtp import replies, states
from protocol.smtp.lines import LineBuffer, split_command
from protocol.smtp.replies import Reply, SmtpError
from protocol.smtp.states import Event, Phase, Service

_log = logging.getLogger(__name__)

_LINGER = 1.0
_YIELD_EVERY = 32
#: Commands that bring mail nearer; all others are counted.
_USEFUL = frozenset({"RCPT", "DATA", "BDAT"})


class SmtpSession(Stream):
    def __init__(self, loop: asyncio.AbstractEventLoop, current_edge: Callable[[], Edge]) -> None:
        super().__init__(loop)
        self._current_edge = current_edge
        self.renew()
        self.lines = LineBuffer()
        self.state = self.edge.new_session(self.peer_address)
        self.peer = Peer(fresh_session_id(), self.peer_address)
        self.hello = ""
        self.told_hello: str | None = None  # what XCLIENT said the client calls itself
        self.told_name: str | None = None  # and what its name is in the DNS
        self.cipher: str | None = None  # for people, in trace headers
        self.account: str | None = None  # who logged in
        self.transaction: Transaction | None = None
        self.in_step = True  # what comes next from the client is a command
        self.ticket: Ticket | None = None
        self._store: OpenStore | None = None
        self._exempt = False
        self._finishing = False
        self._errors = 0
        self._idle_commands = 0
        self._commands = Commands(self)

    def renew(self) -> None:
        """Go by the settings as they are now; between transactions, so that none is under two of them."""
        self.edge = self._current_edge()
        self.limits = self.edge.services.settings.limits

    @property
    def store(self) -> OpenStore:
        if self._store is None:
            raise MailError(Reason.MAINTENANCE)
        return self._store

    # --- the life of a connection ----------------------------------------------------------------------------------

    async def _handle_client(self) -> None:
        services = self.edge.services
        services.connections.add(self)
        try:
            await self._hear_proxy()
            self.peer = Peer(self.peer.session, self.peer_address)
            self.state = self.edge.new_session(self.peer_address)
            self._exempt = services.admission.exempts(self.peer_address)
            self.ticket = self._admit() if self._is_welcome() else None
            self._store = services.store
            if self.edge.implicit_tls:
                if self.ticket is None:  # a handshake for each would be the costliest thing of all
                    _log.warning("%s turned away: %s", self.peer, replies.TOO_MANY_CONNECTIONS.text)
                    self.abort()
                    return
                await self.secure(from_start=True)
            turned_away = self._turned_away()
            if turned_away is not None:
                _log.warning("%s turned away: %s", self.peer, turned_away.text)
                self.say(turned_away.wire)
                if self.ticket is None:  # no limit counts this connection: it must not last
                    self.cut_short()
                return
            _log.info("%s connected to %s", self.peer, self.edge.service.value)
            await self._converse()
        except PeerGoneError:
            _log.info("%s gone", self.peer)
        except TimeoutError:
            _log.info("%s timed out", self.peer)
            self.say(replies.IDLE.wire)
        except TooSlowError:
            _log.info("%s sends too slowly, or without end", self.peer)
            self.say(replies.TOO_SLOW.wire)
        except InterruptedWaitError:
            self.say(replies.SHUTTING_DOWN.wire)
        except ProtocolError:
            _log.warning("%s bad PROXY header", self.peer)
            self.say(replies.BAD_PROXY_HEADER.wire)
        except Exception:
            _log.exception("%s session failed", self.peer)
            self.say(replies.SHUTTING_DOWN.wire)
        finally:
            try:
                await self.end_transaction()
                await self._linger()
            finally:
                if self.ticket is not None:
                    self.ticket.release()
                services.connections.discard(self)

    def _turned_away(self) -> Reply | None:
        services = self.edge.services
        if services.ending:
            return replies.SHUTTING_DOWN
        if self._store is None:
            return replies.REASONS[Reason.MAINTENANCE]
        if not self._is_welcome():
            return replies.NOT_WELCOME
        return replies.TOO_MANY_CONNECTIONS if self.ticket is None else None

    def _is_welcome(self) -> bool:
        return self.edge.welcome is None or self.peer_address in self.edge.welcome

    def _admit(self) -> Ticket | None:
        return self.edge.services.admission.admit(self.edge.service.value, self.peer_address, self.give_way)

    def give_way(self) -> None:
        """Close in favour of another connection: the server has too many."""
        _log.info("%s gives way to another connection", self.peer)
        self.cut_short(replies.TOO_MANY_CONNECTIONS.wire)

    def set_stage(self, stage: Stage) -> None:
        """Record how much would be lost if this connection gave way."""
        if self.ticket is not None:
            self.ticket.set_stage(stage)

    async def _hear_proxy(self) -> None:
        """Configured peers say first for whom they speak; nobody else is believed."""
        if self.peer_address not in self.edge.proxies:
            return
        proxied = await self.read_proxy_header(self.limits.first_command)
        if proxied.source is not None:
            self.peer_address = canonical(proxied.source.address)

    def speak_for(self, address: str) -> bool:
        """The client is another from now on; False if it has too many connections."""
        self.peer_address = canonical(address)
        self.peer = Peer(self.peer.session, self.peer_address)
        if self.edge.service is not Service.SUBMISSION:
            return True  # a server hands over the mail of many: it has its own limits
        admission = self.edge.services.admission
        if self.ticket is not None:
            self.ticket.release()
        self.ticket = self._admit()
        self._exempt = admission.exempts(self.peer_address)
        self.account = None
        return self.ticket is not None

    async def secure(self, *, from_start: bool = False) -> None:
        """The handshake; what was known of the client before is forgotten (RFC 3207 4.2). Raises PeerGoneError."""
        certificates = self.edge.services.certificates
        context = certificates.verifying_context if self.state.tls_required else certificates.context
        if context is None:
            raise PeerGoneError
        await self.start_tls(context, self.edge.services.settings.tls.handshake, from_start=from_start)
        name, version, _ = self.transport.get_extra_info("cipher") if self.transport else ("", "", 0)
        self.cipher = f"{version} {name}"
        self.state.advance(Event.RESTART)
        self.state.tls = True
        self.hello = ""
        self.lines.take()

    async def _linger(self) -> None:
        """Let the last words arrive: closing with octets unread would make the network throw them away."""
        if self._is_cut_short:
            return
        try:
            await self.flush(_LINGER)
        except (PeerGoneError, TimeoutError):
            self.abort()
            return
        if not self._ended and not self._finishing and self.end_writing():
            until = self.loop.time() + _LINGER
            try:
                while (left := until - self.loop.time()) > 0:
                    await self.receive(left)
            except (PeerGoneError, TimeoutError, InterruptedWaitError):
                pass
        self.hang_up()

    def finish(self) -> None:
        self._finishing = True
        if self.state.phase in (Phase.CONNECTED, Phase.GREETED):
            self.interrupt()

    def cut_off(self) -> None:
        """RFC 5321 3.8: in the middle of a transaction, too, the client hears why the connection ends."""
        if not self.interrupt():
            self.abort()

    # --- commands --------------------------------------------------------------------------------------------------

    async def _converse(self) -> None:
        self.say(self.edge.greeting.wire)
        patience = self.limits.first_command
        for number in itertools.count(1):
            try:
                line = await self.next_line(patience)
            except SmtpError as error:
                if self._answer("", error.reply):
                    return
            else:
                command, argument = split_command(line)
                began = perf_counter()
                answer = await self._obey(command, argument)
                self._count(command, answer, perf_counter() - began)
                if self._answer(command, answer):
                    return
            patience = self.limits.idle
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _answer(self, command: str, answer: Answer) -> bool:
        """Say it; whether the session is over."""
        given = answer if isinstance(answer, list) else [] if answer is None else [answer]
        for reply in given:
            self.say(reply.wire)
        if command not in _USEFUL:
            self._idle_commands += 1
        # A server that hands over the mail of many is not to blame for their recipients.
        if self.edge.service is not Service.LMTP:
            self._errors += any(reply.code >= 500 for reply in given)
        if any(reply.closes for reply in given):
            return True
        over = None if self._exempt else self._too_much()
        if over is not None:
            _log.warning("%s closed: %s", self.peer, over.text)
            self.say(over.wire)
        return over is not None

    def _count(self, command: str, answer: Answer, seconds: float) -> None:
        known = command if command in HANDLERS else "unknown"
        first = answer[0] if isinstance(answer, list) else answer
        protocol = self.edge.service.value
        COMMANDS.of(protocol, known, f"{first.code // 100}xx" if first is not None else "2xx").add()
        COMMAND_SECONDS.of(protocol, known).observe(seconds)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s %s in %.1f ms", self.peer, known, seconds * 1000)

    def _too_much(self) -> Reply | None:
        if self._errors > self.limits.errors:
            return replies.TOO_MANY_ERRORS
        return replies.TOO_MANY_COMMANDS if self._idle_commands > self.limits.commands_without_mail else None

    async def next_line(self, patience: float, limit: int | None = None) -> bytes:
        """The next line; ``patience`` is for the whole of it, however slowly it comes."""
        until = None
        while True:
            line = self.lines.line() if limit is None else self.lines.line(limit)
            if line is not None:
                if self.crowded:
                    await self.flush(self.limits.idle)
                return line
            await self.flush(self.limits.idle)
            if self._finishing and self.state.phase in (Phase.CONNECTED, Phase.GREETED):
                raise InterruptedWaitError
            now = self.loop.time()
            until = now + patience if until is None else until
            self.lines.feed(await self.receive(max(0.0, until - now)))

    async def _obey(self, command: str, argument: bytes) -> Answer:
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
            return replies.reply_to(error) if self.in_step else replies.SHUTTING_DOWN
        except (PeerGoneError, TimeoutError, TooSlowError, InterruptedWaitError):
            raise
        except Exception:
            _log.exception("%s %s failed", self.peer, command)
            return replies.INTERNAL_ERROR if self.in_step else replies.SHUTTING_DOWN

    def message_accepted(self) -> None:
        """What was said before counts no more."""
        self._errors = self._idle_commands = 0
        if self.ticket is not None:
            self.ticket.remember_peer()

    async def end_transaction(self) -> None:
        """The transaction is over, whatever it came to."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            self.set_stage(Stage.IDLE)
        if transaction is not None and transaction.incoming is not None:
            await transaction.incoming.discard()
