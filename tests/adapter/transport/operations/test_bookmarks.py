"""Bookmarks and mirrored messages: one commit, merged flags, replay."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from adapter.store import snapshots
from adapter.store.disk import Directories
from adapter.store.flags import Flag
from adapter.store.queries import bookmarks as bookmark_queries
from adapter.transport import operations as op
from adapter.transport.operations.mirror import Place
from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.store.older_stores import forget_table
from tests.support.store.tables import tables
from tests.support.stores import ADA, append, folder, new_store, rows

OWNER = "pull work INBOX"


def bookmarks(transport: Transport, owner: str = OWNER) -> dict[str, str]:
    with transport.reading() as connection:
        return bookmark_queries.of_owner(connection, owner)


def mirror(transport: Transport, bookmark: str, octets: bytes | None = None, flags: int = 0, *words: str) -> bool:
    item = op.AppendItem(transport.stage(octets or message(subject=bookmark)), flags, words, 1_000_000_000)
    return transport.run(op.MirrorAppend(ADA, folder(transport).id, item, OWNER, bookmark)) is not None


def test_a_bookmark_is_set_changed_and_removed(store: Transport) -> None:
    store.run(op.SetBookmarks("hook a", {"cursor": "5", "other": "x"}))
    store.run(op.SetBookmarks("hook b", {"cursor": "7"}))
    seq = store.index.applied_seq()
    store.run(op.SetBookmarks("hook a", {"cursor": "5", "gone": None}))
    assert store.index.applied_seq() == seq  # nothing changed: nothing is written
    store.run(op.SetBookmarks("hook a", {"cursor": "6", "other": None}))
    assert bookmarks(store, "hook a") == {"cursor": "6"}
    with store.reading() as connection:
        assert bookmark_queries.owners(connection, "hook ") == ["hook a", "hook b"]
        assert bookmark_queries.owners(connection, "pull ") == []


def test_mirrored_message_is_stored_once_with_its_bookmark(store: Transport) -> None:
    assert mirror(store, "1.1", None, Flag.READ, "$Todo")
    assert not mirror(store, "1.1")
    (row,) = rows(store)
    assert (row.flags, row.keywords, row.internal_date) == (Flag.READ, "$Todo", 1_000_000_000)
    assert Place.decode(bookmarks(store)["1.1"]) == Place(folder(store).id, 1, Flag.READ, "$Todo")


def test_upstream_flag_changes_are_merged_with_local_ones(store: Transport) -> None:
    mirror(store, "1.1", None, Flag.READ | Flag.ANSWERED, "old", "both")
    inbox = folder(store).id
    store.run(op.ChangeFlags(ADA, inbox, [1], "set", int(Flag.STARRED | Flag.ANSWERED), ("mine", "both")))
    done = store.run(
        op.UpdateMirror(ADA, OWNER, [op.MirrorChange("1.1", int(Flag.READ | Flag.DRAFT), ("both", "New"))])
    )
    assert (done.flagged, done.removed) == (1, 0)
    (row,) = rows(store)
    assert row.flags == Flag.STARRED | Flag.DRAFT  # Answered: removed upstream; Seen: removed locally, stays removed
    assert row.keywords == "both mine New"
    assert Place.decode(bookmarks(store)["1.1"])[2:] == (Flag.READ | Flag.DRAFT, "both New")


def test_upstream_removal_removes_the_message_once(store: Transport) -> None:
    for number in (1, 2, 3):
        mirror(store, f"1.{number}")
    store.run(op.ChangeFlags(ADA, folder(store).id, [2], "add", int(Flag.DELETED)))
    store.run(op.Expunge(ADA, folder(store).id))
    done = store.run(op.UpdateMirror(ADA, OWNER, gone=["1.1", "1.2"], bookmarks={"state": "x"}))
    assert done.removed == 1  # the other one was already expunged
    assert [row.uid for row in rows(store)] == [3]
    assert bookmarks(store).keys() == {"1.3", "state"}
    done = store.run(op.UpdateMirror(ADA, OWNER, [op.MirrorChange("1.2", 1)], gone=["1.1"]))
    assert (done.flagged, done.removed) == (0, 0)


def test_message_already_stored_is_linked_to_its_bookmark(store: Transport) -> None:
    append(store, "INBOX", message(), flags=Flag.STARRED)
    inbox = folder(store).id
    store.run(op.UpdateMirror(ADA, OWNER, [op.MirrorChange("1.1", int(Flag.READ), (), (inbox, 1))]))
    assert rows(store)[0].flags == Flag.READ
    store.run(op.ChangeFlags(ADA, inbox, [1], "add", int(Flag.ANSWERED)))
    change = op.MirrorChange("2.9", int(Flag.READ | Flag.DRAFT), (), (inbox, 1), instead_of="1.1")
    store.run(op.UpdateMirror(ADA, OWNER, [change]))
    assert rows(store)[0].flags == Flag.READ | Flag.DRAFT | Flag.ANSWERED
    assert bookmarks(store).keys() == {"2.9"}


def test_update_for_a_deleted_folder_is_ignored(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "Lists"))
    lists = folder(store, "Lists").id
    item = op.AppendItem(store.stage(message()))
    store.run(op.MirrorAppend(ADA, lists, item, OWNER, "1.1"))
    store.run(op.DeleteFolder(ADA, "Lists"))
    done = store.run(op.UpdateMirror(ADA, OWNER, [op.MirrorChange("1.1", 1)]))
    assert done.flagged == 0
    assert store.run(op.UpdateMirror(ADA, OWNER, gone=["1.1"])).removed == 0
    assert bookmarks(store) == {}


def test_bookmarks_survive_compaction_and_the_loss_of_the_index(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        mirror(transport, "1.1")
        transport.snapshot()
        mirror(transport, "1.2")
        transport.run(op.SetBookmarks("hook a", {"cursor": "5"}))
        expected = tables(root / "index.sqlite")["bookmarks"]
    assert len(expected) == 3
    assert_layers_agree(root, tmp_path / "scratch")  # the replay of snapshot and journal gives the same rows


def test_index_and_snapshot_without_the_bookmark_table_are_upgraded(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        append(transport, "INBOX", message())
        seq = transport.snapshot()
    forget_table(root, seq, "bookmarks")
    with closing(Directories(os.fspath(root))) as directories:
        assert snapshots.verify(directories, seq)
    with Transport.open(root) as transport:
        assert mirror(transport, "1.1")
    assert_layers_agree(root, tmp_path / "scratch")
