"""The journal: records, appending and reading, torn tails, damage."""

from __future__ import annotations

import os
import zlib
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.store import layout, store_id
from adapter.store.disk import Directories
from adapter.store.journal import Journal, JournalDamaged, Record, decode
from tests.support.store.journals import bare, octets, record, reopened, segment, texts
from tests.support.store.records import records
from tests.support.stores import STORE

# --- one record ------------------------------------------------------------------------------------------------------


@given(records())
def test_record_is_encoded_as_one_line_and_decoded_unchanged(written: Record) -> None:
    line = written.encode()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == written
    body = orjson.loads(line)
    assert next(iter(body)) == "seq"
    assert list(body)[-1] == "crc"


@given(records(), st.data())
def test_any_changed_octet_of_a_record_is_detected(written: Record, data: st.DataObject) -> None:
    line = bytearray(written.encode())
    position = data.draw(st.integers(0, len(line) - 1))
    line[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalDamaged):
        decode(bytes(line))


@given(records(), st.data())
def test_truncated_line_is_damaged(written: Record, data: st.DataObject) -> None:
    line = written.encode()
    with pytest.raises(JournalDamaged):
        decode(line[: data.draw(st.integers(0, len(line) - 1))])


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"seq":1}',
        b'"x"',
        b'{"seq":1,"at":1,"op":"x","effects":[]}',
        b'{"seq":1,"at":1,"op":"x","actor":{"account":"","via":"x"},"effects":[],"aborted":[1]}',
        b'{"seq":1,"at":1,"op":"x","actor":{"account":"","via":"x"},"effects":[{"do":"unheard-of"}]}',
        b'{"seq":1,"at":1,"op":"x","actor":{"account":"","via":"x"},"effects":[{"do":"subscribe","name":"x"}]}',
    ],
)
def test_line_with_a_valid_checksum_but_no_record_is_damaged(body: bytes) -> None:
    head = body[:-1]
    with pytest.raises(JournalDamaged):
        decode(b'%b,"crc":"%08x"}\n' % (head, zlib.crc32(head)))


# --- appending and reading -------------------------------------------------------------------------------------------


def test_sequence_numbers_are_contiguous(written: Journal, directories: Directories) -> None:
    written.append([record("a"), record("b")])
    written.append([record("c")])
    assert [each.seq for each in written.records(0)] == [1, 2, 3]
    assert texts(written.records(1)) == ["b", "c"]
    assert texts(written.records(1, 2)) == ["b"]
    with closing(reopened(directories)) as again:
        assert again.last_seq == 3
        again.append([record("d")])
    written.refresh()
    assert written.last_seq == 4
    assert texts(written.records(3)) == ["d"]


def test_empty_journal_has_no_records(written: Journal) -> None:
    assert written.last_seq == 0
    assert list(written.records(0)) == []
    assert list(written.records(0, 0)) == []


def test_reading_past_the_end_is_damage(written: Journal) -> None:
    with pytest.raises(JournalDamaged):
        list(written.records(0, 1))
    written.append([record()])
    with pytest.raises(JournalDamaged):
        list(written.records(0, 2))


def test_reading_before_the_first_kept_record_is_damage(written: Journal) -> None:
    """A rebuild from a journal without its compacted records would silently lose mail."""
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


def test_missing_segment_is_damage(written: Journal, directories: Directories) -> None:
    for text in "abc":
        written.append([record(text)])
        written.rotate()
    segment(directories, 2).unlink()
    with pytest.raises(JournalDamaged, match="missing"):
        list(written.records(0))


# --- torn tails ------------------------------------------------------------------------------------------------------

