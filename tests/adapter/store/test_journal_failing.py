"""The journal on a failing disk: failed appends leave no record, aborts roll back the batch they name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.store import disk, journal
from adapter.store.disk import Directories
from adapter.store.journal import Journal, Record, without_aborted
from tests.support.store.journals import abort, bare, octets, record, reopened, texts

# --- failing appends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["append", "fsync"])
def test_failed_append_leaves_no_record(
    written: Journal, directories: Directories, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    written.append([record("a")])
    whole = octets(directories)
    failed: list[str] = []

    def fail(action: str, fd: int, name: str) -> None:
        if action == step and not failed:
            failed.append(action)
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "on_step", fail)
    with pytest.raises(OSError, match="No space"):
        written.append([record("b")])
    assert octets(directories) == whole
    written.append([record("c")])
    assert texts(written.records(0, 2)) == ["a", "c"]


def failing(*actions: str) -> Callable[[str, int, str], None]:
    def fail(action: str, fd: int, name: str) -> None:
        if action in actions:
            raise OSError(5, "Input/output error")

    return fail


def test_repeated_disk_errors_do_not_lose_earlier_records(
    written: Journal, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.append([record("a")])
    whole = octets(directories)
    for actions in (("fsync",), ("append", "fsync"), ("append", "truncate"), ("fsync", "truncate")):
        monkeypatch.setattr(disk, "on_step", failing(*actions))
        for _ in range(3):
            with pytest.raises(OSError, match=r"Input/output|unknown"):
                written.append([record("b")])
        monkeypatch.setattr(disk, "on_step", None)
        written.refresh()
        assert octets(directories).startswith(whole)
    written.append([record("c")])
    assert texts(written.records(0, written.last_seq)) == ["a", "b", "c"]  # the last "b" could not be truncated


def test_failed_rotation_does_not_break_concurrent_appenders(
    written: Journal, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(reopened(directories)) as other:
        written.append([record("a")])
        monkeypatch.setattr(disk, "on_step", failing("fsync-directory"))
        with pytest.raises(OSError, match="Input/output"):
            written.rotate()
        monkeypatch.setattr(disk, "on_step", None)
        written.append([record("b")])
        other.refresh()
        other.append([record("c")])
        written.refresh()
        assert texts(written.records(0, 3)) == ["a", "b", "c"]


def test_record_that_could_not_be_truncated_counts(
    written: Journal, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append reached the disk, but its fsync and the truncation failed: the record stays in the file."""
    written.append([record("a")])
    monkeypatch.setattr(disk, "on_step", failing("fsync", "truncate"))
    with pytest.raises(OSError, match="Input/output"):
        written.append([record("b")])
    monkeypatch.setattr(disk, "on_step", None)
    written.refresh()
    assert written.last_seq == 2
    written.append([record("c")])
    assert texts(written.records(0, 3)) == ["a", "b", "c"]


def test_last_batch_can_be_removed(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    written.append([record("b"), record("c")])
    written.forget_last_batch()
    assert written.last_seq == 1
    written.append([record("d")])
    assert texts(written.records(0, 2)) == ["a", "d"]
    with closing(reopened(directories)) as again:
        assert again.last_seq == 2


# --- aborts ----------------------------------------------------------------------------------------------------------


def test_abort_rolls_back_only_its_batch(written: Journal) -> None:
    written.append([record("a")])
    written.append([record("b"), record("c")])
    written.append([abort(2, 3)])
    written.append([record("d")])
    assert texts(without_aborted(written.records(0))) == ["a", "d"]


def test_an_abort_stays_in_the_segment_of_its_batch(
    written: Journal, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 10)
    written.append([record("a")])
    written.append([record("b")])
    written.append([abort(2, 2)])
    written.append([record("c")])
    assert written.segments() == [1, 2, 4]
    assert texts(without_aborted(written.records(0))) == ["a", "c"]


@given(st.lists(st.tuples(st.integers(1, journal.MAX_BATCH // 2), st.booleans()), max_size=12))
def test_without_aborted_equals_a_plain_two_pass_filter(batches: list[tuple[int, bool]]) -> None:
    """Compare with a two-pass filter: collect all records, then drop those named by an abort."""
    records: list[Record] = []
    for size, aborted in batches:
        first = len(records) + 1
        for _ in range(size):
            records.append(bare(len(records) + 1))
        if aborted:
            records.append(abort(first, len(records), len(records) + 1))
    aborted_seqs = {seq for each in records if each.aborted for seq in range(each.aborted[0], each.aborted[1] + 1)}
    expected = [each.seq for each in records if not each.aborted and each.seq not in aborted_seqs]
    assert [each.seq for each in without_aborted(iter(records))] == expected
