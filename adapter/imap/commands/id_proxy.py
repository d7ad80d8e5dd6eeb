"""The client's address from a trusted proxy, in ID (RFC 2971): ``x-originating-ip``, as Dovecot sends it.

Invariants: only configured networks are trusted, and only once, before a login: a later ID may come from the client
itself. From then on limits, delays after failed logins and log lines are those of the client; the connection still
decides whether passwords may be sent in the clear.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from adapter.net.networks import canonical
from adapter.observability.peer import Peer
from protocol.imap.states import State

if TYPE_CHECKING:
    from adapter.imap.session import Session

_log = logging.getLogger(__name__)


def apply_client_address(session: Session, fields: Mapping[str, str | None]) -> bool:
    """Take over the client's address from a trusted proxy; False if that client has too many connections."""
    forwarded = fields.get("x-originating-ip")
    if forwarded is None or session.proxied or session.state is not State.NOT_AUTHENTICATED:
        return True
    if session.peer.address not in session.server.proxies:
        return True
    try:
        client = canonical(str(ipaddress.ip_address(forwarded)))
    except ValueError:
        _log.warning("%s proxy sent an invalid client address; ignored", session.peer)
        return True
    before = session.peer
    session.peer, session.proxied = Peer(before.session, client), True
    _log.info("%s connected through proxy %s", session.peer, before.address)
    return session.admit_again(client)
