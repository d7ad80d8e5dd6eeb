"""IDLE (RFC 2177): changes are sent as they happen. No task waits meanwhile: a change or a line wakes the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapter.imap.handlers import Answer, handles
from protocol.imap.commands import model
from protocol.imap.responses import status
from protocol.imap.session_view import Emission
from protocol.imap.states import StateEvent

if TYPE_CHECKING:
    from adapter.imap.session import Session
    from protocol.imap.wire.events import Line


# RFC 2177 3; RFC 9051 6.3.13
@handles(model.Idle)
async def idle(session: Session, command: model.Idle) -> Answer | None:
    session.send(status.continuation("idling"))
    session.idle_tag = session.tag
    session.apply(StateEvent.IDLE_STARTED)
    session.connection.framer.expect_line()
    if session.selected is not None:
        # Thunderbird overlooks an EXISTS within the response to FETCH and notices one in IDLE.
        session.send(session.selected.view.repeat_exists())
    tell(session)
    return None


def tell(session: Session) -> None:
    """Send what has changed. A peer that takes nothing is told later, all at once."""
    if session.selected is not None and session.connection.stuck_since is None:
        news = session.selected.flush(Emission.ALL)
        if news:
            session.send(news)
            session.connection.flush()


def still_here(session: Session) -> None:
    """Keeps the connection open where something in between closes silent ones."""
    if session.connection.stuck_since is None:
        session.send(status.ok(None, "Still here"))
        session.connection.flush()


def finish(session: Session, line: Line) -> None:
    """The line that ends it."""
    tag, session.idle_tag = session.idle_tag, None
    tell(session)
    session.apply(StateEvent.IDLE_ENDED)
    if line.done:
        session.send(status.ok(tag, "Idle completed"))
    else:
        session.send(status.bad(tag, "Expected DONE"))
        session.trouble()
