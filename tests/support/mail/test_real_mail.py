"""The generator of real-looking mail: the same mail for the same seed, and the properties that its docstring names."""

from __future__ import annotations

import collections
import email
import email.policy
import statistics
from email.message import Message

import pytest

from tests.support.mail.real_mail import MAX_REFERENCES, RealMail, unique_word

COUNT = 1200
MAIL = RealMail(7)
OCTETS = [MAIL.octets(number) for number in range(COUNT)]
PARSED = [email.message_from_bytes(octets) for octets in OCTETS]


def _unfolded(message: Message, name: str) -> list[str]:
    return str(message.get(name, "")).split()


def test_same_seed_and_number_give_the_same_octets_in_any_order() -> None:
    other = RealMail(7)
    assert [other.octets(number) for number in reversed(range(0, COUNT, 37))] == OCTETS[::37][::-1]
    assert RealMail(8).octets(5) != OCTETS[5]


def test_every_line_ends_with_crlf_and_fits_smtp() -> None:
    for octets in OCTETS:
        assert octets.endswith(b"\r\n")
        assert octets.count(b"\r\n") == octets.count(b"\r") == octets.count(b"\n")
        assert max(map(len, octets.split(b"\r\n"))) < 998


def test_sizes_have_the_documented_distribution() -> None:
    sizes = sorted(map(len, OCTETS))
    low, median, high = statistics.quantiles(sizes, n=4)
    assert 3_000 < low < 5_500
    assert 6_000 < median < 10_000
    assert 10_000 < high < 18_000
    assert 14_000 < statistics.mean(sizes) < 30_000
    assert sizes[-1] > 300_000


def test_replies_name_earlier_messages_of_their_thread() -> None:
    ids = [str(message["Message-ID"]) for message in PARSED]
    assert len(set(ids)) == COUNT
    numbers = {name: number for number, name in enumerate(ids)}
    replies = 0
    for number, message in enumerate(PARSED):
        parent = MAIL.parent(number)
        if parent is None:
            assert message["In-Reply-To"] is None
            assert message["References"] is None
            continue
        replies += 1
        references = _unfolded(message, "References")
        assert _unfolded(message, "In-Reply-To") == [ids[parent]] == references[-1:]
        assert len(references) <= MAX_REFERENCES
        assert [numbers[each] for each in references] == sorted(numbers[each] for each in references)
        assert numbers[references[0]] == MAIL.ancestors(number)[0]
        assert MAIL.subject(number).startswith("Re: ")
    assert 0.5 < replies / COUNT < 0.6


def test_threads_are_many_short_and_some_long() -> None:
    threads = collections.Counter((MAIL.ancestors(number) or [number])[0] for number in range(COUNT))
    sizes = collections.Counter(threads.values())
    assert sizes[1] > 0.4 * len(threads)
    assert max(sizes) > 15
    assert max(len(MAIL.ancestors(number)) for number in range(COUNT)) > 6


def test_structures_charsets_and_encodings_are_mixed() -> None:
    structures = collections.Counter(message.get_content_type() for message in PARSED)
    assert 0.25 < structures["text/plain"] / COUNT < 0.35
    assert 0.45 < (structures["multipart/alternative"]) / COUNT < 0.60
    assert structures["multipart/mixed"] > 0.06 * COUNT
    parts = [part for message in PARSED for part in message.walk() if not part.is_multipart()]
    assert {part.get_content_type() for part in parts} >= {"text/html", "text/calendar", "application/pdf"}
    assert {str(part.get_content_charset()) for part in parts} >= {"utf-8", "iso-8859-1", "us-ascii"}
    encodings = {str(part.get("Content-Transfer-Encoding", "7bit")) for part in parts}
    assert encodings == {"7bit", "8bit", "quoted-printable", "base64"}
    assert all(not part.defects for message in PARSED for part in message.walk())


def test_some_attachments_are_repeated_and_others_unique() -> None:
    seen = collections.Counter(
        part.get_payload(decode=True)
        for message in PARSED
        for part in message.walk()
        if part.get_content_disposition() == "attachment"
    )
    assert max(seen.values()) > 2
    assert sum(1 for count in seen.values() if count == 1) > 0.4 * seen.total()


def test_mailing_lists_carry_their_fields() -> None:
    lists = [message for message in PARSED if message["List-Id"]]
    assert 0.1 < len(lists) / COUNT < 0.3
    assert all(message["List-Unsubscribe"] for message in lists)


def test_unique_word_is_in_its_message() -> None:
    for number in range(0, COUNT, 50):
        texts = [
            bytes(part.get_payload(decode=True) or b"")
            for part in PARSED[number].walk()
            if part.get_content_maintype() == "text"
        ]
        assert any(unique_word(number).encode() in text for text in texts)


@pytest.mark.parametrize("size", [2_000, 9_999, 100_000])
def test_fixed_sizes_are_exact_and_keep_the_threads(size: int) -> None:
    for number in range(60):
        octets = MAIL.octets(number, size)
        message = email.message_from_bytes(octets)
        assert len(octets) == size
        assert octets.count(b"\r\n") == octets.count(b"\r") == octets.count(b"\n")
        assert bool(message["References"]) == (MAIL.parent(number) is not None)
        assert unique_word(number).encode() in octets
        assert not message.defects
