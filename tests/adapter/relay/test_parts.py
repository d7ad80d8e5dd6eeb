"""The pure parts of the relay: retry policy, meaning of replies, message traits, and encoding for DATA."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.config import loader
from adapter.config.loader import Seconds
from adapter.config.schema import RelaySettings
from adapter.relay import replies, retry_policy
from adapter.relay.message_source import DataEncoder, MessageTraits, measure
from adapter.relay.replies import Verdict
from adapter.store.queries.outbox import QueueRow
from protocol.smtp.data import DataReader, Intake, LineEnds, MessageLimits

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


# --- retry policy ----------------------------------------------------------------------------------------------------


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


# --- replies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text", "verdict", "status"),
    [
        (250, "2.0.0 ok", Verdict.RELAYED, "2.0.0"),
        (250, "ok", Verdict.RELAYED, "2.0.0"),
        (450, "4.2.1 busy", Verdict.DEFERRED, "4.2.1"),
        (451, "busy", Verdict.DEFERRED, "4.0.0"),
        (550, "5.1.1 no", Verdict.FAILED, "5.1.1"),
        (550, "no", Verdict.FAILED, "5.0.0"),
        (550, "4.1.1 contradicts itself", Verdict.FAILED, "5.0.0"),
        (554, "5.7.1234 no such code", Verdict.FAILED, "5.0.0"),
        (530, "5.7.0 log in", Verdict.DEFERRED, "4.7.0"),
        (535, "5.7.8 wrong password", Verdict.DEFERRED, "4.7.8"),
        (354, "go", Verdict.DEFERRED, "4.5.0"),
        (-1, "nonsense", Verdict.DEFERRED, "4.5.0"),
    ],
)
def test_replies_have_a_verdict_and_a_status(code: int, text: str, verdict: Verdict, status: str) -> None:
    reply = replies.parse_reply(code, text, "host")
    assert (reply.verdict, reply.status) == (verdict, status)


@pytest.mark.parametrize(
    ("code", "text", "verdict"),
    [
        (452, "4.5.3 too many", Verdict.RETRY_NOW),
        (452, "too many", Verdict.RETRY_NOW),
        (552, "too many", Verdict.RETRY_NOW),
        (552, "5.5.3 too many", Verdict.RETRY_NOW),
        (552, "5.2.2 mailbox full", Verdict.FAILED),
        (452, "4.2.2 mailbox full", Verdict.DEFERRED),
        (550, "5.1.1 no", Verdict.FAILED),
    ],
)
def test_replies_to_rcpt_have_a_verdict(code: int, text: str, verdict: Verdict) -> None:
    assert replies.parse_rcpt_reply(code, text, "host").verdict is verdict


@given(st.integers(-10, 999), st.text(max_size=3000))
def test_every_reply_is_one_bounded_line(code: int, text: str) -> None:
    for reply in (replies.parse_reply(code, text, "host"), replies.parse_rcpt_reply(code, text, "host")):
        assert reply.text.isprintable()
        assert len(reply.text.encode()) < 2200
        assert re.fullmatch(r"[245]\.\d{1,3}\.\d{1,3}", reply.status)


# --- traits and encoding for DATA ------------------------------------------------------------------------------------

pieces = st.lists(
    st.one_of(st.sampled_from([b"\r", b"\n", b".", b"\r\n", b"\r\n.\r\n", b"\n.\n", b"a", b""]), st.binary(max_size=5)),
    max_size=30,
)


def normalised(octets: bytes) -> bytes:
    text = re.sub(rb"\r\n|\r|\n", b"\r\n", octets)
    return text if text.endswith(b"\r\n") or not text else text + b"\r\n"


@given(pieces)
def test_encoded_data_ends_once_and_decodes_to_the_message(chunks: list[bytes]) -> None:
    encoder = DataEncoder()
    wire = b"".join(encoder.feed(chunk) for chunk in chunks) + encoder.finish()
    assert (b"\r\n" + wire).find(b"\r\n.\r\n") == len(wire) - 3
    lines = (b"\r\n" + wire)[:-3].replace(b"\r\n.", b"\r\n")[2:]
    assert lines == normalised(b"".join(chunks))
    assert measure(chunks).size == len(lines)


@given(pieces)
def test_encoded_data_is_read_back_by_the_server(chunks: list[bytes]) -> None:
    encoder = DataEncoder()
    wire = b"".join(encoder.feed(chunk) for chunk in chunks) + encoder.finish()
    intake = Intake(MessageLimits(), LineEnds.KEEP)
    reader = DataReader(intake)
    body = reader.feed(wire)
    assert reader.done
    assert reader.leftover == b""
    assert (intake.header or b"") + body == normalised(b"".join(chunks))


@given(pieces, st.data())
def test_traits_do_not_depend_on_the_chunks(chunks: list[bytes], data: st.DataObject) -> None:
    octets = b"".join(chunks)
    cut = data.draw(st.integers(0, len(octets)))
    assert measure([octets[:cut], octets[cut:]]) == measure([octets])
    bare = re.sub(rb"\r\n", b"", octets)
    assert measure([octets]).binary == (b"\r" in bare or b"\n" in bare or b"\0" in octets)
    assert measure([octets]).eight_bit == (not octets.isascii())


@pytest.mark.parametrize(
    ("octets", "traits"),
    [
        (b"", MessageTraits(0, False, False, False)),
        (b"A: b\r\n\r\nx\r\n", MessageTraits(11, False, False, False)),
        ("A: ü\r\n\r\nx\r\n".encode(), MessageTraits(12, True, True, False)),
        ("A: b\r\n\r\nü\r\n".encode(), MessageTraits(12, True, False, False)),
        ("A: ü".encode(), MessageTraits(7, True, True, False)),
        (b"y" * 998 + b"\r\n", MessageTraits(1000, False, False, False)),
        (b"y" * 999 + b"\r\n", MessageTraits(1001, False, False, True)),
        (b"y" * 998, MessageTraits(1000, False, False, False)),
        (b"y" * 999, MessageTraits(1001, False, False, True)),
    ],
)
def test_traits_of_a_message(octets: bytes, traits: MessageTraits) -> None:
    assert measure([octets]) == traits
    assert measure([bytes([octet]) for octet in octets]) == traits
