"""How long to wait for the next octets of a message.

Invariants: only the time the client takes is counted, never the server's; a client slower than the minimum rate is
given up once it has used the grace time, however evenly it sends.
"""

from __future__ import annotations

from adapter.settings import Limits


class TooSlowError(Exception):
    """The message comes too slowly to be waited for."""


class Pace:
    __slots__ = ("_limits", "_received", "_waited")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waited = 0.0
        self._received = 0

    @property
    def patience(self) -> float:
        """Seconds to wait now; none left: too slow."""
        return max(0.0, min(self._limits.data_idle, self._budget))

    @property
    def _budget(self) -> float:
        return self._limits.data_grace + self._received / max(1, self._limits.data_rate) - self._waited

    def took(self, seconds: float, octets: int) -> None:
        self._waited += seconds
        self._received += octets
