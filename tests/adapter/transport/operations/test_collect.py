"""Collect content that no folder refers to, and the blobs that no content refers to."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from adapter.store.flags import Flag
from adapter.transport import operations as op
from adapter.transport.operations.delivery import Placed
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.messages import message
from tests.support.stores import ADA, BOB, deliver, placed, rows

LATER = 2**40
PICTURE = bytes(range(256)) * 20


def files(store: Transport, below: str) -> list[str]:
    return sorted(path.name for path in Path(store.root, below).rglob("*") if path.is_file())


def expunge(store: Transport, place: Placed) -> None:
    store.run(op.ChangeFlags(place.address, place.folder, [place.uid], "add", Flag.DELETED))
    store.run(op.Expunge(place.address, place.folder, [place.uid]))


def test_content_in_a_folder_is_not_collected(store: Transport) -> None:
    deliver(store, ADA)
    assert store.run(op.Collect(LATER)) == 0
    assert len(files(store, "messages")) == 1


def test_content_is_collected_only_after_the_grace_period(store: Transport) -> None:
    delivery = deliver(store, ADA)
    before = int(time.time())
    expunge(store, placed(delivery))
    assert store.run(op.Collect(before - 1)) == 0
    assert store.content.octets(delivery.message_id) == message()  # a reader may still have it open
    assert store.run(op.Collect(int(time.time()) + 1)) == 1
    assert files(store, "messages") == []
    assert store.run(op.Collect(LATER)) == 0


def test_content_is_kept_until_its_last_projection_is_expunged(store: Transport) -> None:
    delivery = deliver(store, ADA, BOB)
    expunge(store, placed(delivery))
    assert store.run(op.Collect(LATER)) == 0
    expunge(store, placed(delivery, BOB))
    assert store.run(op.Collect(LATER)) == 1


def test_one_run_collects_no_more_than_its_limit(store: Transport) -> None:
    for number in range(5):
        expunge(store, placed(deliver(store, ADA, octets=message(str(number)))))
    assert store.run(op.Collect(LATER, limit=2)) == 2
    assert len(files(store, "messages")) == 3
    assert store.run(op.Collect(LATER)) == 3


def test_shared_blob_is_kept_until_its_last_message_is_collected(store: Transport) -> None:
    one = deliver(store, ADA, octets=message("one", attachments=[PICTURE, b"own" * 999]))
    two = deliver(store, ADA, octets=message("two", attachments=[PICTURE]))
    assert len(files(store, "attachments")) == 2
    expunge(store, placed(one))
    assert store.run(op.Collect(LATER)) == 1
    assert len(files(store, "attachments")) == 1
    assert PICTURE[:10] in store.content.read(files(store, "attachments")[0], 0, -1)
    assert store.content.octets(two.message_id) == message("two", attachments=[PICTURE])
    expunge(store, placed(two))
    store.run(op.Collect(LATER))
    assert files(store, "attachments") == []


def test_shared_blob_is_removed_when_both_its_messages_are_collected_together(store: Transport) -> None:
    for name in ("one", "two"):
        expunge(store, placed(deliver(store, ADA, octets=message(name, attachments=[PICTURE]))))
    assert store.run(op.Collect(LATER)) == 2
    assert files(store, "attachments") == []


def test_collected_blob_is_stored_again_with_the_next_message(store: Transport) -> None:
    octets = message(attachments=[PICTURE])
    expunge(store, placed(deliver(store, ADA, octets=octets)))
    store.run(op.Collect(LATER))
    again = deliver(store, ADA, octets=octets)
    assert store.content.octets(again.message_id) == octets


def test_delivery_fails_temporarily_if_a_staged_blob_was_collected(store: Transport) -> None:
    """The staged message relies on a blob collected before the commit: the failure is temporary, a retry succeeds."""
    octets = message(attachments=[PICTURE])
    first = deliver(store, ADA, octets=octets)
    staged = store.stage(octets)
    expunge(store, placed(first))
    store.run(op.Collect(LATER))
    with pytest.raises(MailError) as caught:
        store.run(op.Deliver(staged, "x@y.test", [ADA]))
    assert caught.value.temporary
    again = deliver(store, ADA, octets=octets)
    assert store.content.octets(again.message_id) == octets


def test_delivery_fails_temporarily_if_the_same_batch_collects_its_blob(store: Transport) -> None:
    octets = message(attachments=[PICTURE])
    expunge(store, placed(deliver(store, ADA, octets=octets)))
    staged = store.stage(octets)
    collect, deliver_again, purge = store.commit_all(
        [op.Collect(LATER), op.Deliver(staged, "x@y.test", [ADA]), op.Deregister(BOB, "purge")]
    )
    assert collect.result() == 1
    purge.result()
    with pytest.raises(MailError) as caught:
        deliver_again.result()
    assert caught.value.temporary
    assert caught.value.reason is Reason.UNKNOWN
    assert rows(store) == []


def test_missing_file_does_not_stop_collection(store: Transport) -> None:
    delivery = deliver(store, ADA)
    expunge(store, placed(delivery))
    (file,) = Path(store.root, "messages").rglob("*.md")
    file.unlink()
    assert store.run(op.Collect(LATER)) == 1
