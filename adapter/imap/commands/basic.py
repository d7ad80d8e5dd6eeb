"""Commands of every state: CAPABILITY, NOOP, LOGOUT, ID; and CHECK, which here is a NOOP."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from adapter.imap.commands import id_proxy
from adapter.imap.handlers import TaggedResponse, handles, no
from protocol.imap.commands import model
from protocol.imap.responses import codes, status
from protocol.imap.states import StateEvent

if TYPE_CHECKING:
    from adapter.imap.session import Session

_log = logging.getLogger(__name__)

_NAME: Final = {"name": "Markpost"}
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_LOGGED_FIELDS: Final = ("name", "version", "os", "vendor")


# RFC 3501 6.1.1
@handles(model.Capability)
async def capability(session: Session, command: model.Capability) -> TaggedResponse:
    session.send(status.capability(session.capabilities()))
    return TaggedResponse("Capability completed")


# RFC 3501 6.1.2
@handles(model.Noop)
async def noop(session: Session, command: model.Noop) -> TaggedResponse:
    return TaggedResponse("NOOP completed")


# RFC 3501 6.4.1: what is acknowledged is durable, there is nothing to do
@handles(model.Check)
async def check(session: Session, command: model.Check) -> TaggedResponse:
    return TaggedResponse("Check completed")


# RFC 3501 6.1.3
@handles(model.Logout)
async def logout(session: Session, command: model.Logout) -> TaggedResponse | None:
    session.send(status.bye("Logging out"))
    session.send(status.ok(session.tag, "Logout completed"))
    session.apply(StateEvent.CLOSED)
    session.connection.close()
    return None


# RFC 2971 3.1
@handles(model.Id)
async def identify(session: Session, command: model.Id) -> TaggedResponse:
    fields = dict(command.fields)
    if not id_proxy.apply_client_address(session, fields):
        session.connection.bye("Too many connections", codes.UNAVAILABLE)
        return no("Too many connections", codes.LIMIT)
    software = " ".join(f"{key}={fields[key]}" for key in _LOGGED_FIELDS if fields.get(key))
    if software:
        _log.info("%s client %s", session.peer, _UNPRINTABLE.sub("?", software)[:200])
    session.send(status.id_response(_NAME))
    return TaggedResponse("ID completed")
