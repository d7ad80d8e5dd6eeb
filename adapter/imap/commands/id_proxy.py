"""A proxy in front says in ID (RFC 2971) for whom it speaks: ``x-originating-ip``, as Dovecot sends it.

Invariants: only configured networks are believed, and only once, before a login: what comes later may be the words of
the client itself. Limits, delays after failed logins and log lines are those of the client from then on; whether
passwords may pass in the clear is still decided by the connection.
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


def hear(session: Session, fields: Mapping[str, str | None]) -> bool:
    """Take in what a proxy says; False if the client it speaks for has too many connections."""
    told = fields.get("x-originating-ip")
    if told is None or session.proxied or session.state is not State.NOT_AUTHENTICATED:
        return True
    if session.peer.address not in session.server.proxies:
        return True
    try:
        client = canonical(str(ipaddress.ip_address(told)))
    except ValueError:
        _log.warning("%s speaks for a client without a valid address", session.peer)
        return True
    before = session.peer
    session.peer, session.proxied = Peer(before.session, client), True
    _log.info("%s speaks through %s", session.peer, before.address)
    return session.admit_again(client)
