"""Partition the work of a scan by size, open files ahead, and confirm findings by repeated inspections."""

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
from adapter.maintenance.repair import links
from adapter.maintenance.scan import partition, readahead
from adapter.store import layout, names
from adapter.store.queries import mailboxes
from adapter.transport import apply
from tests.support.messages import message
from tests.support.stores import ADA, append, folder, new_store, rows
from tests.system.maintenance.lab import lab


def _links(partitions: list[partition.Partitions]) -> list[list[int]]:
    """The UIDs of each partition."""
    return [[partition.uid_of(name) for item in _items(path) for name in item["names"]] for path in partitions[0].paths]


def test_links_are_partitioned_by_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_MAX_WEIGHT", 40)
    monkeypatch.setattr(partition, "_MAX_BUFFERED_NAMES", 30)
    made = {"inbox": range(1, 1001), "few": range(1, 8), "sparse": range(1, 4_000_000, 9973), "none": range(0)}
    for entry, uids in made.items():
        where = Path(layout.absolute(str(tmp_path), *layout.mailbox_directory(names.address_entry(ADA)), entry))
        where.mkdir(parents=True)
        for uid in uids:
            (where / layout.projection_name(uid, f"msg-20261116T080000Z-{uid:020x}")).symlink_to("nowhere")
    inspections = []
    for name in ("one", "two"):
        scratch = tmp_path / name
        scratch.mkdir()
        inspections.append(_links(partition.partition_mailboxes(str(tmp_path), str(scratch))))
    assert inspections[0] == inspections[1], "a later inspection makes the same partitions"
    partitions = inspections[0]
    assert Counter(uid for uids in partitions for uid in uids) == Counter(itertools.chain(*made.values()))
    assert max(map(len, partitions)) <= 3 * 40
    large = sorted((min(uids), max(uids)) for uids in partitions if max(uids) > 1000)
    assert len(large) > 5
    assert all(first[1] < second[0] for first, second in itertools.pairwise(large)), "partitions do not overlap"


def test_day_with_all_messages_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_MAX_FILES", 40)
    monkeypatch.setattr(partition, "_MIN_FILES", 10)
    monkeypatch.setattr(partition, "_SAMPLE_NAMES", 200)
    monkeypatch.setattr(partition, "_MAX_BUFFERED_NAMES", 30)
    made = {"2026-11-16": 1000, "2026-11-17": 3, "2026-11-18": 5}
    for day, count in made.items():
        where = tmp_path / "messages" / day
        where.mkdir(parents=True)
        for number in range(count):
            (where / f"msg-{day.replace('-', '')}T080000Z-{number:020x}.md").touch()
    assignment = partition.Assignment()
    inspections = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        content = partition.partition_content(str(tmp_path), str(tmp_path / name), assignment)
        inspections.append([_items(path) for path in content.paths])
    assert inspections[0] == inspections[1], "a later inspection makes the same partitions"
    sizes = [sum(len(item["names"]) for item in items) for items in inspections[0]]
    assert sum(sizes) == sum(made.values())
    assert max(sizes) <= 2 * 40
    assert len(sizes) >= 25
    assert {len(items) for items in inspections[0] if len({item["where"][1] for item in items}) > 1} == {2}, (
        "small days share a partition"
    )


def test_empty_folders_are_partitioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "_MAX_WEIGHT", 40)
    for number in range(500):
        Path(layout.absolute(str(tmp_path), *layout.mailbox_directory("one@x"), f"folder {number}")).mkdir(parents=True)
        Path(layout.absolute(str(tmp_path), *layout.mailbox_directory(f"{number}@x"))).mkdir()
    (tmp_path / "scratch").mkdir()
    links, folders = partition.partition_mailboxes(str(tmp_path), str(tmp_path / "scratch"))
    assert not links.paths
    partitions = [_items(path) for path in folders.paths]
    assert Counter(item["what"] for items in partitions for item in items) == {"folder": 500, "mailbox": 501}
    assert max(map(len, partitions)) <= 40


def _items(path: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Path(path).read_bytes().splitlines()]


def test_files_are_opened_ahead_and_closed(tmp_path: Path) -> None:
    many = [f"{number:03d}" for number in range(200)]
    for name in many:
        (tmp_path / name).write_text(name)
    os.mkfifo(tmp_path / "pipe")  # a pipe without a writer
    (tmp_path / "link").symlink_to("000")
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = len(os.listdir("/proc/self/fd"))
    try:
        contents = {}
        for name, file in readahead.open_ahead(directory, [*many, "pipe", "link", "gone"]):
            contents[name] = file if isinstance(file, OSError) else os.read(file, 10).decode()
        assert {name: contents[name] for name in many} == {name: name for name in many}
        assert contents["pipe"] == ""
        assert isinstance(contents["link"], OSError)
        assert isinstance(contents["gone"], FileNotFoundError)
        unfinished = readahead.open_ahead(directory, many)
        next(unfinished)
        unfinished.close()  # type: ignore[attr-defined]
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(directory)


def test_finding_of_every_inspection_is_confirmed(tmp_path: Path) -> None:
    one, two, three, four = (Finding("message-lost", f"msg-{number}") for number in range(4))
    with closing(recheck.ConfirmedFindings(str(tmp_path))) as confirmed:
        assert confirmed.has_candidates
        assert confirmed.is_confirmed(one), "no other inspection yet"
        confirmed.add_round([one, two, three])
        assert confirmed.has_candidates
        confirmed.add_round([four, three, one])
        assert [confirmed.is_confirmed(each) for each in (one, two, three, four)] == [True, False, True, False]
        confirmed.add_round([two, four])
        assert not confirmed.has_candidates
        assert not any(confirmed.is_confirmed(each) for each in (one, two, three, four))


def test_messages_around_an_existing_uid_are_counted_without_it(tmp_path: Path) -> None:
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
            items = [links.new_row(inbox, uid, others.pop()) for uid in uids]
            made = links.project(connection, inbox, 100, items)
            assert len(made) == expected
            for effect in made:
                apply.apply_index(effect, connection, 0)
        (size,) = connection.execute("SELECT sum(m.size) FROM messages m WHERE m.message_id <> ?", (there,)).fetchone()
        after = mailboxes.folder_by_id(connection, inbox.id)
        assert after is not None
        assert (after.messages, after.size) == (3, size)
