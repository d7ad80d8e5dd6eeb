"""All IMAP connections of one process: admission, the store behind them, and timeouts.

Invariants: the backend exists before a session is greeted and until the last session has ended; one timer checks all
connections, so that an idle one costs neither a task nor a timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from adapter.imap.commands import idle
from adapter.imap.connection import Connection
from adapter.imap.session import Backend, Session, limits_before_login
from adapter.net.networks import UNIX, Networks, canonical
from adapter.observability.peer import Peer, new_session_id
from adapter.read_model.mailbox_writer import AccountWriter
from adapter.read_model.mailboxes import CacheLimits, MailboxCache
from adapter.store.quotas import Quotas
from protocol.imap.responses import codes, status
from protocol.imap.states import State, StateEvent

if TYPE_CHECKING:
    from adapter.accounts.login import Authenticator
    from adapter.config.schema import Settings
    from adapter.net.tls import Certificates
    from adapter.sessions.admission import Admission
    from adapter.sessions.context import OpenStore, ServerContext

_log = logging.getLogger(__name__)

#: Timeouts are checked at least this often.
_MAX_TICK_SECONDS: Final = 1.0
#: How long a connection may take to close after the last output.
_LINGER_SECONDS: Final = 5.0


class OpenedBackend(Backend, Protocol):
    """A backend as the server opens and closes it."""

    async def start(self) -> None: ...

    async def close(self) -> None:
        """No session may be left."""

    def configure(self, limits: CacheLimits, quotas: Quotas) -> None: ...


class StoreBackend:
    """Caches over an open store: created when the store is opened, closed before the store is closed."""

    def __init__(self, store: OpenStore, limits: CacheLimits, quotas: Quotas) -> None:
        self._store = store
        self.reader = MailboxCache(store.transport, store.commits, limits, quotas)

    @property
    def authenticator(self) -> Authenticator:
        return self._store.authenticator

    def writer(self, address: str) -> AccountWriter:
        return AccountWriter(self.reader, address, "imap", self._store.sent_copies)

    async def start(self) -> None:
        await self.reader.start()

    async def close(self) -> None:
        await self.reader.close()

    def configure(self, limits: CacheLimits, quotas: Quotas) -> None:
        self.reader.configure(limits, quotas)


class ImapServer:
    def __init__(
        self,
        context: ServerContext,
        make_backend: Callable[[OpenStore, CacheLimits, Quotas], OpenedBackend] = StoreBackend,
    ) -> None:
        self._context = context
        self._make_backend = make_backend
        self._loop = asyncio.get_running_loop()
        self._sessions: set[Session] = set()
        self._backend: OpenedBackend | None = None
        self._backend_task: asyncio.Task[OpenedBackend] | None = None
        self._apply_settings()
        self._timer = self._loop.call_later(self._tick, self._check_timeouts)
        context.before_close.append(self._close_backend)
        context.after_reload.append(self._apply_settings)
        if context.store is not None:
            self._open_backend()

    def _apply_settings(self) -> None:
        """Rebuild what is derived from the settings: at start and after a reload."""
        self.quotas = Quotas(self.settings)
        imap = self.settings.imap
        self.proxies = Networks(imap.id_from)
        if self._backend is not None:
            self._backend.configure(self._cache_limits(), self.quotas)
        self._tick = min(_MAX_TICK_SECONDS, imap.keep_alive / 4, imap.login_time / 4, imap.idle / 4, imap.progress / 4)

    def _cache_limits(self) -> CacheLimits:
        imap = self.settings.imap
        return CacheLimits(imap.cache_folders, imap.cache_bodies, imap.cache_texts, imap.cache_time)

    # --- what sessions use -----------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self._context.settings

    @property
    def hostname(self) -> str:
        return self._context.hostname

    @property
    def certificates(self) -> Certificates:
        return self._context.certificates

    @property
    def admission(self) -> Admission:
        return self._context.admission

    # --- connections -----------------------------------------------------------------------------------------------

    @property
    def sessions(self) -> frozenset[Session]:
        """The sessions that are open now."""
        return frozenset(self._sessions)

    def connection(self, *, implicit_tls: bool) -> Connection:
        """Create the asyncio protocol of a new connection."""
        return Connection(limits_before_login(self.settings), self._loop, self, implicit_tls=implicit_tls)

    def connected(self, connection: Connection, stream: asyncio.BaseTransport) -> None:
        """Admit a connection and begin its session, or refuse it."""
        name = stream.get_extra_info("peername")
        peer = Peer(new_session_id(), canonical(name[0]) if isinstance(name, tuple) else UNIX)
        ticket = self.admission.admit("imap", peer.address, connection.evict)
        if ticket is None:
            _log.warning("%s connection refused: too many connections", peer)
            connection.bye("Too many connections", codes.UNAVAILABLE)
            return
        _log.info("%s connected to imap", peer)
        session = Session(self, connection, peer, ticket)
        connection.session = session
        self._sessions.add(session)
        self._context.connections.add(session)
        if self._store_is_available() and self._backend is not None and not connection.implicit_tls:
            session.greet(self._backend)
        else:
            connection.run_before_session(self._begin_session(session))

    def forget(self, session: Session) -> None:
        """Remove a session that has ended."""
        self._sessions.discard(session)
        self._context.connections.discard(session)

    async def _begin_session(self, session: Session) -> None:
        """Complete the TLS handshake, wait for the store to be opened, and greet the client."""
        connection = session.connection
        if connection.implicit_tls:
            context = self.certificates.context
            if context is None or not await connection.start_tls(context, self.settings.tls.handshake):
                connection.abort()
                return
            session.apply(StateEvent.TLS_STARTED)
        try:
            backend = await asyncio.shield(self._open_backend()) if self._store_is_available() else None
        except Exception as error:
            session.report_error(error)
            backend = None
        if backend is None or not self._store_is_available():
            connection.bye("System is down for maintenance, try again later", codes.UNAVAILABLE)
        else:
            session.greet(backend)

    # --- the store -------------------------------------------------------------------------------------------------

    def _store_is_available(self) -> bool:
        return self._context.store is not None and not self._context.ending

    def _open_backend(self) -> asyncio.Task[OpenedBackend]:
        if self._backend_task is None:
            self._backend_task = self._loop.create_task(self._start_backend())
        return self._backend_task

    async def _start_backend(self) -> OpenedBackend:
        store = self._context.store
        assert store is not None  # noqa: S101 - checked by the caller
        try:
            backend = self._make_backend(store, self._cache_limits(), self.quotas)
            await backend.start()
        except BaseException:
            self._backend_task = None
            raise
        self._backend = backend
        return backend

    async def _close_backend(self) -> None:
        """Close the caches: all sessions have ended, and the store will be closed next."""
        task, self._backend_task, self._backend = self._backend_task, None, None
        if task is not None:
            try:
                backend = await task
            except Exception:
                return  # logged by the session that was waiting for it
            await backend.close()

    # --- timeouts --------------------------------------------------------------------------------------------------

    def _check_timeouts(self) -> None:
        self._timer = self._loop.call_later(self._tick, self._check_timeouts)
        now = self._loop.time()
        for session in list(self._sessions):
            self._check_session(session, now)

    def _check_session(self, session: Session, now: float) -> None:
        imap, connection = self.settings.imap, session.connection
        if connection.is_closing:
            if now - connection.sent_at > _LINGER_SECONDS:
                connection.abort()
        elif connection.write_blocked_since is not None:
            if now - connection.write_blocked_since > imap.send:
                _log.info(
                    "%s client stopped reading (%d octets unsent); closing", session.peer, connection.unsent_octets
                )
                connection.abort()
        elif session.state is State.NOT_AUTHENTICATED:
            if now - connection.opened_at > imap.login_time:
                connection.bye("Login took too long")
        elif session.state.is_idle:
            if now - connection.sent_at > imap.keep_alive:
                idle.send_keep_alive(session)
        elif connection.is_busy:
            if now - connection.sent_at > imap.progress and session.tag is not None and not session.in_response:
                # RFC 9585 4
                session.send(status.ok(None, "Still working", codes.inprogress(session.tag, session.progress)))
                connection.flush()
        # RFC 3501 5.4
        elif now - max(connection.received_at, connection.sent_at) > imap.idle:
            connection.bye("Autologout, idle for too long")
