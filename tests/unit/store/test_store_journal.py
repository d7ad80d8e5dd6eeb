"""The journal: torn tails, damage, rotation, aborts, followers, and several appenders."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.store import disk, journal, layout
from adapter.store.disk import Directories
from adapter.store.journal import Journal, JournalDamaged, JournalTail, Record, decode, without_aborted
from adapter.store.locks import Locks
from tests.support.processes import running


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Directories]:
    with closing(Directories(str(tmp_path))) as opened:
        for parts in layout.DIRECTORIES:
            with opened.stable(parts, create=True):
                pass
        yield opened


@pytest.fixture
def written(directories: Directories) -> Iterator[Journal]:
    with closing(Journal(directories)) as opened:
        opened.refresh()
        yield opened


def record(text: str = "x") -> Record:
    return Record("test", 1_700_000_000_000_000, [{"do": "nothing", "text": text}])


def abort(first: int, last: int) -> Record:
    return Record("abort", 1, [], aborted=(first, last))


def texts(records: Iterator[Record] | list[Record]) -> list[str]:
    return [effect["text"] for found in records for effect in found.effects]


def segment(directories: Directories, first: int = 1) -> Path:
    return Path(directories.root, "journal", f"{first:016d}.jsonl")


def octets(directories: Directories) -> bytes:
    """The records of the segment, without the padding behind them."""
    return segment(directories).read_bytes().rstrip(journal.PADDING)


def reopened(directories: Directories, durable: int = 0) -> Journal:
    fresh = Journal(directories)
    fresh.durable_seq = durable
    fresh.refresh()
    return fresh


# --- one record ------------------------------------------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)
_records = st.builds(
    Record,
    st.sampled_from(["deliver", "flags"]),
    st.integers(0, 2**53),
    st.lists(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), _json, max_size=3), max_size=3),
    st.integers(1, 2**53),
    st.none() | st.tuples(st.integers(1, 100), st.integers(1, 100)),
)


@given(_records)
def test_a_record_is_one_line_that_comes_back(written: Record) -> None:
    line = written.encode()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == written
    body = orjson.loads(line)
    assert next(iter(body)) == "seq"
    assert list(body)[-1] == "crc"


@given(_records, st.data())
def test_any_changed_octet_is_noticed(written: Record, data: st.DataObject) -> None:
    line = bytearray(written.encode())
    position = data.draw(st.integers(0, len(line) - 1))
    line[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalDamaged):
        decode(bytes(line))


@given(_records, st.data())
def test_a_cut_line_is_no_record(written: Record, data: st.DataObject) -> None:
    line = written.encode()
    with pytest.raises(JournalDamaged):
        decode(line[: data.draw(st.integers(0, len(line) - 1))])


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b'{"seq":1}', b'"x"', b'{"seq":1,"at":1,"op":"x","effects":[],"aborted":[1]}']
)
def test_a_line_that_verifies_but_is_no_record(body: bytes) -> None:
    head = body[:-1]
    with pytest.raises(JournalDamaged):
        decode(b'%b,"crc":"%08x"}\n' % (head, zlib.crc32(head)))


# --- appending and reading -------------------------------------------------------------------------------------------


def test_numbers_have_no_gap(written: Journal, directories: Directories) -> None:
    written.append([record("a"), record("b")])
    written.append([record("c")])
    assert [found.seq for found in written.records(0)] == [1, 2, 3]
    assert texts(written.records(1)) == ["b", "c"]
    assert texts(written.records(1, 2)) == ["b"]
    with closing(reopened(directories)) as again:
        assert again.last_seq == 3
        again.append([record("d")])
    written.refresh()
    assert written.last_seq == 4
    assert texts(written.records(3)) == ["d"]


def test_nothing_is_in_an_empty_journal(written: Journal) -> None:
    assert written.last_seq == 0
    assert list(written.records(0)) == []
    assert list(written.records(0, 0)) == []


def test_more_than_there_is_cannot_be_had(written: Journal) -> None:
    with pytest.raises(JournalDamaged):
        list(written.records(0, 1))
    written.append([record()])
    with pytest.raises(JournalDamaged):
        list(written.records(0, 2))


def test_a_beginning_that_is_gone_is_not_passed_over(written: Journal) -> None:
    """A rebuild from a journal whose first records were compacted away would lose mail without a word."""
    for text in "abc":
        written.append([record(text)])
        written.rotate()
    written.append([record("d")])
    assert written.remove_segments_before(2) == [1, 2]
    assert texts(written.records(2)) == ["c", "d"]
    for after in (0, 1):
        with pytest.raises(JournalDamaged, match="missing"):
            list(written.records(after))
        with pytest.raises(JournalDamaged, match="missing"):
            list(written.records(after, 4))


def test_a_missing_segment_is_noticed(written: Journal, directories: Directories) -> None:
    for text in "abc":
        written.append([record(text)])
        written.rotate()
    segment(directories, 2).unlink()
    with pytest.raises(JournalDamaged, match="missing"):
        list(written.records(0))


# --- torn tails ------------------------------------------------------------------------------------------------------

_LINE = Record("test", 1, [{"do": "nothing", "text": "torn"}], 3).encode()
TORN = {
    "half a line": _LINE[: len(_LINE) // 2],
    "one octet": b"{",
    "no line end": _LINE[:-1],
    "zeros": bytes(500),
    "zeros for the second half": _LINE[:20] + bytes(len(_LINE) - 20),
    "a bad checksum": _LINE[:-5] + b"00" + _LINE[-3:],
    "noise": bytes(range(128, 256)),
    "a blank line": b"\n",
    "a record out of order": Record("test", 1, [], 7).encode(),
    "an old record again": Record("test", 1, [], 2).encode(),
    "a torn line, then a whole one": _LINE[:9] + b"\n" + Record("test", 1, [], 4).encode(),
    "zeros, then a whole line": bytes(50) + b"\n" + Record("test", 1, [], 4).encode(),
}


@pytest.mark.parametrize("tail", TORN.values(), ids=TORN.keys())
@pytest.mark.parametrize("place", ["in the padding", "a page into the padding", "without padding"])
def test_a_torn_tail_is_cut(written: Journal, directories: Directories, tail: bytes, place: str) -> None:
    written.append([record("a"), record("b")])
    whole = octets(directories)
    if place == "without padding":
        os.truncate(segment(directories), len(whole))
    with segment(directories).open("r+b") as file:
        file.seek(len(whole) + (4096 if place == "a page into the padding" else 0))
        file.write(tail)
    assert texts(written.records(0)) == ["a", "b"]  # a reader is not disturbed
    with closing(reopened(directories, durable=2)) as again:
        assert again.last_seq == 2
        assert octets(directories) == whole
        again.append([record("c")])
        assert texts(again.records(0, 3)) == ["a", "b", "c"]
    quarantine = Path(directories.root, "maintenance", "quarantine")
    kept = [path.read_bytes().strip(b" ") for path in quarantine.iterdir()] if quarantine.exists() else []
    assert kept == ([tail] if b"\n" in tail else [])


def test_small_records_are_written_into_padding_that_is_there(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    size = segment(directories).stat().st_size
    for text in "bcd":
        written.append([record(text)])
    assert segment(directories).stat().st_size == size > len(octets(directories))
    large = record("x" * (size + 1000))
    written.append([large])
    assert segment(directories).read_bytes() == octets(directories)  # a large one is not followed by as much again
    written.append([record("e")])
    assert len(list(written.records(0, 6))) == 6


def test_the_padding_of_a_finished_segment_is_cut(written: Journal, directories: Directories) -> None:
    with closing(reopened(directories)) as other:
        written.append([record("a")])
        other.refresh()
        written.rotate()
        assert segment(directories).read_bytes() == octets(directories)
        other.refresh()
        other.append([record("b")])
        assert other.segments() == [1, 2]


@given(cut=st.integers(0, 400))
@settings(max_examples=60)
def test_a_batch_torn_anywhere_leaves_its_whole_records(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("torn")
    with closing(Directories(str(root))) as directories:
        for parts in layout.DIRECTORIES:
            with directories.stable(parts, create=True):
                pass
        with closing(Journal(directories)) as first:
            first.refresh()
            first.append([record(text) for text in "abcd"])
        data = octets(directories)
        cut = min(cut, len(data))
        os.truncate(segment(directories), cut)
        with closing(reopened(directories)) as again:
            assert again.last_seq == data[:cut].count(b"\n")
            assert texts(again.records(0)) == list("abcd")[: again.last_seq]


def test_damage_before_the_checkpoint_is_reported_and_not_cut(written: Journal, directories: Directories) -> None:
    written.append([record("a"), record("b"), record("c")])
    data = bytearray(octets(directories))
    data[len(data) // 2] ^= 1
    segment(directories).write_bytes(data)
    with pytest.raises(JournalDamaged, match="record 2"):
        reopened(directories, durable=3)
    assert segment(directories).read_bytes() == data
    with pytest.raises(JournalDamaged, match="record 2"):
        list(written.records(0, 3))


def test_damage_in_an_older_segment_is_reported(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    written.rotate()
    written.append([record("b")])
    data = segment(directories).read_bytes()
    for bad in (data[:-10], data.replace(b'"a"', b'"z"'), b""):
        segment(directories).write_bytes(bad)
        with closing(reopened(directories)) as again:
            assert again.last_seq == 2
            for upto in (None, 2):
                with pytest.raises(JournalDamaged):
                    list(again.records(0, upto))
            assert texts(again.records(1)) == ["b"]
        assert segment(directories).read_bytes() == bad


def test_a_journal_that_became_shorter_is_damage(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    os.truncate(segment(directories), 5)
    with pytest.raises(JournalDamaged, match="shorter"):
        written.refresh()


# --- failing appends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["append", "fsync"])
def test_an_append_that_fails_leaves_nothing(
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


def test_a_disk_that_goes_on_failing_takes_nothing_that_was_there(
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
    assert texts(written.records(0, written.last_seq)) == ["a", "b", "c"]  # the last "b" could not be taken back


def test_a_rotation_that_fails_leads_nobody_astray(
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


def test_when_nothing_can_be_taken_back_the_file_decides(
    written: Journal, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append reached the disk, its fsync failed, and so did the truncation: the record is there."""
    written.append([record("a")])
    monkeypatch.setattr(disk, "on_step", failing("fsync", "truncate"))
    with pytest.raises(OSError, match="Input/output"):
        written.append([record("b")])
    monkeypatch.setattr(disk, "on_step", None)
    written.refresh()
    assert written.last_seq == 2
    written.append([record("c")])
    assert texts(written.records(0, 3)) == ["a", "b", "c"]


