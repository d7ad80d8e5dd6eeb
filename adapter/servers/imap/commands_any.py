"""Commands of every state: CAPABILITY, NOOP, LOGOUT, ID; and CHECK, which here is a NOOP."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from adapter.servers.imap import proxied
from adapter.servers.imap.answer import Answer, no
from protocol.imap import commands, responses
from protocol.imap import response_codes as codes

if TYPE_CHECKING:
    from adapter.servers.imap.session import Session

_log = logging.getLogger(__name__)

_NAME: Final = {"name": "Markpost"}
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_SHOWN: Final = ("name", "version", "os", "vendor")


# RFC 3501 6.1.1
async def capability(session: Session, command: commands.Capability) -> Answer:
    session.send(responses.capability(session.capabilities()))
    return Answer("Capability completed")


# RFC 3501 6.1.2
async def noop(session: Session, command: commands.Noop) -> Answer:
    return Answer("NOOP completed")


# RFC 3501 6.4.1: what is acknowledged is durable, there is nothing to do
async def check(session: Session, command: commands.Check) -> Answer:
    return Answer("Check completed")


# RFC 3501 6.1.3
async def logout(session: Session, command: commands.Logout) -> Answer | None:
    session.send(responses.bye("Logging out"))
    session.send(responses.ok(session.tag, "Logout completed"))
    session.connection.close()
    return None


# RFC 2971 3.1
async def identify(session: Session, command: commands.Id) -> Answer:
    known = dict(command.fields)
    if not proxied.hear(session, known):
        session.connection.bye("Too many connections", codes.UNAVAILABLE)
        return no("Too many connections", codes.LIMIT)
    told = " ".join(f"{key}={known[key]}" for key in _SHOWN if known.get(key))
    if told:
        _log.info("%s client %s", session.peer, _UNPRINTABLE.sub("?", told)[:200])
    session.send(responses.id_response(_NAME))
    return Answer("ID completed")
