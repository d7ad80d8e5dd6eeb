"""The configuration that all connections of one SMTP, LMTP or submission listener share."""

from __future__ import annotations

from dataclasses import dataclass

from adapter.config.schema import Lmtp, Smtp, Submission
from adapter.net import networks
from adapter.net.networks import Networks
from adapter.sessions.context import ServerContext
from protocol.smtp import replies
from protocol.smtp.data import LineEnds, MessageLimits
from protocol.smtp.replies import Reply
from protocol.smtp.states import Service, SessionState


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    context: ServerContext
    service: Service
    implicit_tls: bool
    message_limits: MessageLimits
    line_ends: LineEnds
    proxies: Networks  # peers that must send a PROXY header
    trusted: Networks | None  # peers that may connect; None: all
    xclient: Networks  # peers that may use XCLIENT
    greeting: Reply

    @classmethod
    def load(cls, context: ServerContext, service: Service, *, implicit_tls: bool = False) -> ListenerConfig:
        """Build the configuration from the current settings."""
        settings = context.settings
        sections: dict[Service, Smtp | Submission | Lmtp] = {
            Service.MX: settings.smtp,
            Service.SUBMISSION: settings.submission,
            Service.LMTP: settings.lmtp,
        }
        section = sections[service]
        limits = settings.limits
        lmtp = section if isinstance(section, Lmtp) else None
        return cls(
            context=context,
            service=service,
            implicit_tls=implicit_tls,
            message_limits=MessageLimits(limits.message_size, limits.header_size, limits.hops, limits.recipients),
            line_ends=LineEnds(section.line_ends),
            proxies=Networks(section.proxy_from),
            trusted=Networks(lmtp.trusted) if lmtp else None,
            xclient=Networks(() if isinstance(section, Smtp) else section.xclient_from),
            greeting=replies.greeting(context.hostname, "LMTP" if lmtp else "ESMTP"),
        )

    def new_session(self, peer: str) -> SessionState:
        """The protocol state of a new connection from ``peer``."""
        is_submission = self.service is Service.SUBMISSION
        store = self.context.store
        return SessionState(
            self.service,
            tls_available=self.context.certificates.context is not None,
            tls_required=self._requires_client_certificate(peer),
            plaintext_auth=self.context.settings.login.allow_plaintext or networks.is_loopback(peer),
            mechanisms=store.authenticator.mechanisms if is_submission and store is not None else (),
            xclient_trusted=peer in self.xclient,
            # An LMTP client sends delivery reports itself, unless we offer to (RFC 3461 section 5.2.2).
            reports=self.service is not Service.LMTP or bool(self.context.settings.relay.host),
        )

    def _requires_client_certificate(self, peer: str) -> bool:
        verifies_clients = self.context.certificates.verifying_context is not None
        return verifies_clients and self.service is Service.LMTP and peer != networks.UNIX
