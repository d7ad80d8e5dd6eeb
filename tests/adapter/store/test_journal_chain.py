"""Headers of journal segments: the id of the store, and the chain from one segment to the next."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.store import segments, store_id
from adapter.store.disk import Directories
from adapter.store.journal import Journal, JournalDamaged, JournalForeign, Record
from adapter.store.segments import BEGINNING, Header
from adapter.transport.changes import JournalTail
from tests.support.store.journals import abort, bare, record, reopened, segment, texts
from tests.support.store.records import records
from tests.support.stores import STORE

_OTHER = "f" * 32
headers = st.builds(
    Header,
    st.integers(0, 2**128 - 1).map("{:032x}".format),
    st.integers(1, 2**53),
    st.integers(0, 2**32 - 1).map("{:08x}".format),
)


@given(headers, st.data())
def test_header_is_decoded_unchanged_and_any_change_is_detected(header: Header, data: st.DataObject) -> None:
    line = bytearray(header.encode())
    assert segments.decode_header(bytes(line)) == header
    line[data.draw(st.integers(0, len(line) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalDamaged):
        segments.decode_header(bytes(line))


def test_record_is_not_accepted_as_a_header() -> None:
    with pytest.raises(JournalDamaged):
        segments.decode_header(bare(1).encode())


@given(records())
def test_the_checksum_of_a_record_is_at_its_end(written: Record) -> None:
    assert segments.checksum_of(written.encode()) == written.encode().decode()[-11:-3]


def test_every_segment_names_the_record_before_it(written: Journal, directories: Directories) -> None:
    written.append([record("a"), record("b")])
    second = written.last_checksum
    written.rotate()
    assert segments.read_header(directories, 1) == Header(STORE, 1, BEGINNING)
    assert segments.read_header(directories, 3) == Header(STORE, 3, second)
    assert written.last_checksum == second
    written.append([record("c")])
    written.append([abort(3, 3)])
    with closing(reopened(directories)) as again:
        assert (again.last_seq, again.last_checksum) == (4, written.last_checksum)
        assert again.checksum_at(2) == second
        assert again.checksum_at(1) == segments.checksum_of(segment(directories).read_bytes().splitlines(True)[1])
        assert again.checksum_at(5) is None
        assert again.checksum_at(4) == written.last_checksum


def test_removing_the_last_batch_restores_the_previous_checksum(written: Journal) -> None:
    written.append([record("a")])
    first = written.last_checksum
    written.append([record("b")])
    written.forget_last_batch()
    assert written.last_checksum == first
    written.rotate()
    written.append([record("c")])
    assert texts(written.records(0, 2)) == ["a", "c"]


def test_journal_of_another_store_is_refused_and_not_changed(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    with segment(directories).open("ab") as file:
        file.write(b"torn")
    before = segment(directories).read_bytes()
    foreign = Journal(directories, _OTHER)
    with pytest.raises(JournalForeign, match=STORE):
        foreign.refresh()
    with pytest.raises(JournalForeign):
        foreign.check_store()
    with pytest.raises(JournalForeign):
        list(foreign.records(0))
    assert segment(directories).read_bytes() == before


def test_journal_without_a_store_id_refuses_appends(directories: Directories) -> None:
    Path(directories.root, "store-id.txt").unlink()
    with closing(Journal(directories)) as opened:
        opened.refresh()
        with pytest.raises(JournalDamaged, match=r"store-id\.txt"):
            opened.append([record()])
    assert opened.segments() == []


def test_segment_of_another_history_is_damage(written: Journal, directories: Directories, tmp_path: Path) -> None:
    """A copied store that went on by itself: sequence numbers and store id are the same."""
    written.append([record("a")])
    copy = tmp_path.parent / "copy"
    shutil.copytree(directories.root, copy)
    with closing(Directories(str(copy))) as place, closing(reopened(place)) as other:
        other.append([record("theirs")])
        other.rotate()
        other.append([record("theirs, later")])
        theirs = segment(place, 3).read_bytes()
    written.append([record("ours")])
    written.rotate()
    with closing(reopened(directories)) as follower:
        ours = written.last_checksum
        segment(directories, 3).write_bytes(theirs)
        for upto in (None, 3):
            with pytest.raises(JournalDamaged, match="record 2 is not the one that record 3 followed"):
                list(written.records(0, upto))
        with pytest.raises(JournalDamaged, match="record 2 has the checksum"):
            list(written.records(2, 3, ours))
        follower.close()


def test_follower_refuses_a_segment_of_another_history(written: Journal, directories: Directories) -> None:
    written.append([record("a")])
    with closing(reopened(directories)) as other:
        segments.begin_segment(directories, Header(STORE, 2, "12345678"))
        other.close()
    segment(directories).write_bytes(segment(directories).read_bytes().rstrip(b" "))
    with pytest.raises(JournalDamaged, match="record 1 is not the one"):
        written.refresh()


@pytest.mark.parametrize("damage", [b"", b"#" * 30 + b"\n", Header(STORE, 7, BEGINNING).encode()])
def test_damaged_header_is_reported_and_nothing_is_truncated(
    written: Journal, directories: Directories, damage: bytes
) -> None:
    written.append([record("a"), record("b")])
    lines = segment(directories).read_bytes().splitlines(keepends=True)
    segment(directories).write_bytes(damage + b"".join(lines[1:]))
    before = segment(directories).read_bytes()
    with pytest.raises(JournalDamaged):
        reopened(directories)
    with pytest.raises(JournalDamaged):
        list(written.records(0))
    assert segment(directories).read_bytes() == before


def test_reader_checks_the_checksum_of_the_preceding_record(written: Journal) -> None:
    written.append([record("a"), record("b"), record("c")])
    second = written.checksum_at(2)
    assert second is not None
    assert texts(written.records(2, 3, second)) == ["c"]
    with pytest.raises(JournalDamaged, match="checksum"):
        list(written.records(2, 3, "00000000"))
    assert texts(written.records(0, 3, BEGINNING)) == ["a", "b", "c"]
    with pytest.raises(JournalDamaged, match="checksum"):
        list(written.records(0, 3, "12345678"))


def test_a_tail_reads_across_headers(written: Journal, directories: Directories) -> None:
    tail = JournalTail(written, directories, 0)
    for text in "abc":
        written.append([record(text)])
        written.rotate()
    assert texts(tail.advance(2)) == ["a", "b"]
    written.append([record("d")])
    assert texts(tail.advance(4)) == ["c", "d"]
    assert texts(JournalTail(written, directories, 3).advance(4)) == ["d"]


@given(st.binary(max_size=150))
def test_arbitrary_bytes_are_not_a_store_id(raw: bytes) -> None:
    assert store_id.decode(raw) is None


def test_store_id_is_read_unchanged_and_any_change_is_detected(directories: Directories) -> None:
    assert store_id.read(directories) == STORE
    new_id = store_id.new()
    store_id.write(directories, new_id)
    assert store_id.read(directories) == new_id
    raw = bytearray(store_id.encode(new_id))
    for position in range(len(raw)):
        changed = bytes(raw[:position]) + bytes([raw[position] ^ 1]) + bytes(raw[position + 1 :])
        assert store_id.decode(changed) is None
