"""Peers in the log: the session, address and user with which every line about a session begins."""

from __future__ import annotations

import itertools
import os
from typing import NamedTuple

_process_id = os.urandom(3).hex()
_numbers = itertools.count(1)


def _renew_process_id() -> None:
    global _process_id
    _process_id = os.urandom(3).hex()


os.register_at_fork(after_in_child=_renew_process_id)


class Peer(NamedTuple):
    """The client of a session."""

    session: str
    address: str
    user: str = ""  # after login

    def __str__(self) -> str:
        return f"{self.session} {self.address} {self.user}" if self.user else f"{self.session} {self.address}"


def new_session_id() -> str:
    """Return an id that is unique in all logs and trace headers."""
    return f"{_process_id}-{next(_numbers):x}"
