"""All IMAP connections of one process: who is let in, and who is sent away because of time.

Invariants: the backend is there before a session is greeted and until the last one is gone; one timer looks after all
connections, so that an idle one costs no task and no timer of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from adapter.imap.commands import idle
from adapter.imap.commands.login import limits_before_login
from adapter.imap.connection import Connection
from adapter.imap.session import Session
from adapter.net.networks import UNIX, Networks, Peer, canonical
from adapter.read_model.mailboxes import CacheLimits, Mailboxes
from adapter.smtp.listener_config import fresh_session_id
from adapter.store.quotas import Quotas
from protocol.imap.responses import codes, status
from protocol.imap.states import State, StateEvent

if TYPE_CHECKING:
    from adapter.config.schema import Settings
    from adapter.net.tls import Certificates
    from adapter.sessions.admission import Admission
    from adapter.sessions.context import OpenStore, ServerContext
    from adapter.transport.transport import Transport

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

_TICK = 1.0
#: Seconds a connection may take to close.
_LINGER = 5.0


class Backend:
    """What IMAP sessions need of an open store: created when the store is opened, closed before it is closed."""

    def __init__(self, store: OpenStore, limits: CacheLimits) -> None:
        self.store = store
        self.mailboxes = Mailboxes(store.transport, store.commits, limits)

    @property
    def transport(self) -> Transport:
        return self.store.transport

    async def start(self) -> None:
        await self.mailboxes.start()

    async def close(self) -> None:
        """Sessions must be gone."""
        await self.mailboxes.close()

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run what blocks on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.store.pool, function, *arguments)


def imap_server(services: ServerContext) -> ImapServer:
    """The one server of a process, for all its IMAP listeners."""
    if services.imap is None:
        services.imap = ImapServer(services)
    return services.imap


class ImapServer:
    def __init__(self, services: ServerContext) -> None:
        self.services = services
        self.loop = asyncio.get_running_loop()
        self._sessions: set[Session] = set()
        self._backend: Backend | None = None
        self._starting: asyncio.Task[Backend] | None = None
        self._settings_changed()
        self._timer = self.loop.call_later(self._tick, self._look_after)
        services.before_close.append(self._close)
        services.after_reload.append(self._settings_changed)
        if services.store is not None:
            self._prepare()

    def _settings_changed(self) -> None:
        """What is made from the settings is made anew."""
        self.quotas = Quotas(self.settings)
        imap = self.settings.imap
        self.proxies = Networks(imap.id_from)
        if self._backend is not None:
            self._backend.mailboxes.keep_to(self._cache_limits())
        self._tick = min(_TICK, imap.keep_alive / 4, imap.login_time / 4, imap.idle / 4, imap.progress / 4)

    def _cache_limits(self) -> CacheLimits:
        imap = self.settings.imap
        return CacheLimits(imap.cache_folders, imap.cache_bodies, imap.cache_texts, imap.cache_time)

    # --- what sessions ask -----------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self.services.settings

    @property
    def hostname(self) -> str:
        return self.services.hostname

    @property
    def certificates(self) -> Certificates:
        return self.services.certificates

    @property
    def admission(self) -> Admission:
        return self.services.admission

    # --- connections come and go -----------------------------------------------------------------------------------

    def connection(self, *, implicit_tls: bool) -> Connection:
        """The protocol of a new connection."""
        return Connection(limits_before_login(self.settings), self.loop, self, implicit_tls=implicit_tls)

    def connected(self, connection: Connection, transport: asyncio.BaseTransport) -> None:
        name = transport.get_extra_info("peername")
        peer = Peer(fresh_session_id(), canonical(name[0]) if isinstance(name, tuple) else UNIX)
        ticket = self.admission.admit("imap", peer.address, connection.give_way)
        if ticket is None:
            _log.warning("%s turned away: too many connections", peer)
            connection.bye("Too many connections", codes.UNAVAILABLE)
            return
        _log.info("%s connected to imap", peer)
        session = Session(self, connection, peer, ticket)
        connection.conversation = session
        self._sessions.add(session)
        self.services.connections.add(session)
        if self._available() and self._backend is not None and not connection.implicit_tls:
            session.begin(self._backend)
        else:
            connection.occupy(self._welcome(session))

    def forget(self, session: Session) -> None:
        self._sessions.discard(session)
        self.services.connections.discard(session)

    async def _welcome(self, session: Session) -> None:
        """The long way to the greeting: with a handshake, or while the store is being opened."""
        connection = session.connection
        if connection.implicit_tls:
            context = self.certificates.context
            if context is None or not await connection.start_tls(context, self.settings.tls.handshake):
                connection.abort()
                return
            session.apply(StateEvent.TLS_STARTED)
        try:
            backend = await asyncio.shield(self._prepare()) if self._available() else None
        except Exception as error:
            session.broken(error)
            backend = None
        if backend is None or not self._available():
            connection.bye("System is down for maintenance, try again later", codes.UNAVAILABLE)
        else:
            session.begin(backend)

    # --- the store comes and goes ----------------------------------------------------------------------------------

    def _available(self) -> bool:
        return self.services.store is not None and not self.services.ending

    def _prepare(self) -> asyncio.Task[Backend]:
        if self._starting is None:
            self._starting = self.loop.create_task(self._start())
        return self._starting

    async def _start(self) -> Backend:
        store = self.services.store
        assert store is not None  # noqa: S101 - the caller looked
        try:
            backend = Backend(store, self._cache_limits())
            await backend.start()
        except BaseException:
            self._starting = None
            raise
        self._backend = backend
        return backend

    async def _close(self) -> None:
        """The sessions are gone and the store is about to go."""
        starting, self._starting, self._backend = self._starting, None, None
        if starting is not None:
            try:
                backend = await starting
            except Exception:
                return  # reported by the session that asked for it
            await backend.close()

    # --- time ------------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        self._timer = self.loop.call_later(self._tick, self._look_after)
        now = self.loop.time()
        for session in list(self._sessions):
            self._look_at(session, now)

    def _look_at(self, session: Session, now: float) -> None:
        imap, connection = self.settings.imap, session.connection
        if connection.closing:
            if now - connection.said_at > _LINGER:
                connection.abort()
        elif connection.stuck_since is not None:
            if now - connection.stuck_since > imap.send:
                _log.info("%s takes nothing any more", session.peer)
                connection.abort()
        elif session.state is State.NOT_AUTHENTICATED:
            if now - connection.opened_at > imap.login_time:
                connection.bye("Login took too long")
        elif session.state.is_idle:
            if now - connection.said_at > imap.keep_alive:
                idle.still_here(session)
        elif connection.busy:
            if now - connection.said_at > imap.progress and session.tag is not None and not session.in_response:
                # RFC 9585 4
                code = codes.inprogress(session.tag, session.progress)
                session.send(status.ok(None, "Still at it", code))
                connection.flush()
        # RFC 3501 5.4
        elif now - max(connection.heard_at, connection.said_at) > imap.idle:
            connection.bye("Autologout, nothing happened for too long")
