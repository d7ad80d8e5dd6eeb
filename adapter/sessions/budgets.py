"""Connection budgets: how many connections each kind of listener may hold, and what the process's descriptors allow.

``[limits] connections`` is shared out among the kinds of listeners that are in use. A kind with a number of its own has
that; the others share the rest by weight. Budgets are disjoint: a flood at one port takes nothing from another.

Of a budget with logins (IMAP, submission) at most half is for connections before the login. SMTP has no logins, and
LMTP is for trusted peers alone: each may use all of its budget.
"""

from __future__ import annotations

import contextlib
import logging
import math
import resource
from collections.abc import Collection
from dataclasses import dataclass

from adapter.config.schema import Limits
from adapter.config.validate import connection_budgets

_log = logging.getLogger(__name__)

#: The kinds of listeners with a budget, and their shares of what is left after explicit settings.
WEIGHTS = {"imap": 5, "submission": 2, "smtp": 2, "lmtp": 1}
#: Kinds whose connections log in; of their budgets one half is out of reach before that.
_WITH_LOGIN = frozenset({"imap", "submission"})
#: Of a process, for files, locks of addresses, the index and the log.
_FILE_DESCRIPTORS = 512
#: The part of a process's connections that only LMTP can take.
LMTP_PART = 16
#: No limit of descriptors is known, or there is none.
UNLIMITED = 1 << 40


@dataclass(frozen=True, slots=True)
class Budget:
    """Connections of one kind of listener, of all workers together."""

    connections: int
    before_login: int

    def before_login_of_worker(self, logged_in: int, workers: int) -> int:
        """How many connections before the login one worker may hold while so many are logged in everywhere."""
        return max(1, math.ceil(min(self.before_login, self.connections - logged_in) / workers))


def budget_kind(listener: str) -> str:
    """The budget that a listener belongs to: TLS from the first octet makes no difference."""
    return {"imaps": "imap", "submissions": "submission"}.get(listener, listener)


def share_out(limits: Limits, kinds: Collection[str], allowed: int = UNLIMITED) -> dict[str, Budget]:
    """Return the budgets of these kinds; ``allowed`` is what descriptors allow. Raises ValueError."""
    total = min(limits.connections, allowed)
    explicit = connection_budgets(limits, kinds)
    sizes = {kind: max(1, number * total // limits.connections) for kind, number in explicit.items()}
    rest = total - sum(sizes.values())
    weights = {kind: WEIGHTS[kind] for kind in kinds if kind not in sizes}
    for kind, weight in weights.items():
        sizes[kind] = max(1, rest * weight // sum(weights.values()))
    return {
        kind: Budget(size, max(1, size // 2) if kind in _WITH_LOGIN else size) for kind, size in sorted(sizes.items())
    }


def raise_descriptor_limit() -> int:
    """Raise RLIMIT_NOFILE as far as the system allows; how many connections one process can hold then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return connections_per_process(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def connections_per_process(descriptors: int) -> int:
    """How many connections a process with so many descriptors can hold: the others are for files."""
    if descriptors == resource.RLIM_INFINITY:
        return UNLIMITED
    return max(1, descriptors - min(_FILE_DESCRIPTORS, descriptors // 2))


def allowed_connections(workers: int, per_process: int) -> int:
    """How many connections so many workers can hold, without the part that is kept for LMTP."""
    return workers * (per_process - per_process // LMTP_PART)


def log_lowered(limits: Limits, workers: int, per_process: int) -> None:
    """Say it if the descriptors allow fewer connections than the settings."""
    allowed = allowed_connections(workers, per_process)
    if allowed < limits.connections:
        _log.warning(
            "connections: %d instead of limits.connections = %d (descriptor limit); raise ulimit -n or LimitNOFILE=",
            allowed,
            limits.connections,
        )
