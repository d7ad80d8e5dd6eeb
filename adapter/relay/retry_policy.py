"""When the next attempt is made, whether it is time to give up or to tell the sender of the delay. Pure."""

from __future__ import annotations

from adapter.config.schema import RelaySettings
from adapter.store.queries.outbox import QueueRow

_SPREAD = 0.2  # of the pause, either way: messages that failed together are not retried together
_LEAST, _LEAST_LONGEST = 0.1, 1.0  # seconds: no setting makes the relay run in circles


def pause(attempts: int, settings: RelaySettings, chance: float) -> float:
    """Seconds to wait after so many failed attempts; ``chance`` is from 0 to 1."""
    doubled = max(settings.first_retry, _LEAST) * 2.0 ** min(attempts - 1, 32)
    return min(doubled, max(settings.longest_retry, _LEAST_LONGEST)) * (1 - _SPREAD + 2 * _SPREAD * chance)


def next_attempt(row: QueueRow, attempts: int, now: float, settings: RelaySettings, chance: float) -> int:
    """At the latest when the sender is to be told of the delay, or gets the message back."""
    moment = now + pause(attempts, settings, chance)
    milestones = [row.expires_at]
    if settings.warn_after and not row.delay_warned:
        milestones.append(row.created_at + int(settings.warn_after))
    return int(min([moment, *(at for at in milestones if at > now)]))


def is_expired(row: QueueRow, now: float) -> bool:
    return now >= row.expires_at


def is_late(row: QueueRow, now: float, settings: RelaySettings) -> bool:
    """Whether the sender should be told of the delay now."""
    return bool(settings.warn_after) and not row.delay_warned and now >= row.created_at + settings.warn_after