def test_the_last_batch_can_be_forgotten(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    written.append([record("b"), record("c")])
    written.forget_last_batch()
    assert written.last_seq == 1
    written.append([record("d")])
    assert texts(written.records(0, 2)) == ["a", "d"]
    with closing(reopened(directories)) as again:
        assert again.last_seq == 2


# --- aborts ----------------------------------------------------------------------------------------------------------


def test_an_abort_takes_back_its_batch_and_no_more(written: Journal) -> None:
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
def test_what_counts_after_aborts(batches: list[tuple[int, bool]]) -> None:
    """Against the plain reading: collect everything, then leave out what an abort names."""
    records: list[Record] = []
    for size, aborted in batches:
        first = len(records) + 1
        for _ in range(size):
            records.append(Record("test", 1, [], len(records) + 1))
        if aborted:
            records.append(Record("abort", 1, [], len(records) + 1, (first, len(records))))
    gone = {seq for found in records if found.aborted for seq in range(found.aborted[0], found.aborted[1] + 1)}
    wanted = [found.seq for found in records if not found.aborted and found.seq not in gone]
    assert [found.seq for found in without_aborted(iter(records))] == wanted


# --- rotation, compaction, followers ---------------------------------------------------------------------------------


def test_rotation_by_size(written: Journal, directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 200)
    with closing(reopened(directories)) as other:
        for number in range(20):
            (written if number % 3 else other).refresh()
            (written if number % 3 else other).append([record(str(number))])
    written.refresh()
    assert len(written.segments()) > 5
    assert texts(written.records(0, 20)) == [str(number) for number in range(20)]


def test_an_appender_whose_segment_was_compacted_away_goes_on(written: Journal, directories: Directories) -> None:
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


def test_only_whole_segments_below_go(written: Journal) -> None:
    written.append([record("a"), record("b")])
    written.rotate()
    written.append([record("c")])
    assert written.remove_segments_before(1) == []
    assert written.remove_segments_before(2) == [1]
    assert written.remove_segments_before(99) == []  # the newest always stays: it knows the last number
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
def test_a_tail_hears_everything_once(
    steps: list[tuple[int, str]], start: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tail")
    with closing(Directories(str(root))) as directories:
        for parts in layout.DIRECTORIES:
            with directories.stable(parts, create=True):
                pass
        with closing(Journal(directories)) as written:
            written.refresh()
            for number in range(start):
                written.append([record(f"before {number}")])
            tail = JournalTail(written, directories, start)
            heard: list[str] = []
            wanted: list[str] = []
            for number, (count, then) in enumerate(steps):
                batch = [f"{number}.{position}" for position in range(count)]
                first = written.last_seq + 1
                written.append([record(text) for text in batch])
                if then == "abort":
                    written.append([abort(first, written.last_seq)])
                else:
                    wanted += batch
                if then == "rotate":
                    written.rotate()
                if then == "read":
                    heard += texts(tail.advance(written.last_seq))
                    assert tail.advance(written.last_seq) == []
            heard += texts(tail.advance(written.last_seq))
            assert heard == wanted


def test_a_tail_that_was_left_behind_says_so(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    tail = JournalTail(written, directories, 1)
    written.rotate()
    written.append([record("b")])
    written.rotate()
    written.append([record("c")])
    written.remove_segments_before(2)
    with pytest.raises(JournalDamaged):
        tail.advance(3)


def test_a_tail_that_could_not_read_on_misses_nothing(written: Journal, directories: Directories) -> None:
    tail = JournalTail(written, directories, 0)
    written.append([record("a"), record("b")])
    written.rotate()
    written.append([record("c")])
    hidden = segment(directories, 3).rename(segment(directories, 3).with_suffix(".away"))
    with pytest.raises(JournalDamaged):
        tail.advance(3)
    hidden.rename(segment(directories, 3))
    assert texts(tail.advance(3)) == ["a", "b", "c"]


# --- several processes -----------------------------------------------------------------------------------------------


def _append_many(root: str, name: str, count: int) -> None:
    with closing(Directories(root)) as directories, closing(Journal(directories)) as own:
        locks = Locks(directories, 30.0)
        for number in range(count):
            with locks.hold(()):
                own.refresh()
                own.append([record(f"{name} {number}"), record(f"{name} {number} again")])
                if number % 7 == 3:
                    own.rotate()
        locks.close()


def test_several_processes_append(written: Journal, directories: Directories) -> None:
    count = 40
    arguments: list[tuple[Any, ...]] = [(directories.root, name, count) for name in ("one", "two")]
    with running(_append_many, *arguments[0]), running(_append_many, *arguments[1]):
        _append_many(directories.root, "here", count)
    written.refresh()
    found = texts(written.records(0, written.last_seq))
    assert len(found) == 6 * count
    for name in ("one", "two", "here"):
        own = [text for text in found if text.startswith(name)]
        assert own == [text for number in range(count) for text in (f"{name} {number}", f"{name} {number} again")]
