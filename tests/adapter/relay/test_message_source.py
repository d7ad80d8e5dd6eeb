"""Outgoing messages: traits, and encoding for DATA."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.relay.message_source import DataEncoder, MessageTraits, measure
from protocol.smtp.data import DataReader, Intake, LineEnds, MessageLimits

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
