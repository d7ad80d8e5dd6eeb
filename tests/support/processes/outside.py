"""The rest of the world: an SMTP server of the test's own that keeps what it is given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.support.processes.fronts import free_port
from tests.support.waiting import wait_until


@dataclass
class Outside:
    """``envelopes`` are sender, recipients and octets of all that came."""

    port: int
    envelopes: list[tuple[str, list[str], bytes]] = field(default_factory=list)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        self.envelopes.append((str(envelope.mail_from), list(envelope.rcpt_tos), envelope.content))
        return "250 2.0.0 Kept"

    def wait_for(self, count: int) -> list[tuple[str, list[str], bytes]]:
        wait_until(lambda: len(self.envelopes) >= count, lambda: self.envelopes)
        return self.envelopes


@contextlib.contextmanager
def outside() -> Iterator[Outside]:
    world = Outside(free_port())
    controller = Controller(world, hostname="127.0.0.1", port=world.port)
    controller.start()
    try:
        yield world
    finally:
        controller.stop()
