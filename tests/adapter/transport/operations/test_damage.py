"""Damaged messages: RFC822.SIZE stays the same, intact parts are exact, and a placeholder names the lost part."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.content.encodings import base64_lines
from adapter.content.encodings.codings import Coding, placeholder_range
from adapter.store import layout
from adapter.store.disk import Directories
from adapter.store.effects import ClearDamage, LostPlace, MarkDamaged, MarkLost, RestoreLost, Unproject, UnprojectedRow
from adapter.store.journal import Journal
from adapter.transport import cache_fill
from adapter.transport import operations as op
from adapter.transport.recovery import rebuild
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.mime.encoding import decode_transfer
from protocol.mime.parser import scan
from tests.support.messages import message
from tests.support.store.loss_records import Emit
from tests.support.stores import ADA, deliver, folder, new_store, rows

PART = bytes(range(256)) * 300
OTHER = b"kept as it is"
_TABLES = ("damaged_parts", "lost_places", "messages")


def _file(store: Transport, message_id: str) -> Path:
    return Path(store.root, *layout.message_directory(message_id), layout.message_name(message_id))


def _blob(store: Transport, data: bytes) -> Path:
    sha256 = hashlib.sha256(data).hexdigest()
    return Path(store.root, *layout.blob_directory(sha256), sha256)


def _parts(octets: bytes) -> list[bytes]:
    return [decode_transfer(octets, part.encoding, part.body, part.end) for part in scan(octets).children]


@given(st.integers(0, 400), st.sampled_from([4, 60, 76]), st.sampled_from(["crlf", "lf"]), st.data())
def test_placeholder_of_a_base64_part_has_its_size_and_lines(
    size: int, line: int, eol: str, data: st.DataObject
) -> None:
    coding = Coding("base64", line=line, eol=eol)
    encoded = base64_lines.encode(bytes(size), line, {"crlf": b"\r\n", "lf": b"\n"}[eol])
    whole = b"".join(placeholder_range(coding, len(encoded), 0, len(encoded)))
    assert [len(row) for row in whole.split(b"\n")] == [len(row) for row in encoded.split(b"\n")]
    start = data.draw(st.integers(0, len(encoded)))
    stop = data.draw(st.integers(start, len(encoded)))
    assert b"".join(placeholder_range(coding, len(encoded), start, stop)) == whole[start:stop]


def test_lost_blob_leaves_size_and_other_parts_as_they_were(tmp_path: Path) -> None:
    octets = message(attachments=[PART, OTHER])
    with new_store(tmp_path / "store", ADA) as store:
        message_id = deliver(store, ADA, octets=octets).message_id
        blob = _blob(store, PART)
        blob.unlink()
        store.run(Emit((MarkDamaged(message_id, blob.name),)))
        served = store.content.octets(message_id)
        assert len(served) == len(octets)
        assert served != octets
        text, lost, kept = _parts(served)
        assert (text, kept) == (_parts(octets)[0], _parts(octets)[2])
        assert lost.startswith(b"This part of the message was lost")
        row = cache_fill.derive(store.content, message_id)
        cache_fill.write(store, [row])
        for start, stop in ((0, len(octets)), (100, 5000), (len(octets) - 70, len(octets))):
            assert b"".join(store.content.stream(message_id, start, stop)) == served[start:stop]
        blob.write_bytes(PART)
        assert store.content.octets(message_id) == served, "the same octets until repair gives it a new UID"
        store.run(Emit((ClearDamage(message_id, (blob.name,)),)))
        assert store.content.octets(message_id) == octets


@pytest.mark.parametrize("length", [0, 100_000])
def test_damaged_file_is_served_as_a_stand_in_of_the_same_size(tmp_path: Path, length: int) -> None:
    octets = message("Grüße", "Readable text.\r\n" + "x" * length, message_id="<a@b>")
    with new_store(tmp_path / "store", ADA) as store:
        message_id = deliver(store, ADA, octets=octets).message_id
        file = _file(store, message_id)
        raw = file.read_bytes().replace(b"Readable text.", b"Readable text, edited by hand.")
        file.chmod(0o644)
        file.write_bytes(raw)
        store.run(Emit((MarkDamaged(message_id, "", hashlib.sha256(raw).hexdigest()),)))
        served = store.content.octets(message_id)
        assert len(served) == len(octets)
        headers = scan(served).headers
        if length:
            assert headers.first("message-id") == b"<a@b>"
            assert b"is damaged" in served
            assert b"Readable text, edited by hand." in served
        assert headers.first("subject") is not None
        assert b"".join(store.content.stream(message_id, 50, len(octets))) == served[50:]
        file.write_bytes(raw + b"again")
        with pytest.raises(MailError) as caught:
            store.content.octets(message_id)
        assert caught.value.reason is Reason.UNREADABLE


def test_damage_in_the_readable_copy_does_not_change_the_octets(tmp_path: Path) -> None:
    octets = message("Subject for people")
    with new_store(tmp_path / "store", ADA) as store:
        message_id = deliver(store, ADA, octets=octets).message_id
        file = _file(store, message_id)
        raw = file.read_bytes().replace(b"\nsubject: Subject for people\n", b"\nsubject: subject for people\n")
        assert raw != file.read_bytes()
        file.chmod(0o644)
        file.write_bytes(raw)
        store.run(Emit((MarkDamaged(message_id, "", hashlib.sha256(raw).hexdigest()),)))
        assert store.content.octets(message_id) == octets


def test_marks_and_losses_are_replayed_from_the_journal(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        first = deliver(store, ADA, octets=message("one", attachments=[PART])).message_id
        second = deliver(store, ADA, octets=message("two")).message_id
        lost = (LostPlace(5, 1, 2, 3, 4, "k"),)
        store.run(Emit((MarkDamaged(first, "ab" * 32), MarkLost(second, lost))))
        tables = [store.index.query(f"SELECT * FROM {table}") for table in _TABLES]
        assert tables[0] == [(first, "ab" * 32, "")]
        assert tables[1] == [(second, 5, 1, 2, 3, 4, "k")]
        with closing(Directories(store.root)) as directories, closing(Journal(directories)) as journal:
            journal.refresh()
            rebuild.replace_index(directories, journal)
    with Transport.open(root) as store:
        assert tables == [store.index.query(f"SELECT * FROM {table}") for table in _TABLES]
        store.run(Emit((RestoreLost(second, "cd" * 32),)))
        assert store.index.query("SELECT * FROM lost_places") == []


def test_lost_message_is_kept_by_retention_and_removed_with_its_account(tmp_path: Path) -> None:
    """Its attachments are kept in case its file is restored, until the account is purged."""
    with new_store(tmp_path / "store", ADA) as store:
        message_id = deliver(store, ADA, octets=message(attachments=[PART])).message_id
        (row,), place = rows(store), folder(store)
        where = LostPlace(place.id, row.uid, row.internal_date, row.saved_at, row.flags, row.keywords)
        unproject = Unproject.out_of(place, place.highestmodseq + 1, (UnprojectedRow(row.uid, message_id),))
        store.run(Emit((unproject, MarkLost(message_id, (where,)))))
        _file(store, message_id).unlink()
        assert store.run(op.Collect(2**40)) == 0
        assert _blob(store, PART).exists()
        assert [each[0] for each in store.index.query("SELECT message_id FROM lost_places")] == [message_id]
        store.run(op.Deregister(ADA, "purge"))
        assert not _blob(store, PART).exists()
        assert store.index.query("SELECT * FROM lost_places") == []
