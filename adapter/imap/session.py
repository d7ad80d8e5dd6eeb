"""One client's conversation: what it is allowed, what it has enabled and selected, and the answer to each command.

The framer's events come in order, one at a time. A command is checked against the table of states, parsed, given to
its handler, and ends in exactly one tagged response, before which everything is told about the selected mailbox that
may be told at this point. Whatever a handler raises becomes that response.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from adapter.imap.commands import HANDLERS, append, idle
from adapter.imap.handlers import Answer, failed
from adapter.imap.selected_mailbox import Selected
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
from protocol.imap.wire.events import CommandLine, Event, Line, LiteralChunk, LiteralStart, Refused
from protocol.imap.wire.lexer import CommandError, Dialect

if TYPE_CHECKING:
    from adapter.imap.commands.append import Upload
    from adapter.imap.connection import Connection
    from adapter.imap.server import Backend, ImapServer
    from adapter.net.networks import Peer
    from adapter.read_model.folder_cache import FolderState
    from adapter.read_model.mailboxes import Mailboxes
    from adapter.sessions.admission import Ticket

_log = logging.getLogger(__name__)


#: Their details repeat what the client sent, which is nobody else's business.
_OF_NAMES = frozenset((Reason.NO_SUCH_FOLDER, Reason.FOLDER_EXISTS, Reason.BAD_FOLDER_NAME))


class Session:
    __slots__ = (
        "_backend",
        "_ending",
        "_machine",
        "_spec",
        "account",
        "connection",
        "from_loopback",
        "idle_tag",
        "in_response",
        "peer",
        "progress",
        "proxied",
        "selected",
        "server",
        "tag",
        "ticket",
        "troubles",
        "upload",
    )

    def __init__(self, server: ImapServer, connection: Connection, peer: Peer, ticket: Ticket) -> None:
        self.server = server
        self.connection = connection
        self.peer = peer
        self.ticket = ticket
        self.from_loopback = networks.is_loopback(peer.address)  # nobody can listen, whoever it speaks for
        self.proxied = False  # the peer is the client a proxy speaks for
        self._backend: Backend | None = None
        self._machine = StateMachine()
        self._spec: CommandSpec | None = None  # of the command under way
        self._ending = False
        self.account = ""  # the address that is logged in
        self.selected: Selected | None = None
        self.upload: Upload | None = None  # of the APPEND that is coming in
        self.idle_tag: bytes | None = None
        self.tag: bytes | None = None  # of the command under way
        self.in_response = False  # a response is sent in part: nothing else may be sent now
        self.progress: int | None = None  # what the command under way has done so far
        self.troubles = 0  # BAD answers and failed logins in a row

    # --- what the client may do ------------------------------------------------------------------------------------

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
        """Change the state; the selected mailbox is closed when the new state has none."""
        self._machine.apply(event)
        if self.selected is not None and not self._machine.state.has_mailbox:
            self.selected.close()
            self.selected = None

    @property
    def situation(self) -> Situation:
        settings = self.server.settings
        mechanisms = self.backend.store.authenticator.mechanisms
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
            compress=settings.imap.compress and not self.connection.compressed,
            literal_plus=settings.imap.literal_plus,
            unauthenticate=settings.imap.unauthenticate,
            append_limit=settings.limits.message_size,
            message_limit=settings.imap.message_limit or None,
        )

    def capabilities(self) -> list[bytes]:
        return [name.encode("ascii") for name in offered(self.situation)]

    @property
    def backend(self) -> Backend:
        assert self._backend is not None  # noqa: S101 - no word is heard before the greeting
        return self._backend

    @property
    def mailboxes(self) -> Mailboxes:
        return self.backend.mailboxes

    def begin(self, backend: Backend) -> None:
        """Greet the client."""
        self._backend = backend
        # RFC 3501 7.1.1: the greeting may carry the capabilities, which saves clients a round trip.
        code = codes.capability(self.capabilities())
        self.send(responses.ok(None, f"{self.server.hostname} Markpost ready", code))
        self.connection.flush()

    # --- events ----------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.connection.send(data)

    async def handle(self, event: Event) -> None:
        match event:
            case CommandLine():  # nearly always
                await self._command(event)
            case LiteralStart():
                self.tag = event.tag
                await self._literal(event)
            case LiteralChunk():
                await append.take_chunk(self, event)
            case Refused(tag, status, code, text):
                append.give_up(self)
                if self.state.is_idle:
                    self.idle_tag = None
                    self.apply(StateEvent.IDLE_ENDED)
                self._answer(
                    tag if tag != b"*" else None,
                    Answer(text, code.encode("ascii") if code else b"", status.encode("ascii")),
                )
            case Line():
                with contextlib.suppress(MailError):
                    await self._catch_up()
                idle.finish(self, event)
        if self._ending and self.upload is None:
            self._say_goodbye()

    async def _literal(self, start: LiteralStart) -> None:
        framer = self.connection.framer
        try:
            permit(start.name, self._machine)
            if start.message:
                await append.announce(self, start)
        except CommandError as error:
            framer.refuse(error.status, error.text, error.code)
        except MailError as error:
            line = append.refusal(error)
            framer.refuse("NO", line.text, line.code.decode("ascii"))
        except ProtocolError as error:
            framer.refuse("BAD", str(error))
        else:
            framer.accept()
            if start.sync:
                self.send(responses.continuation("OK"))

    async def _catch_up(self) -> None:
        """Let the caches show what was acknowledged before this command came. Raises MailError."""
        if self.state is not State.NOT_AUTHENTICATED and self.mailboxes.is_behind:
            await self.mailboxes.catch_up()

    async def _command(self, line: CommandLine) -> None:
        began = perf_counter()
        self.tag = line.tag
        self._spec = spec = None
        try:
            self._spec = spec = permit(line.name, self._machine)
            command = spec.parse(line, self.dialect) if self.upload is None else self.upload.parser.finish(line)
            if not self.dialect.condstore and enables_condstore(command) and not isinstance(command, Enable):
                self.speak(replace(self.dialect, condstore=True))
            if line.name != "LOGOUT":
                await self._catch_up()
            answer = await HANDLERS[spec.value](self, command)
        except CommandError as error:
            if isinstance(error, UnknownCharsetError) and error.saves:
                self.mailbox.view.save_result(())  # RFC 5182 2.1
            code = error.code.encode("ascii") if error.code else b""
            answer = Answer(error.text, code, error.status.encode("ascii"))
        except ProtocolError as error:
            answer = Answer(str(error), status=b"BAD")
        except MailError as error:
            answer = failed(error, into=spec is not None and spec.adds_messages)
            if error.detail and error.reason not in _OF_NAMES:
                _log.info("%s %s: %s", self.peer, line.name, error.detail)
        except Exception:
            _log.exception("%s %s failed", self.peer, line.name)
            answer = Answer("Internal error", codes.SERVERBUG, b"NO")
        finally:
            append.give_up(self)
        if answer is not None:
            if answer.tells:
                self.tell(answer)
            self._answer(line.tag, answer)
        self._count(line.name, answer, perf_counter() - began)
        self.tag = self.progress = None

    def advanced(self, done: int) -> None:
        """The command under way has looked at so many messages."""
        self.progress = done

    def _count(self, name: str, answer: Answer | None, seconds: float) -> None:
        known = name if self._spec is not None else "unknown"
        COMMANDS.of("imap", known, answer.status.decode("ascii") if answer is not None else "OK").add()
        COMMAND_SECONDS.of("imap", known).observe(seconds)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s %s in %.1f ms", self.peer, known, seconds * 1000)

    # RFC 3501 5.2, 7.4.1
    def tell(self, answer: Answer | None = None) -> None:
        """What has changed in the selected mailbox, as far as the command under way allows."""
        if self.selected is not None and self.selected.pending:
            point = emission(self._spec, uses_numbers=answer is not None and answer.uses_numbers)
            news = self.selected.flush(
                point,
                modseq_sent=answer is not None and answer.modseq_sent,
                exists_first=answer is not None and answer.exists_first,
                buried=self._spec is not None and not self._spec.asks_for_news,
            )
            if news:
                self.send(news)

    def _answer(self, tag: bytes | None, answer: Answer) -> None:
        if answer.limited and answer.code:
            # RFC 9738 3.1: one response has one code
            self.send(responses.status(None, b"NO", "Only a part was done", answer.limited))
        self.send(responses.status(tag, answer.status, answer.text, answer.code or answer.limited))
        if answer.status == b"BAD":
            self.trouble()
        elif self.state is not State.NOT_AUTHENTICATED:
            self.troubles = 0

    def trouble(self) -> None:
        """A client that only ever makes mistakes is none."""
        self.troubles += 1
        if self.troubles >= self.server.settings.imap.bad_commands:
            self.connection.bye("Too many invalid commands")

    # RFC 5161 3.1; RFC 7162 3.1
    def speak(self, dialect: Dialect) -> None:
        """The client has enabled something."""
        newly = dialect.condstore and not self.dialect.condstore
        self._machine.enable(dialect)
        if self.selected is not None:
            self.selected.view.dialect = dialect
            if newly:
                self.tell()
                self.send(responses.ok(None, "Highest", codes.highestmodseq(self.selected.view.settled)))

    # --- the mailbox -----------------------------------------------------------------------------------------------

    @property
    def mailbox(self) -> Selected:
        assert self.selected is not None  # noqa: S101 - the table of states sees to it
        return self.selected

    def open_mailbox(self, folder: FolderState, *, read_only: bool) -> Selected:
        """Select a mailbox."""
        self.apply(StateEvent.SELECTED)
        self.selected = Selected(folder, self.dialect, self, self.mailboxes.recent, read_only=read_only)
        return self.selected

    def mailbox_deleted(self) -> None:
        """Take note that another session has deleted the selected mailbox."""
        self.apply(StateEvent.MAILBOX_DELETED)
        self.changed()

    def changed(self) -> None:
        """The selected mailbox has changed; a client in IDLE hears of it now."""
        if self.state.is_idle and not self.connection.busy:
            idle.tell(self)

    def writable(self) -> None:
        """The client has taken what was sent: what it did not hear of meanwhile can follow."""
        self.changed()

    def rested(self) -> None:
        """What happened after the last command, while the connection was still busy, could not be told then."""
        if self._ending and self.upload is None:
            self._say_goodbye()
        else:
            self.changed()

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End when nothing is in flight."""
        self._ending = True
        waits = self.state is State.NOT_AUTHENTICATED or not (self.connection.busy or self.upload is not None)
        if waits:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        # RFC 5530 3
        self.connection.bye("The server goes down, try again later", codes.UNAVAILABLE)

    def cut_off(self) -> None:
        self.connection.abort()

    def ended(self) -> None:
        _log.info("%s gone", self.peer)
        append.give_up(self)
        self.apply(StateEvent.CLOSED)
        self.ticket.release()
        self.server.forget(self)

    def broken(self, error: BaseException) -> None:
        _log.error("%s the session failed", self.peer, exc_info=error)
