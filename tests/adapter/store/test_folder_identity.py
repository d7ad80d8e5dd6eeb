"""The ``.mailbox`` file: decoded unchanged, and any change is detected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.store.folder_identity import UID_STEP, Identity, decode, mark
from tests.support.stores import STORE

identities = st.builds(
    Identity,
    st.integers(0, 2**128 - 1).map("{:032x}".format),
    st.integers(1, 2**48 - 1),
    st.integers(0, 2**64 - 1).map("reg-{:016x}".format),
    st.integers(1, 2**32 - 1),
    st.sampled_from(["", "\\Sent", "\\Drafts", "\\Archive", "\\Trash", "\\Junk"]),
    st.integers(1, 2**32 + 1000),
)


@given(identities)
def test_identity_is_decoded_unchanged(identity: Identity) -> None:
    assert decode(identity.encode()) == identity


@given(identities, st.data())
def test_any_changed_octet_of_an_identity_is_detected(identity: Identity, data: st.DataObject) -> None:
    raw = bytearray(identity.encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    assert decode(bytes(raw)) is None


@given(identities, st.data())
def test_truncated_or_longer_file_is_rejected(identity: Identity, data: st.DataObject) -> None:
    raw = identity.encode()
    assert decode(raw[: data.draw(st.integers(0, len(raw) - 1))]) is None
    assert decode(raw + data.draw(st.binary(min_size=1, max_size=5))) is None


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_not_an_identity(raw: bytes) -> None:
    assert decode(raw) is None


def test_identity_is_encoded_as_readable_lines() -> None:
    text = Identity(STORE, 0x0F3C9A12BC34, "reg-5c1f0a99d2e4b781", 1794877561, "\\Sent", 2001).encode().decode()
    assert text.splitlines()[:-1] == [
        f"store: {STORE}",
        "id: mbx-0f3c9a12bc34",
        "registration: reg-5c1f0a99d2e4b781",
        "uidvalidity: 1794877561",
        "special_use: \\Sent",
        "uids_below: 2001",
    ]


@pytest.mark.parametrize("uidnext", [1, 2, 999, 1000, 1001, 1002, 2000, 2001, 2**32 - 1, 2**32])
def test_the_mark_is_beyond_uidnext_by_a_step_at_most(uidnext: int) -> None:
    assert uidnext < mark(uidnext) <= uidnext + UID_STEP
    assert mark(uidnext) in (mark(uidnext + 1), uidnext + 1)  # constant within a step


_WRONG = ["store: x", "uidvalidity: 0", "id: mbx-0F3C9A12BC34", "registration: x", "special_use: Sent", "uids_below: 0"]


@pytest.mark.parametrize("line", _WRONG)
def test_malformed_value_is_rejected_even_with_a_valid_checksum(line: str) -> None:
    good = Identity(STORE, 1, "reg-" + "0" * 16, 5, "\\Sent").encode().decode()
    name = line.partition(":")[0]
    bad = "".join(line + "\n" if old.startswith(name) else old for old in good.splitlines(keepends=True))
    assert bad != good
    assert decode(bad.encode()) is None
