"""IDLE (RFC 2177): changes are sent as they happen. No task waits: a change or a line wakes the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapter.imap.handlers import TaggedResponse, handles
from protocol.imap.commands import model
from protocol.imap.responses import status
from protocol.imap.session_view import Emission
from protocol.imap.states import StateEvent

if TYPE_CHECKING:
    from adapter.imap.session import Session
    from protocol.imap.wire.events import Line


# RFC 2177 3; RFC 9051 6.3.13
@handles(model.Idle)
async def idle(session: Session, command: model.Idle) -> TaggedResponse | None:
    session.send(status.continuation("idling"))
    session.idle_tag = session.tag
    session.apply(StateEvent.IDLE_STARTED)
    session.connection.expect_line()
    if session.selected is not None:
        # Thunderbird overlooks an EXISTS within the response to FETCH and notices one in IDLE.
        session.send(session.selected.view.repeat_exists())
    send_updates(session)
    return None


def send_updates(session: Session) -> None:
    """Send the changes of the selected mailbox; later, all at once, if the client is not reading now."""
    if session.selected is not None and session.connection.write_blocked_since is None:
        updates = session.selected.flush(Emission.ALL)
        if updates:
            session.send(updates)
            session.connection.flush()


def send_keep_alive(session: Session) -> None:
    """Keep the connection open through middleboxes that close silent ones."""
    if session.connection.write_blocked_since is None:
        session.send(status.ok(None, "Still here"))
        session.connection.flush()


def finish(session: Session, line: Line) -> None:
    """End IDLE with the line that was received."""
    tag, session.idle_tag = session.idle_tag, None
    send_updates(session)
    session.apply(StateEvent.IDLE_ENDED)
    if line.done:
        session.send(status.ok(tag, "Idle completed"))
    else:
        session.send(status.bad(tag, "Expected DONE"))
        session.count_error()
