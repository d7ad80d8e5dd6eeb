"""The segments of a journal: rotation, compaction, followers, and several appenders."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.store import journal, layout
from adapter.store.disk import Directories
from adapter.store.journal import Journal, JournalDamaged
from adapter.transport.changes import JournalTail
from tests.support.store.journals import abort, record, reopened, segment, texts
from tests.support.stores import STORE

# --- rotation, compaction, followers ---------------------------------------------------------------------------------


def test_segments_rotate_by_size(written: Journal, directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 200)
    with closing(reopened(directories)) as other:
        for number in range(20):
            (written if number % 3 else other).refresh()
            (written if number % 3 else other).append([record(str(number))])
    written.refresh()
    assert len(written.segments()) > 5
    assert texts(written.records(0, 20)) == [str(number) for number in range(20)]


def test_appender_continues_after_its_segment_was_compacted(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    with closing(reopened(directories)) as other:
        other.rotate()
        other.append([record("b")])
        other.rotate()
        other.append([record("c")])
        assert other.remove_segments_before(2) == [1, 2]
    written.refresh()
    assert written.last_seq == 3
    written.append([record("d")])
    assert texts(written.records(2, 4)) == ["c", "d"]


def test_only_complete_older_segments_are_removed(written: Journal) -> None:
    written.append([record("a"), record("b")])
    written.rotate()
    written.append([record("c")])
    assert written.remove_segments_before(1) == []
    assert written.remove_segments_before(2) == [1]
    assert written.remove_segments_before(99) == []  # the newest is always kept: it has the last sequence number
    assert texts(written.records(2)) == ["c"]


def test_rotating_an_empty_segment_does_nothing(written: Journal) -> None:
    written.rotate()
    written.append([record("a")])
    written.rotate()
    written.rotate()
    assert written.segments() == [1, 2]
    written.append([record("b")])
    assert texts(written.records(0, 2)) == ["a", "b"]


@given(
    steps=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", "rotate", "abort", "read"])), max_size=15),
    start=st.integers(0, 10),
)
@settings(max_examples=40)
def test_tail_reads_every_record_once(
    steps: list[tuple[int, str]], start: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tail")
    with closing(Directories(str(root))) as directories:
        for parts in layout.DIRECTORIES:
            with directories.stable(parts, create=True):
                pass
        with closing(Journal(directories, STORE)) as written:
            written.refresh()
            for number in range(start):
                written.append([record(f"before {number}")])
            tail = JournalTail(written, directories, start)
            read_texts: list[str] = []
            expected: list[str] = []
            for number, (count, then) in enumerate(steps):
                batch = [f"{number}.{position}" for position in range(count)]
                first = written.last_seq + 1
                written.append([record(text) for text in batch])
                if then == "abort":
                    written.append([abort(first, written.last_seq)])
                else:
                    expected += batch
                if then == "rotate":
                    written.rotate()
                if then == "read":
                    read_texts += texts(tail.advance(written.last_seq))
                    assert tail.advance(written.last_seq) == []
            read_texts += texts(tail.advance(written.last_seq))
            assert read_texts == expected


def test_tail_reports_records_compacted_before_it_read_them(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    tail = JournalTail(written, directories, 1)
    written.rotate()
    written.append([record("b")])
    written.rotate()
    written.append([record("c")])
    written.remove_segments_before(2)
    with pytest.raises(JournalDamaged):
        tail.advance(3)


def test_tail_resumes_without_loss_after_a_read_error(written: Journal, directories: Directories) -> None:
    tail = JournalTail(written, directories, 0)
    written.append([record("a"), record("b")])
    written.rotate()
    written.append([record("c")])
    hidden = segment(directories, 3).rename(segment(directories, 3).with_suffix(".away"))
    with pytest.raises(JournalDamaged):
        tail.advance(3)
    hidden.rename(segment(directories, 3))
    assert texts(tail.advance(3)) == ["a", "b", "c"]
