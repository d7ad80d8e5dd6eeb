"""What senders asked of delivery (RFC 3461) is kept with the message: journaled, replayed, gone with the content."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from adapter.maintenance.expected.bulk_replay import Bulk
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
ASKED = op.DsnRequests(
    [
        op.RecipientRequest(SUPPORT, [ADA, BOB], frozenset({"SUCCESS", "DELAY"}), "rfc822;Help+2Bme@Example.Test"),
        op.RecipientRequest(SUPPORT, [ADA], frozenset()),  # named once more: the first counts
        op.RecipientRequest("Nobody@example.test", ["nobody@example.test"], frozenset()),
        op.RecipientRequest(BOB, [BOB], frozenset()),
    ],
    Ret.HEADERS,
    "Order-7+x",
)


def ask(transport: Transport) -> str:
    """A delivery with all of these wishes, to two who are here and one who is not."""
    staged = transport.stage(message())
    return transport.run(op.Deliver(staged, "x@y.test", [ADA, BOB, "nobody@example.test"], requests=ASKED)).message_id


def kept(message_id: str) -> list[tuple[object, ...]]:
    shared = ("HDRS", "Order-7+x")
    return [
        (message_id, SUPPORT, "DELAY,SUCCESS", "rfc822;Help+2Bme@Example.Test", *shared),
        (message_id, BOB, "NEVER", None, *shared),
    ]


def requests(root: Path) -> list[tuple[object, ...]]:
    return tables(root / "index.sqlite")["dsn_requests"]


def test_requests_are_kept_of_those_who_have_the_message(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        asked = ask(transport)
        assert requests(root) == sorted(kept(asked), key=repr)
        unasked = deliver(transport, ADA, BOB).message_id
        staged = transport.stage(message())
        failed = transport.run(op.Deliver(staged, "x@y.test", ["nobody@example.test"], requests=ASKED))
        assert isinstance(failed.recipients["nobody@example.test"], MailError)
        assert len(requests(root)) == 2
    with closing(Directories(str(root))) as directories, closing(reopened(directories)) as journal:
        effects = [effect for record in journal.records(0, journal.last_seq) for effect in record.effects]
    assert [effect.message_id for effect in effects if isinstance(effect, RequestDsn)] == [asked]
    assert unasked in {effect.message_id for effect in effects if isinstance(effect, AddContent)}


def test_requests_survive_compaction_and_the_loss_of_the_index(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        first = ask(transport)
        transport.snapshot()
        second = ask(transport)
        assert requests(root) == sorted(kept(first) + kept(second), key=repr)
    assert_layers_agree(root, tmp_path / "scratch")  # the replay of snapshot and journal gives the same rows


def test_requests_go_with_the_content(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        gone, stays = ask(transport), ask(transport)
        for address in (ADA, BOB):
            inbox = folder(transport, address=address).id
            transport.run(op.ChangeFlags(address, inbox, [1], "add", 8))
            transport.run(op.Expunge(address, inbox))
            assert gone in {row[0] for row in requests(root)}  # as long as anybody has it
        transport.run(op.Collect(int(time.time()) + 10))
        assert {row[0] for row in requests(root)} == {stays}
    assert_layers_agree(root, tmp_path / "scratch")


def test_an_index_and_a_snapshot_of_an_older_program_are_understood(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        deliver(transport, ADA)
        seq = transport.snapshot()
    forget_table(root, seq, "dsn_requests")
    with Transport.open(root) as transport:
        assert requests(root) == []
        asked = ask(transport)
    assert requests(root) == sorted(kept(asked), key=repr)
    assert_layers_agree(root, tmp_path / "scratch")


def test_a_replay_of_many_takes_requests_along(tmp_path: Path) -> None:
    """Also those whose delivery filled a batch, so that they are left alone for the next."""
    effect = RequestDsn("m", None, "E", (DsnRecipient("a@b.test", "NEVER", None),))
    with closing(index.create(str(tmp_path / "base.sqlite"), STORE)) as connection:
        bulk = Bulk(connection)
        assert bulk.take(effect)
        bulk.finish()
        assert connection.execute("SELECT * FROM dsn_requests").fetchall() == [
            ("m", "a@b.test", "NEVER", None, None, "E")
        ]
