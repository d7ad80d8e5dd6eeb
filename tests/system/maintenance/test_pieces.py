"""How work is cut and read: every link in one piece, of bounded size; files ahead of their turn; what looks share."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from adapter.maintenance.diff import recheck
from adapter.maintenance.findings import Finding
from adapter.maintenance.repair import links as placing
from adapter.maintenance.scan import partition, readahead
from adapter.store import layout, names
from adapter.store.queries import mailboxes
from adapter.transport import apply
from tests.support.messages import message
from tests.support.stores import ADA, append, folder, new_store, rows
from tests.system.maintenance.lab import lab


def _links(pieces: list[partition.Pieces]) -> list[list[int]]:
    """The UIDs in each piece."""
    found = []
    for path in pieces[0].paths:
        found.append([partition.uid_of(name) for item in _items(path) for name in item["names"]])
    return found


def test_links_are_cut_by_their_uids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_WEIGHT", 40)
    monkeypatch.setattr(partition, "_HELD_NAMES", 30)
    made = {"inbox": range(1, 1001), "few": range(1, 8), "sparse": range(1, 4_000_000, 9973), "none": range(0)}
    for entry, uids in made.items():
        where = Path(layout.absolute(str(tmp_path), *layout.mailbox_directory(names.address_entry(ADA)), entry))
        where.mkdir(parents=True)
        for uid in uids:
            (where / layout.projection_name(uid, f"msg-20261116T080000Z-{uid:020x}")).symlink_to("nowhere")
    looks = []
    for look in ("one", "two"):
        scratch = tmp_path / look
        scratch.mkdir()
        looks.append(_links(partition.mailboxes(str(tmp_path), str(scratch))))
    assert looks[0] == looks[1], "a later look finds the same pieces"
    pieces = looks[0]
    assert Counter(uid for piece in pieces for uid in piece) == Counter(uid for uids in made.values() for uid in uids)
    assert max(map(len, pieces)) <= 3 * 40
    large = sorted((min(piece), max(piece)) for piece in pieces if max(piece) > 1000)
    assert len(large) > 5
    assert all(first[1] < second[0] for first, second in itertools.pairwise(large)), "a range for each"


def test_one_day_with_all_the_mail_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_LARGEST", 40)
    monkeypatch.setattr(partition, "_SMALLEST", 10)
    monkeypatch.setattr(partition, "_SAMPLE", 200)
    monkeypatch.setattr(partition, "_HELD_NAMES", 30)
    made = {"2026-11-16": 1000, "2026-11-17": 3, "2026-11-18": 5}
    for day, count in made.items():
        where = tmp_path / "messages" / day
        where.mkdir(parents=True)
        for number in range(count):
            (where / f"msg-{day.replace('-', '')}T080000Z-{number:020x}.md").touch()
    places = partition.Places()
    looks = []
    for look in ("one", "two"):
        (tmp_path / look).mkdir()
        looks.append([_items(path) for path in partition.content(str(tmp_path), str(tmp_path / look), places).paths])
    assert looks[0] == looks[1], "a later look finds the same pieces"
    sizes = [sum(len(item["names"]) for item in items) for items in looks[0]]
    assert sum(sizes) == sum(made.values())
    assert max(sizes) <= 2 * 40
    assert len(sizes) >= 25
    assert {len(items) for items in looks[0] if len({item["where"][1] for item in items}) > 1} == {2}, (
        "short days share"
    )


def test_very_many_empty_folders_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_WEIGHT", 40)
    for number in range(500):
        Path(layout.absolute(str(tmp_path), *layout.mailbox_directory("one@x"), f"folder {number}")).mkdir(parents=True)
        Path(layout.absolute(str(tmp_path), *layout.mailbox_directory(f"{number}@x"))).mkdir()
    (tmp_path / "scratch").mkdir()
    links, folders = partition.mailboxes(str(tmp_path), str(tmp_path / "scratch"))
    assert not links.paths
    pieces = [_items(path) for path in folders.paths]
    assert Counter(item["what"] for items in pieces for item in items) == {"folder": 500, "mailbox": 501}
    assert max(map(len, pieces)) <= 40


def _items(path: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Path(path).read_bytes().splitlines()]


def test_files_are_open_when_their_turn_comes(tmp_path: Path) -> None:
    many = [f"{number:03d}" for number in range(200)]
    for name in many:
        (tmp_path / name).write_text(name)
    os.mkfifo(tmp_path / "pipe")  # nobody will ever write to it
    (tmp_path / "link").symlink_to("000")
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = len(os.listdir("/proc/self/fd"))
    try:
        found = {}
        for name, file in readahead.opened(directory, [*many, "pipe", "link", "gone"]):
            found[name] = file if isinstance(file, OSError) else os.read(file, 10).decode()
        assert {name: found[name] for name in many} == {name: name for name in many}
        assert found["pipe"] == ""
        assert isinstance(found["link"], OSError)
        assert isinstance(found["gone"], FileNotFoundError)
        unfinished = readahead.opened(directory, many)
        next(unfinished)
        unfinished.close()  # type: ignore[attr-defined]
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(directory)


def test_what_every_look_found_counts(tmp_path: Path) -> None:
    one, two, three, four = (Finding("message-lost", f"msg-{number}") for number in range(4))
    with closing(recheck.Seen(str(tmp_path))) as kept:
        assert kept.left
        assert kept.each_time(one), "there was no other look"
        kept.look([one, two, three])
        assert kept.left
        kept.look([four, three, one])
        assert [kept.each_time(each) for each in (one, two, three, four)] == [True, False, True, False]
        kept.look([two, four])
        assert not kept.left
        assert not any(kept.each_time(each) for each in (one, two, three, four))


def test_messages_on_both_sides_of_another_are_counted_without_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        append(transport, "INBOX", *(message() for _ in range(4)))
        inbox = folder(transport)
        there, *others = (each.message_id for each in rows(transport))
    with closing(lab.index(root)) as connection:
        connection.execute("DELETE FROM mailbox_projections WHERE message_id <> ?", (there,))
        connection.execute("UPDATE mailbox_projections SET uid = 11")
        connection.execute("UPDATE folders SET size = 0, messages = 0")
        for uids, expected in (((10, 12), 2), ((13,), 1)):
            items = [placing.new_row(inbox, uid, others.pop()) for uid in uids]
            made = placing.project(connection, inbox, 100, items)
            assert len(made) == expected
            for effect in made:
                apply.apply_index(effect, connection, 0)
        (size,) = connection.execute("SELECT sum(m.size) FROM messages m WHERE m.message_id <> ?", (there,)).fetchone()
        after = mailboxes.folder_by_id(connection, inbox.id)
        assert after is not None
        assert (after.messages, after.size) == (3, size)
