"""Every kind of listener: what a connection to it becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from adapter.sessions.context import ServerContext
from adapter.smtp.listener_config import ListenerConfig
from adapter.smtp.session import SmtpSession
from protocol.smtp.states import Service

#: Makes the protocol of one connection.
NewConnection = Callable[[], asyncio.BaseProtocol]
Factory = Callable[[ServerContext], NewConnection]

#: TLS from the first octet: of no use without a certificate.
IMPLICIT_TLS = frozenset({"imaps", "submissions"})


def _smtp(service: Service, *, implicit_tls: bool = False) -> Factory:
    def factory(services: ServerContext) -> NewConnection:
        config = ListenerConfig.load(services, service, implicit_tls=implicit_tls)
        settings = services.settings
        loop = asyncio.get_running_loop()

        def current() -> ListenerConfig:
            nonlocal config, settings
            if services.settings is not settings:  # they were read again
                config = ListenerConfig.load(services, service, implicit_tls=implicit_tls)
                settings = services.settings
            return config

        return partial(SmtpSession, loop, current)

    return factory


def _imap(*, implicit_tls: bool = False) -> Factory:
    def factory(services: ServerContext) -> NewConnection:
        # Here, not above: a server without IMAP starts sooner and needs less memory.
        from adapter.imap.server import imap_server

        return partial(imap_server(services).connection, implicit_tls=implicit_tls)

    return factory


LISTENERS: dict[str, Factory] = {
    "imap": _imap(),
    "imaps": _imap(implicit_tls=True),
    "smtp": _smtp(Service.MX),
    "submission": _smtp(Service.SUBMISSION),
    "submissions": _smtp(Service.SUBMISSION, implicit_tls=True),
    "lmtp": _smtp(Service.LMTP),
}
