"""One IMAP session: its state, what it has enabled and selected, and the response to each command.

The framer's events are handled one at a time, in order. A command is checked against its declaration, parsed and given
to its handler. It ends in exactly one tagged response, preceded by every update of the selected mailbox that may be
announced at this point. An exception of the handler becomes that response.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from adapter.imap.commands import HANDLERS, append, idle
from adapter.imap.handlers import TaggedResponse, failure
from adapter.imap.selected_mailbox import SelectedMailbox
from adapter.net import networks
from adapter.observability.metrics import COMMAND_SECONDS, COMMANDS
from protocol.errors import MailError, ProtocolError, Reason
from protocol.imap.capabilities import Situation, enables_condstore, offered
from protocol.imap.commands.model import Enable
from protocol.imap.commands.registry import CommandSpec, permit
from protocol.imap.commands.search import UnknownCharsetError
from protocol.imap.responses import codes
from protocol.imap.responses import status as responses
from protocol.imap.session_view import emission
from protocol.imap.states import State, StateEvent, StateMachine
from protocol.imap.wire.events import (
    AFTER_LOGIN,
    BEFORE_LOGIN,
    CommandLimits,
    CommandLine,
    Event,
    Line,
    LiteralChunk,
    LiteralStart,
    Refused,
)
from protocol.imap.wire.lexer import CommandError, Dialect

if TYPE_CHECKING:
    from adapter.accounts.login import Authenticator
    from adapter.config.schema import Settings
    from adapter.imap.commands.append import PendingAppend
    from adapter.imap.connection import Connection
    from adapter.imap.server import ImapServer
    from adapter.observability.peer import Peer
    from adapter.read_model.interface import MailboxReader, MailboxWriter, OpenFolder
    from adapter.sessions.admission import Ticket

_log = logging.getLogger(__name__)

#: RFC 7888 5: the largest non-synchronising literal under LITERAL-.
_LITERAL_MINUS_BYTES: Final = 4096
#: Their details repeat a mailbox name, which is private to the user: they are not logged.
_REASONS_ABOUT_NAMES: Final = frozenset((Reason.NO_SUCH_FOLDER, Reason.FOLDER_EXISTS, Reason.BAD_FOLDER_NAME))


def limits_before_login(settings: Settings) -> CommandLimits:
    return replace(BEFORE_LOGIN, non_sync=None if settings.imap.literal_plus else _LITERAL_MINUS_BYTES)


def limits_after_login(settings: Settings) -> CommandLimits:
    return replace(
        AFTER_LOGIN,
        message=settings.limits.message_size,
        non_sync=None if settings.imap.literal_plus else _LITERAL_MINUS_BYTES,
    )


class Backend(Protocol):
    """The open store as sessions use it."""

    @property
    def reader(self) -> MailboxReader: ...

    @property
    def authenticator(self) -> Authenticator: ...

    def writer(self, address: str) -> MailboxWriter: ...


class Session:
    __slots__ = (
        "_backend",
        "_errors_in_a_row",
        "_machine",
        "_spec",
        "_stopping",
        "_writer",
        "account",
        "connection",
        "from_loopback",
        "idle_tag",
        "in_response",
        "peer",
        "pending_append",
        "progress",
        "proxied",
        "selected",
        "server",
        "tag",
        "ticket",
    )

    def __init__(self, server: ImapServer, connection: Connection, peer: Peer, ticket: Ticket) -> None:
        self.server = server
        self.connection = connection
        self.peer = peer
        self.ticket = ticket
        self.from_loopback = networks.is_loopback(peer.address)  # cannot be tapped, even if a proxy names the client
        self.proxied = False  # the peer is the client that a proxy has named
        self._backend: Backend | None = None
        self._machine = StateMachine()
        self._spec: CommandSpec | None = None  # of the command under way
        self._stopping = False
        self._errors_in_a_row = 0  # BAD responses and failed logins
        self.account = ""  # the address that is logged in
        self._writer: MailboxWriter | None = None  # of this account
        self.selected: SelectedMailbox | None = None
        self.pending_append: PendingAppend | None = None  # the messages of the APPEND that is being received
        self.idle_tag: bytes | None = None  # of the IDLE that DONE will end
        self.tag: bytes | None = None  # of the command under way
        self.in_response = False  # an untagged response is sent in part: no other may be sent now
        self.progress: int | None = None  # messages processed by the command under way

    # --- state -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def dialect(self) -> Dialect:
        return self._machine.dialect

    @property
    def tls(self) -> bool:
        return self._machine.tls

    def apply(self, event: StateEvent) -> None:
        """Change the state. Closes the selected mailbox if the new state has none."""
        self._machine.apply(event)
        if self.selected is not None and not self._machine.state.has_mailbox:
            self.selected.close()
            self.selected = None

    def log_in(self, user: str) -> bool:
        """Enter the authenticated state; False if the user has too many connections."""
        if not self.ticket.enter(user):
            return False
        self.apply(StateEvent.LOGGED_IN)
        self.account = user
        self._writer = self.backend.writer(user)
        self.peer = self.peer._replace(user=user)
        self._errors_in_a_row = 0
        self.connection.set_limits(limits_after_login(self.server.settings))
        return True

    # RFC 8437 3
    def log_out(self) -> bool:
        """Return to the not authenticated state; False if the peer has too many connections."""
        if not self.admit_again(self.peer.address):
            return False
        self.apply(StateEvent.UNAUTHENTICATED)
        self.account, self._writer = "", None
        self.peer = self.peer._replace(user="")
        self.connection.set_limits(limits_before_login(self.server.settings))
        return True

    def admit_again(self, address: str) -> bool:
        """Count the connection for this address from here on; False if that has too many."""
        self.ticket.release()
        ticket = self.server.admission.admit("imap", address, self.connection.evict)
        if ticket is None:
            return False
        self.ticket = ticket
        return True

    # RFC 5161 3.1; RFC 7162 3.1
    def enable(self, dialect: Dialect) -> None:
        """Use the extensions that the client has enabled."""
        condstore_enabled = dialect.condstore and not self.dialect.condstore
        self._machine.enable(dialect)
        if self.selected is not None:
            self.selected.view.dialect = dialect
            if condstore_enabled:
                self.send_updates()
                self.send(responses.ok(None, "Highest", codes.highestmodseq(self.selected.view.announced_modseq)))

    @property
    def situation(self) -> Situation:
        settings = self.server.settings
        mechanisms = self.backend.authenticator.mechanisms
        return Situation(
            logged_in=self.state is not State.NOT_AUTHENTICATED,
            tls=self.tls,
            starttls=self.server.certificates.context is not None,
            plaintext=settings.login.allow_plaintext or self.from_loopback,
            plain="PLAIN" in mechanisms,
            login="LOGIN" in mechanisms,
            scram="SCRAM-SHA-256" in mechanisms,
            oauth="OAUTHBEARER" in mechanisms,
            quota=bool(self.account) and self.server.quotas.of(self.account).limited,
            compress=settings.imap.compress and not self.connection.is_compressed,
            literal_plus=settings.imap.literal_plus,
            unauthenticate=settings.imap.unauthenticate,
            append_limit=settings.limits.message_size,
            message_limit=settings.imap.message_limit or None,
        )

    def capabilities(self) -> list[bytes]:
        return [name.encode("ascii") for name in offered(self.situation)]

    # --- the store -------------------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        assert self._backend is not None  # noqa: S101 - no command is handled before the greeting
        return self._backend

    @property
    def reader(self) -> MailboxReader:
        return self.backend.reader

    @property
    def writer(self) -> MailboxWriter:
        assert self._writer is not None  # noqa: S101 - the table of states admits such a command only after login
        return self._writer

    def greet(self, backend: Backend) -> None:
        """Begin the session on an open store."""
        self._backend = backend
        # RFC 3501 7.1.1: the greeting may carry the capabilities, which saves clients a round trip.
        code = codes.capability(self.capabilities())
        self.send(responses.ok(None, f"{self.server.hostname} Markpost ready", code))
        self.connection.flush()

    # --- events of the connection ----------------------------------------------------------------------------------

    async def handle(self, event: Event) -> None:
        match event:
            case CommandLine():  # nearly always
                await self._handle_command(event)
            case LiteralStart():
                self.tag = event.tag
                await self._handle_literal(event)
            case LiteralChunk():
                await append.receive_chunk(self, event)
            case Refused(tag, status, code, text):
                append.discard_pending(self)
                if self.state.is_idle:
                    self.idle_tag = None
                    self.apply(StateEvent.IDLE_ENDED)
                self._send_tagged(
                    tag if tag != b"*" else None,
                    TaggedResponse(text, code.encode("ascii") if code else b"", status.encode("ascii")),
                )
            case Line():
                with contextlib.suppress(MailError):
                    await self._catch_up()
                idle.finish(self, event)
        if self._stopping and self.pending_append is None:
            self._send_shutdown_bye()

    def writable(self) -> None:
        self.mailbox_changed()  # updates were held back while the client did not read

    def input_handled(self) -> None:
        if self._stopping and self.pending_append is None:
            self._send_shutdown_bye()
        else:
            self.mailbox_changed()  # updates were held back while the connection was busy

    def connection_closed(self) -> None:
        _log.info("%s disconnected", self.peer)
        append.discard_pending(self)
        self.apply(StateEvent.CLOSED)
        self.ticket.release()
        self.server.forget(self)

    def report_error(self, error: BaseException) -> None:
        _log.error("%s session failed", self.peer, exc_info=error)

    # --- commands --------------------------------------------------------------------------------------------------

    async def _handle_literal(self, start: LiteralStart) -> None:
        connection = self.connection
        try:
            permit(start.name, self._machine)
            if start.message:
                await append.announce(self, start)
        except CommandError as error:
            connection.refuse_literal(error.status, error.text, error.code)
        except MailError as error:
            response = append.refusal(error)
            connection.refuse_literal("NO", response.text, response.code.decode("ascii"))
        except ProtocolError as error:
            connection.refuse_literal("BAD", str(error))
        else:
            connection.accept_literal()
            if start.sync:
                self.send(responses.continuation("OK"))

    async def _catch_up(self) -> None:
        """Update the caches with everything acknowledged before this command was received. Raises MailError."""
        if self.state is not State.NOT_AUTHENTICATED and self.reader.is_behind:
            await self.reader.catch_up()

    async def _handle_command(self, line: CommandLine) -> None:
        started = perf_counter()
        self.tag = line.tag
        self._spec = spec = None
        try:
            self._spec = spec = permit(line.name, self._machine)
            command = (
                spec.parse(line, self.dialect)
                if self.pending_append is None
                else self.pending_append.parser.finish(line)
            )
            if not self.dialect.condstore and enables_condstore(command) and not isinstance(command, Enable):
                self.enable(replace(self.dialect, condstore=True))
            if line.name != "LOGOUT":
                await self._catch_up()
            response = await HANDLERS[spec.value](self, command)
        except CommandError as error:
            if isinstance(error, UnknownCharsetError) and error.saves:
                self.mailbox.view.save_result(())  # RFC 5182 2.1
            code = error.code.encode("ascii") if error.code else b""
            response = TaggedResponse(error.text, code, error.status.encode("ascii"))
        except ProtocolError as error:
            response = TaggedResponse(str(error), status=b"BAD")
        except MailError as error:
            response = failure(error, into=spec is not None and spec.adds_messages)
            if error.detail and error.reason not in _REASONS_ABOUT_NAMES:
                _log.info("%s %s refused: %s", self.peer, line.name, error.detail)
        except Exception:
            _log.exception("%s %s failed", self.peer, line.name)
            response = TaggedResponse("Internal error", codes.SERVERBUG, b"NO")
        finally:
            append.discard_pending(self)
        if response is not None:
            if response.announces:
                self.send_updates(response)
            self._send_tagged(line.tag, response)
        self._count_command(line.name, response, perf_counter() - started)
        self.tag = self.progress = None

    def report_progress(self, done: int) -> None:
        """Note how many messages the command under way has processed, for INPROGRESS responses."""
        self.progress = done

    def _count_command(self, name: str, response: TaggedResponse | None, seconds: float) -> None:
        command = name if self._spec is not None else "unknown"
        COMMANDS.of("imap", command, response.status.decode("ascii") if response is not None else "OK").add()
        COMMAND_SECONDS.of("imap", command).observe(seconds)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s %s in %.1f ms", self.peer, command, seconds * 1000)

    # --- responses -------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.connection.send(data)

    # RFC 3501 5.2, 7.4.1
    def send_updates(self, response: TaggedResponse | None = None) -> None:
        """Send the changes of the selected mailbox, as far as the command under way may announce them."""
        if self.selected is not None and self.selected.pending:
            point = emission(self._spec, uses_numbers=response is not None and response.uses_numbers)
            updates = self.selected.flush(
                point,
                modseq_sent=response is not None and response.modseq_sent,
                exists_first=response is not None and response.exists_first,
                exists_overlooked=self._spec is not None and not self._spec.asks_for_news,
            )
            if updates:
                self.send(updates)

    def _send_tagged(self, tag: bytes | None, response: TaggedResponse) -> None:
        if response.limited and response.code:
            # RFC 9738 3.1: one response has one code
            self.send(responses.status(None, b"NO", "Only a part was done", response.limited))
        self.send(responses.status(tag, response.status, response.text, response.code or response.limited))
        if response.status == b"BAD":
            self.count_error()
        elif self.state is not State.NOT_AUTHENTICATED:
            self._errors_in_a_row = 0

    def count_error(self) -> None:
        """Count a BAD response or failed login. Disconnects a client that has too many of them in a row."""
        self._errors_in_a_row += 1
        if self._errors_in_a_row >= self.server.settings.imap.bad_commands:
            self.connection.bye("Too many invalid commands")

    # --- the selected mailbox --------------------------------------------------------------------------------------

    @property
    def mailbox(self) -> SelectedMailbox:
        assert self.selected is not None  # noqa: S101 - the command is allowed in the selected state only
        return self.selected

    def open_mailbox(self, folder: OpenFolder, *, read_only: bool) -> SelectedMailbox:
        """Select a mailbox."""
        self.apply(StateEvent.SELECTED)
        self.selected = SelectedMailbox(folder, self.dialect, self, self.reader, read_only=read_only)
        return self.selected

    def mailbox_changed(self) -> None:
        """Send the updates now if the client is in IDLE."""
        if self.state.is_idle and not self.connection.is_busy:
            idle.send_updates(self)

    def mailbox_deleted(self) -> None:
        """Handle the deletion of the selected mailbox by another session."""
        self.apply(StateEvent.MAILBOX_DELETED)
        self.mailbox_changed()

    # --- shutdown --------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the session as soon as no command is in flight."""
        self._stopping = True
        if self.state is State.NOT_AUTHENTICATED or not (self.connection.is_busy or self.pending_append is not None):
            self._send_shutdown_bye()

    def _send_shutdown_bye(self) -> None:
        # RFC 5530 3
        self.connection.bye("Server shutting down, try again later", codes.UNAVAILABLE)

    def cut_off(self) -> None:
        """End the session at once."""
        self.connection.abort()
