"""Connection budgets: the number of connections of each kind of listener, bounded by the descriptor limit.

``[limits] connections`` is divided among the kinds of listeners in use. A kind with an explicit setting has that
budget; the others share the rest by weight. Budgets are disjoint: a flood at one port does not affect another.

Of a budget with logins (IMAP, submission) at most half is for unauthenticated connections. SMTP has no logins, and LMTP
serves trusted peers only: each may use all of its budget.
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

#: The kinds of listeners with a budget, and their weights in sharing what explicit settings leave.
WEIGHTS = {"imap": 5, "submission": 2, "smtp": 2, "lmtp": 1}
#: Kinds with logins: half of their budget is reserved for logged-in connections.
_WITH_LOGIN = frozenset({"imap", "submission"})
#: Descriptors of a process for files, address locks, the index and the log.
_FILE_DESCRIPTORS = 512
#: One in so many connections of a process is reserved for LMTP.
LMTP_PART = 16
#: Stands for no descriptor limit.
UNLIMITED = 1 << 40


@dataclass(frozen=True, slots=True)
class Budget:
    """The connections of one kind of listener, of all workers together."""

    connections: int
    before_login: int

    def before_login_of_worker(self, logged_in: int, workers: int) -> int:
        """Return one worker's share of unauthenticated connections, given all logged-in ones."""
        return max(1, math.ceil(min(self.before_login, self.connections - logged_in) / workers))


def budget_kind(listener: str) -> str:
    """Return the budget of a listener: implicit TLS makes no difference."""
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
    """Raise RLIMIT_NOFILE to the hard limit; return the connections that one process can then hold."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return connections_per_process(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def connections_per_process(descriptors: int) -> int:
    """Return the connections that a process with so many descriptors can hold: the rest is for files."""
    if descriptors == resource.RLIM_INFINITY:
        return UNLIMITED
    return max(1, descriptors - min(_FILE_DESCRIPTORS, descriptors // 2))


def allowed_connections(workers: int, per_process: int) -> int:
    """Return the connections that so many workers can hold, without the reserve for LMTP."""
    return workers * (per_process - per_process // LMTP_PART)


def log_lowered(limits: Limits, workers: int, per_process: int) -> None:
    """Warn if the descriptors allow fewer connections than the settings."""
    allowed = allowed_connections(workers, per_process)
    if allowed < limits.connections:
        _log.warning(
            "connections: %d instead of limits.connections = %d (descriptor limit); raise ulimit -n or LimitNOFILE=",
            allowed,
            limits.connections,
        )
