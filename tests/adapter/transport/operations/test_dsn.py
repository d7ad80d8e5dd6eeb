"""DSN requests (RFC 3461) are stored with the message: journaled, replayed, and removed with its content."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from adapter.maintenance.expected.bulk_replay import BulkReplay
from adapter.store import index
from adapter.store.disk import Directories
from adapter.store.effects import AddContent, DsnRecipient, RequestDsn
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from protocol.smtp.commands import Ret
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.store.journals import reopened
from tests.support.store.older_stores import forget_table
from tests.support.store.tables import tables
from tests.support.stores import ADA, BOB, STORE, deliver, folder, new_store

SUPPORT = "Support@Example.Test"
DSN_REQUESTS = op.DsnRequests(
    [
        op.RecipientRequest(SUPPORT, [ADA, BOB], frozenset({"SUCCESS", "DELAY"}), "rfc822;Help+2Bme@Example.Test"),
        op.RecipientRequest(SUPPORT, [ADA], frozenset()),  # listed twice: the first request counts
        op.RecipientRequest("Nobody@example.test", ["nobody@example.test"], frozenset()),
        op.RecipientRequest(BOB, [BOB], frozenset()),
    ],
    Ret.HEADERS,
    "Order-7+x",
)


def deliver_with_requests(transport: Transport) -> str:
    """Deliver a message with all these requests to two registered addresses and an unknown one."""
    staged = transport.stage(message())
    return transport.run(
        op.Deliver(staged, "x@y.test", [ADA, BOB, "nobody@example.test"], requests=DSN_REQUESTS)
    ).message_id


def expected_rows(message_id: str) -> list[tuple[object, ...]]:
    shared = ("HDRS", "Order-7+x")
    return [
        (message_id, SUPPORT, "DELAY,SUCCESS", "rfc822;Help+2Bme@Example.Test", *shared),
        (message_id, BOB, "NEVER", None, *shared),
    ]


def stored_requests(root: Path) -> list[tuple[object, ...]]:
    return tables(root / "index.sqlite")["dsn_requests"]


def test_requests_are_stored_only_for_recipients_with_the_message(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        with_requests = deliver_with_requests(transport)
        assert stored_requests(root) == sorted(expected_rows(with_requests), key=repr)
        without_requests = deliver(transport, ADA, BOB).message_id
        staged = transport.stage(message())
        failed = transport.run(op.Deliver(staged, "x@y.test", ["nobody@example.test"], requests=DSN_REQUESTS))
        assert isinstance(failed.recipients["nobody@example.test"], MailError)
        assert len(stored_requests(root)) == 2
    with closing(Directories(str(root))) as directories, closing(reopened(directories)) as journal:
        effects = [effect for record in journal.records(0, journal.last_seq) for effect in record.effects]
    assert [effect.message_id for effect in effects if isinstance(effect, RequestDsn)] == [with_requests]
    assert without_requests in {effect.message_id for effect in effects if isinstance(effect, AddContent)}


def test_requests_survive_compaction_and_the_loss_of_the_index(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        first = deliver_with_requests(transport)
        transport.snapshot()
        second = deliver_with_requests(transport)
        assert stored_requests(root) == sorted(expected_rows(first) + expected_rows(second), key=repr)
    assert_layers_agree(root, tmp_path / "scratch")  # the replay of snapshot and journal gives the same rows


def test_requests_are_removed_with_the_content(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        collected, kept = deliver_with_requests(transport), deliver_with_requests(transport)
        for address in (ADA, BOB):
            inbox = folder(transport, address=address).id
            transport.run(op.ChangeFlags(address, inbox, [1], "add", 8))
            transport.run(op.Expunge(address, inbox))
            assert collected in {row[0] for row in stored_requests(root)}  # as long as one folder refers to it
        transport.run(op.Collect(int(time.time()) + 10))
        assert {row[0] for row in stored_requests(root)} == {kept}
    assert_layers_agree(root, tmp_path / "scratch")


def test_index_and_snapshot_without_the_dsn_table_are_upgraded(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        deliver(transport, ADA)
        seq = transport.snapshot()
    forget_table(root, seq, "dsn_requests")
    with Transport.open(root) as transport:
        assert stored_requests(root) == []
        with_requests = deliver_with_requests(transport)
    assert stored_requests(root) == sorted(expected_rows(with_requests), key=repr)
    assert_layers_agree(root, tmp_path / "scratch")


def test_bulk_replay_includes_dsn_requests(tmp_path: Path) -> None:
    """A request may arrive alone, if its delivery filled the previous batch."""
    effect = RequestDsn("m", None, "E", (DsnRecipient("a@b.test", "NEVER", None),))
    with closing(index.create(str(tmp_path / "base.sqlite"), STORE)) as connection:
        bulk = BulkReplay(connection)
        assert bulk.take(effect)
        bulk.finish()
        assert connection.execute("SELECT * FROM dsn_requests").fetchall() == [
            ("m", "a@b.test", "NEVER", None, None, "E")
        ]
