"""Retry policy: exponential back-off, expiry, and when to report a delay. Pure functions."""

from __future__ import annotations

from adapter.config.schema import RelaySettings
from adapter.store.queries.outbox import QueueRow

_SPREAD = 0.2  # of the pause, either way, so that messages that failed together are not retried together
# Lower bounds, so that no setting makes the relay spin.
_MIN_FIRST_SECONDS, _MIN_LONGEST_SECONDS = 0.1, 1.0


def pause(attempts: int, settings: RelaySettings, chance: float) -> float:
    """Seconds to wait after that many failed attempts; ``chance`` is from 0 to 1."""
    doubled = max(settings.first_retry, _MIN_FIRST_SECONDS) * 2.0 ** min(attempts - 1, 32)
    return min(doubled, max(settings.longest_retry, _MIN_LONGEST_SECONDS)) * (1 - _SPREAD + 2 * _SPREAD * chance)


def next_attempt(row: QueueRow, attempts: int, now: float, settings: RelaySettings, chance: float) -> int:
    """Time of the next attempt; not later than the delay report or the expiry."""
    moment = now + pause(attempts, settings, chance)
    milestones = [row.expires_at]
    if settings.warn_after and not row.delay_warned:
        milestones.append(row.created_at + int(settings.warn_after))
    return int(min([moment, *(at for at in milestones if at > now)]))


def is_expired(row: QueueRow, now: float) -> bool:
    return now >= row.expires_at


def is_late(row: QueueRow, now: float, settings: RelaySettings) -> bool:
    """True if the delay report is due."""
    return bool(settings.warn_after) and not row.delay_warned and now >= row.created_at + settings.warn_after
