"""Retry policy: pauses, expiry and delay reports follow the settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.config import loader
from adapter.config.loader import Seconds
from adapter.config.schema import RelaySettings
from adapter.relay import retry_policy
from adapter.store.queries.outbox import QueueRow

DEFAULT = RelaySettings()
CREATED = 1_794_800_000


def row(**others: object) -> QueueRow:
    values = {
        **dict.fromkeys(QueueRow._fields, ""),
        "created_at": CREATED,
        "expires_at": CREATED + 5 * 86400,
        "delay_warned": 0,
        "attempts": 0,
        **others,
    }
    return QueueRow(**values)  # type: ignore[arg-type]


def test_pauses_double_from_a_minute_to_an_hour() -> None:
    minutes = [retry_policy.pause(attempts, DEFAULT, 0.5) / 60 for attempts in range(1, 10)]
    assert minutes == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert retry_policy.pause(10_000, DEFAULT, 0.5) == 3600


@given(st.integers(1, 500), st.floats(0, 1))
def test_pauses_are_spread_but_bounded(attempts: int, chance: float) -> None:
    middle = retry_policy.pause(attempts, DEFAULT, 0.5)
    assert 0.79 * middle <= retry_policy.pause(attempts, DEFAULT, chance) <= 1.21 * middle


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 50))
def test_no_setting_makes_the_relay_spin(first: float, longest: float, attempts: int) -> None:
    impatient = RelaySettings(first_retry=Seconds(first * 0), longest_retry=Seconds(longest * 0))
    assert retry_policy.pause(attempts, impatient, first) > 0
    assert retry_policy.pause(50, impatient, first) >= 0.8


def test_attempt_is_due_at_delay_report_and_expiry() -> None:
    four_hours = CREATED + 4 * 3600
    assert retry_policy.next_attempt(row(), 9, four_hours - 600, DEFAULT, 0.5) == four_hours
    assert retry_policy.next_attempt(row(), 9, four_hours, DEFAULT, 0.5) == four_hours + 3600
    assert retry_policy.next_attempt(row(delay_warned=1), 9, four_hours - 600, DEFAULT, 0.5) == four_hours + 3000
    end = CREATED + 5 * 86400
    assert retry_policy.next_attempt(row(delay_warned=1), 99, end - 600, DEFAULT, 1.0) == end
    assert retry_policy.next_attempt(row(delay_warned=1), 99, end + 5, DEFAULT, 0.5) == end + 3605


@pytest.mark.setting("relay.warn_after")
def test_delay_report_and_expiry_are_due_on_time() -> None:
    assert not retry_policy.is_late(row(), CREATED + 4 * 3600 - 1, DEFAULT)
    assert retry_policy.is_late(row(), CREATED + 4 * 3600, DEFAULT)
    assert not retry_policy.is_late(row(delay_warned=1), CREATED + 4 * 3600, DEFAULT)
    assert not retry_policy.is_late(row(), CREATED + 10**6, RelaySettings(warn_after=Seconds(0)))
    assert not retry_policy.is_expired(row(), CREATED + 5 * 86400 - 1)
    assert retry_policy.is_expired(row(), CREATED + 5 * 86400)


def test_attempts_of_an_undeliverable_message() -> None:
    """Two dozen attempts in the first day, then about one an hour, and the last one at expiry."""
    now, attempts, moments = float(CREATED), 0, []
    current = row()
    while not retry_policy.is_expired(current, now):
        attempts += 1
        if retry_policy.is_late(current, now, DEFAULT):
            current = current._replace(delay_warned=1)
        now = retry_policy.next_attempt(current, attempts, now, DEFAULT, 0.5)
        moments.append(now - CREATED)
    assert moments[:5] == [60, 180, 420, 900, 1860]
    assert 4 * 3600 in moments
    assert moments[-1] == 5 * 86400
    assert 120 < len(moments) < 130


def test_settings_are_read_from_toml(tmp_path: object) -> None:
    path = f"{tmp_path}/relay.toml"
    with open(path, "w") as file:
        file.write('host = "mail.test"\nfirst_retry = "2 min"\nexpire_after = "3 d"\ntls = "implicit"\n')
    loaded = loader.load(RelaySettings, path, {})
    assert (loaded.host, loaded.tls) == ("mail.test", "implicit")
    assert (float(loaded.first_retry), float(loaded.expire_after)) == (120.0, 259200.0)