_LINE = record("torn", 3).encode()
TORN = {
    "half a line": _LINE[: len(_LINE) // 2],
    "one octet": b"{",
    "no line end": _LINE[:-1],
    "zeros": bytes(500),
    "zeros for the second half": _LINE[:20] + bytes(len(_LINE) - 20),
    "a bad checksum": _LINE[:-5] + b"00" + _LINE[-3:],
    "noise": bytes(range(128, 256)),
    "a blank line": b"\n",
    "a record out of order": bare(7).encode(),
    "an old record again": bare(2).encode(),
    "a torn line, then a whole one": _LINE[:9] + b"\n" + bare(4).encode(),
    "zeros, then a whole line": bytes(50) + b"\n" + bare(4).encode(),
}


@pytest.mark.parametrize("tail", TORN.values(), ids=TORN.keys())
@pytest.mark.parametrize("place", ["in the padding", "a page into the padding", "without padding"])
def test_torn_tail_is_truncated(written: Journal, directories: Directories, tail: bytes, place: str) -> None:
    written.append([record("a"), record("b")])
    whole = octets(directories)
    if place == "without padding":
        os.truncate(segment(directories), len(whole))
    with segment(directories).open("r+b") as file:
        file.seek(len(whole) + (4096 if place == "a page into the padding" else 0))
        file.write(tail)
    assert texts(written.records(0)) == ["a", "b"]  # readers ignore the tail
    with closing(reopened(directories, durable=2)) as again:
        assert again.last_seq == 2
        assert octets(directories) == whole
        again.append([record("c")])
        assert texts(again.records(0, 3)) == ["a", "b", "c"]
    quarantine = Path(directories.root, "maintenance", "quarantine")
    kept = [path.read_bytes().strip(b" ") for path in quarantine.iterdir()] if quarantine.exists() else []
    assert kept == ([tail] if b"\n" in tail else [])


def test_records_are_written_into_existing_padding(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    size = segment(directories).stat().st_size
    for text in "bcd":
        written.append([record(text)])
    assert segment(directories).stat().st_size == size > len(octets(directories))
    larger = "x" * 200_000
    for text in (larger, larger):
        written.append([record(text)])
    size = segment(directories).stat().st_size
    for text in ("e", larger, larger):  # the padding has room for records of that size
        written.append([record(text)])
    assert segment(directories).stat().st_size == size > len(octets(directories))
    written.append([record("x" * size)])  # but not for the largest
    assert segment(directories).stat().st_size == len(octets(directories))
    written.append([record("f")])
    assert segment(directories).stat().st_size > len(octets(directories))
    assert [each.op for each in written.records(0, 11)] == [record("").op] * 11


def test_refresh_reads_records_of_others_without_reading_the_padding(
    written: Journal, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_sizes: list[int] = []
    pread = os.pread

    def recording(fd: int, size: int, at: int) -> bytes:
        read_sizes.append(size)
        return pread(fd, size, at)

    with closing(reopened(directories)) as other:
        written.append([record("a")])
        other.refresh()
        assert segment(directories).stat().st_size > len(octets(directories)) + (128 << 10)
        written.append([record("b")])
        monkeypatch.setattr(os, "pread", recording)
        other.refresh()
        assert other.last_seq == 2
        assert read_sizes == [1, 1]
        other.append([record("c")])
    assert texts(written.records(0, 3)) == ["a", "b", "c"]


def test_rotation_truncates_the_padding(written: Journal, directories: Directories) -> None:
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
def test_complete_records_of_a_torn_batch_are_kept(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("torn")
    with closing(Directories(str(root))) as directories:
        for parts in layout.DIRECTORIES:
            with directories.stable(parts, create=True):
                pass
        with closing(Journal(directories, STORE)) as first:
            first.refresh()
            first.append([record(text) for text in "abcd"])
        store_id.write(directories, STORE)
        data = octets(directories)
        header = data.index(b"\n") + 1
        cut = min(header + cut, len(data))
        os.truncate(segment(directories), cut)
        with closing(reopened(directories)) as again:
            assert again.last_seq == data[header:cut].count(b"\n")
            assert texts(again.records(0)) == list("abcd")[: again.last_seq]


def test_damage_before_the_checkpoint_is_reported_and_not_truncated(written: Journal, directories: Directories) -> None:
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


def test_shortened_journal_is_damage(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    os.truncate(segment(directories), 5)
    with pytest.raises(JournalDamaged, match="shorter"):
        written.refresh()
