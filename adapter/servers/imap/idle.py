"""IDLE (RFC 2177): changes are sent as they happen. No task waits meanwhile: a change or a line wakes the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.imap import commands, responses
from protocol.imap.view import Emission

if TYPE_CHECKING:
    from adapter.servers.imap.answer import Answer
    from adapter.servers.imap.session import Session
    from protocol.imap.events import Line


# RFC 2177 3; RFC 9051 6.3.13
async def idle(session: Session, command: commands.Idle) -> Answer | None:
    session.send(responses.continuation("idling"))
    session.idle_tag = session.tag
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
        session.send(responses.ok(None, "Still here"))
        session.connection.flush()


def finish(session: Session, line: Line) -> None:
    """The line that ends it."""
    tag, session.idle_tag = session.idle_tag, None
    tell(session)
    if line.done:
        session.send(responses.ok(tag, "Idle completed"))
    else:
        session.send(responses.bad(tag, "Expected DONE"))
        session.trouble()
