"""How long to wait for the next octets of a message.

Invariants: only the time the client takes is counted, never the server's; a client slower than the minimum rate is
given up once it has used the grace time, however evenly it sends; what still comes of a message that is refused has to
end soon, however fast it comes.
"""

from __future__ import annotations

from adapter.config.schema import Limits

_FOREVER = float("inf")


class TooSlowError(Exception):
    """The message comes too slowly to be waited for, or was refused and does not end."""


class Pace:
    __slots__ = ("_limits", "_received", "_waited", "refused_until")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waited = 0.0
        self._received = 0
        self.refused_until = _FOREVER  # by the clock of the caller

    @property
    def patience(self) -> float:
        """Seconds to wait now; none left: too slow."""
        return max(0.0, min(self._limits.data_idle, self._budget))

    @property
    def _budget(self) -> float:
        return self._limits.data_grace + self._received / max(1, self._limits.data_rate) - self._waited

    def refuse(self, now: float) -> None:
        # What still comes is of no use, and could go on for ever: it gets as long as the client might have been silent.
        self.refused_until = min(self.refused_until, now + self._limits.data_idle)

    def took(self, seconds: float, octets: int) -> None:
        self._waited += seconds
        self._received += octets
