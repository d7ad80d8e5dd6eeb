"""What all connections of one SMTP, LMTP or submission listener have in common."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

from adapter.config.schema import Lmtp, Smtp, Submission
from adapter.net import networks
from adapter.net.networks import Networks
from adapter.sessions.context import ServerContext
from protocol.smtp import replies
from protocol.smtp.data import LineEnds, MessageLimits
from protocol.smtp.replies import Reply
from protocol.smtp.states import Service, SessionState

_run = os.urandom(3).hex()
_numbers = itertools.count(1)


def _begin_run() -> None:
    global _run
    _run = os.urandom(3).hex()


os.register_at_fork(after_in_child=_begin_run)


def fresh_session_id() -> str:
    """Unique in all logs and trace headers."""
    return f"{_run}-{next(_numbers):x}"


@dataclass(frozen=True, slots=True)
class Edge:
    services: ServerContext
    service: Service
    implicit_tls: bool
    limits: MessageLimits  # of one message
    line_ends: LineEnds
    proxies: Networks
    welcome: Networks | None  # None: everybody
    xclient: Networks
    greeting: Reply

    def new_session(self, peer: str) -> SessionState:
        """What the protocol knows of a connection from ``peer`` before a word is said."""
        submission = self.service is Service.SUBMISSION
        store = self.services.store
        return SessionState(
            self.service,
            tls_available=self.services.certificates.context is not None,
            tls_required=self._must_prove(peer),
            plaintext_auth=self.services.settings.login.allow_plaintext or networks.is_loopback(peer),
            mechanisms=store.authenticator.mechanisms if submission and store is not None else (),
            xclient_trusted=peer in self.xclient,
            # Whoever hands over by LMTP reports by itself, unless it is told that we do (RFC 3461 section 5.2.2).
            reports=self.service is not Service.LMTP or bool(self.services.settings.relay.host),
        )

    def _must_prove(self, peer: str) -> bool:
        """Whether this peer must show a certificate of its own before it may hand over mail."""
        proof = self.services.certificates.verifying_context is not None
        return proof and self.service is Service.LMTP and peer != networks.UNIX


def make_edge(services: ServerContext, service: Service, *, implicit_tls: bool = False) -> Edge:
    settings = services.settings
    sections: dict[Service, Smtp | Submission | Lmtp] = {
        Service.MX: settings.smtp,
        Service.SUBMISSION: settings.submission,
        Service.LMTP: settings.lmtp,
    }
    section = sections[service]
    limits = settings.limits
    lmtp = section if isinstance(section, Lmtp) else None
    return Edge(
        services=services,
        service=service,
        implicit_tls=implicit_tls,
        limits=MessageLimits(limits.message_size, limits.header_size, limits.hops, limits.recipients),
        line_ends=LineEnds(section.line_ends),
        proxies=Networks(section.proxy_from),
        welcome=Networks(lmtp.trusted) if lmtp else None,
        xclient=Networks(() if isinstance(section, Smtp) else section.xclient_from),
        greeting=replies.greeting(services.hostname, "LMTP" if lmtp else "ESMTP"),
    )
