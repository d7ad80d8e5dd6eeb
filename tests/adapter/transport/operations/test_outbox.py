"""The outbox in the store: queued with the delivery, journaled, replayed, kept from collection, safe in a crash."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from sqlite3 import connect
from typing import Any

import pytest

from adapter.store.disk import Directories
from adapter.store.effects import Dequeue, DequeuedRow
from adapter.store.journal import Journal
from adapter.store.locks import duty_lock
from adapter.store.queries import outbox
from adapter.transport import operations as op
from adapter.transport.recovery import rebuild
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.smtp.commands import Body, Ret
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.relays import DAVE, ERIN, inbox, queue, send
from tests.support.stores import ADA, BOB, folder, new_store, rows

FULL = op.RelayEnvelope(Ret.FULL, "env+id", Body.EIGHT_BIT, True, True, ADA, 3600)


def table(path: Path | str) -> list[Any]:
    with closing(connect(path)) as index:
        return sorted(index.execute("SELECT * FROM outbox").fetchall())


def replayed(root: Path, scratch: Path) -> list[Any]:
    """Rebuild the index from snapshot and journal, and return its outbox rows."""
    scratch.unlink(missing_ok=True)
    with closing(Directories(str(root))) as directories, closing(Journal(directories)) as journal:
        journal.refresh()
        rebuild.build(directories, journal, str(scratch))
    return table(scratch)


def contents(transport: Transport) -> dict[str, tuple[int | None, bool]]:
    """Map each message id to its unlinked_at time and whether its content is stored."""
    with transport.reading() as connection:
        message_rows = connection.execute("SELECT message_id, unlinked_at, file_sha256 <> '' FROM messages").fetchall()
    return {row[0]: (row[1], bool(row[2])) for row in message_rows}


def collect(transport: Transport) -> int:
    return transport.run(op.Collect(int(time.time()) + 10))


# --- queueing --------------------------------------------------------------------------------------------------------


def test_delivery_queues_remote_recipients(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", ADA, BOB) as transport:
        staged = transport.stage(message(to=f"{BOB}, {DAVE.lower()}"))
        recipients = [
            op.RelayRecipient(DAVE, frozenset({"SUCCESS", "FAILURE"}), "rfc822;dave@far.test"),
            op.RelayRecipient(ERIN, frozenset()),
            op.RelayRecipient("nobody@far.test"),
        ]
        before = int(time.time())
        delivery = transport.run(
            op.Deliver(staged, ADA, [BOB], keep_sent=True, relay=recipients, envelope=FULL),
        )
        assert [row.message_id for row in rows(transport, address=BOB)] == [delivery.message_id]
        assert [row.message_id for row in rows(transport, "Sent")] == [delivery.message_id]
        rows_by_recipient = {row.recipient: row for row in queue(transport)}
        assert {address: row.queue_id for address, row in rows_by_recipient.items()} == delivery.queued
        dave = rows_by_recipient[DAVE]
        assert (dave.message_id, dave.sender, dave.return_to) == (delivery.message_id, ADA, ADA)
        assert (dave.notify, dave.orcpt) == ("FAILURE,SUCCESS", "rfc822;dave@far.test")
        assert (dave.ret, dave.envid, dave.body, dave.smtputf8, dave.requiretls) == ("FULL", "env+id", "8BITMIME", 1, 1)
        assert before <= dave.created_at == dave.next_attempt_at == dave.expires_at - 3600
        assert (dave.attempts, dave.delay_warned, dave.last_status) == (0, 0, "")
        assert (rows_by_recipient[ERIN].notify, rows_by_recipient["nobody@far.test"].notify) == ("NEVER", None)
        with transport.reading() as connection:
            history = dict(connection.execute("SELECT address, kind FROM message_recipients").fetchall())
        assert history == {BOB: "to", DAVE: "to", ERIN: "bcc", "nobody@far.test": "bcc"}
    assert_layers_agree(tmp_path / "s", tmp_path / "scratch")


def test_failed_local_recipient_does_not_stop_remote_recipients_from_being_queued(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", ADA) as transport:
        staged = transport.stage(message())
        delivery = transport.run(op.Deliver(staged, ADA, [BOB], relay=[op.RelayRecipient(DAVE)]))
        assert isinstance(delivery.recipients[BOB], MailError)
        assert [row.recipient for row in queue(transport)] == [DAVE]


def test_recipient_listed_twice_is_queued_once(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", ADA) as transport:
        assert len(send(transport, DAVE, DAVE).queued) == len(queue(transport)) == 1


@pytest.mark.parametrize(
    ("sender", "recipient"),
    [
        (ADA, op.RelayRecipient("dave@far.test> NOTIFY=NEVER")),
        (ADA, op.RelayRecipient("dave@far.test\r\nRSET")),
        (ADA, op.RelayRecipient("@route.test:dave@far.test")),
        (ADA, op.RelayRecipient("dave")),
        (ADA, op.RelayRecipient("")),
        ("ada@example.test> X", op.RelayRecipient(DAVE)),
        (ADA, op.RelayRecipient(DAVE, frozenset({"ALWAYS"}))),
        (ADA, op.RelayRecipient(DAVE, None, "rfc822;x NOTIFY=NEVER")),
        (ADA, op.RelayRecipient(DAVE, None, "rfc822;x\r\n")),
    ],
)
def test_addresses_that_would_inject_smtp_commands_are_refused(
    tmp_path: Path, sender: str, recipient: op.RelayRecipient
) -> None:
    with new_store(tmp_path / "s", ADA) as transport:
        with pytest.raises(MailError) as raised:
            send(transport, recipient, sender=sender)
        assert raised.value.reason is Reason.BAD_ADDRESS
        assert queue(transport) == []
    assert_layers_agree(tmp_path / "s", tmp_path / "scratch")


# --- changes ---------------------------------------------------------------------------------------------------------


def test_update_changes_only_the_given_rows_and_fields(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", ADA) as transport:
        ids = send(transport, DAVE, ERIN).queued
        later = op.Requeued(ids[DAVE], 4_000_000_000, 2, "450 4.2.1 büsy", True)
        assert transport.run(op.UpdateQueue([later, op.Requeued("q-gone", 1)])) == [ids[DAVE]]
        assert transport.run(op.UpdateQueue([op.Requeued(ids[DAVE], 7)])) == [ids[DAVE]]
        rows_by_recipient = {row.recipient: row for row in queue(transport)}
        dave, erin = rows_by_recipient[DAVE], rows_by_recipient[ERIN]
        assert (dave.next_attempt_at, dave.attempts, dave.last_status, dave.delay_warned) == (7, 2, "450 4.2.1 büsy", 1)
        assert (erin.attempts, erin.last_status, erin.delay_warned) == (0, "", 0)
        with transport.reading() as connection:
            assert [row.recipient for row in outbox.due(connection, erin.created_at, 10)] == [DAVE, ERIN]
            assert [row.recipient for row in outbox.due(connection, 7, 10)] == [DAVE]
            assert outbox.next_due(connection, 7) == erin.created_at
            assert outbox.next_due(connection, erin.created_at) is None
        assert transport.run(op.UpdateQueue([op.Requeued("q-gone", 1)])) == []


def test_report_is_delivered_atomically_with_the_removal_of_the_rows(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", ADA) as transport:
        ids = send(transport).queued
        items = [op.Finished(each, "failed", "550 no") for each in ids.values()]

        def report(address: str = ADA) -> op.QueueReport:
            return op.QueueReport(transport.stage(b"Subject: returned\r\n\r\n"), address)

        with pytest.raises(MailError) as raised:
            transport.run(op.FinishQueue(items, report(BOB)))
        assert raised.value.reason is Reason.NO_SUCH_ADDRESS
        assert len(queue(transport)) == 1
        assert transport.run(op.FinishQueue(items, report())) == list(ids.values())
        assert queue(transport) == []
        assert transport.run(op.FinishQueue(items, report())) == []  # already removed: no second report
        assert len(inbox(transport)) == 1
    assert_layers_agree(tmp_path / "s", tmp_path / "scratch")


def test_journal_records_the_outcome_of_each_queued_recipient(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", ADA) as transport:
        sent = send(transport)
        transport.run(op.FinishQueue([op.Finished(sent.queued[DAVE], "relayed", "250 2.0.0 taken")]))
    with closing(Directories(str(tmp_path / "s"))) as directories, closing(Journal(directories)) as journal:
        [effect] = [each for record in journal.records(0) for each in record.effects if isinstance(each, Dequeue)]
    assert effect.rows == (DequeuedRow(sent.queued[DAVE], sent.message_id, DAVE, "relayed", "250 2.0.0 taken"),)


# --- collection ------------------------------------------------------------------------------------------------------


def test_queued_content_is_kept_and_collected_after_its_last_row(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", ADA) as transport:
        sent = send(transport, DAVE, ERIN, octets=message(attachments=[b"file"]))
        assert collect(transport) == 0
        transport.run(op.FinishQueue([op.Finished(sent.queued[DAVE], "relayed")]))
        assert contents(transport) == {sent.message_id: (None, True)}
        assert collect(transport) == 0
        transport.run(op.FinishQueue([op.Finished(sent.queued[ERIN], "dropped")]))
        assert contents(transport)[sent.message_id][0] is not None
        assert collect(transport) == 1
        assert contents(transport) == {sent.message_id: (None, False)}
    assert_layers_agree(tmp_path / "s", tmp_path / "scratch")


def test_content_in_a_folder_is_kept_after_the_queue_is_done(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", ADA) as transport:
        staged = transport.stage(message())
        sent = transport.run(op.Deliver(staged, ADA, [], keep_sent=True, relay=[op.RelayRecipient(DAVE)]))
        transport.run(op.FinishQueue([op.Finished(sent.queued[DAVE], "relayed")]))
        assert contents(transport) == {sent.message_id: (None, True)}
        assert collect(transport) == 0


def test_queued_content_is_kept_after_its_last_folder_is_gone(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", ADA, BOB) as transport:
        staged = transport.stage(message())
        sent = transport.run(op.Deliver(staged, ADA, [BOB], keep_sent=True, relay=[op.RelayRecipient(DAVE)]))
        transport.run(op.ChangeFlags(ADA, folder(transport, "Sent").id, [1], "add", 8))
        transport.run(op.Expunge(ADA, folder(transport, "Sent").id))
        transport.run(op.Deregister(BOB, "purge"))
        assert contents(transport) == {sent.message_id: (None, True)}
        assert transport.content.octets(sent.message_id) == message()
        assert_layers_agree(tmp_path / "s", tmp_path / "scratch", open_stores=1)
        transport.run(op.FinishQueue([op.Finished(sent.queued[DAVE], "relayed")]))
        assert collect(transport) == 1


# --- replay ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", [False, True])
def test_outbox_rebuilt_from_snapshot_and_journal_equals_the_live_one(tmp_path: Path, snapshot: bool) -> None:
    with new_store(tmp_path / "s", ADA) as transport:
        first = send(transport, DAVE, ERIN, envelope=FULL).queued
        if snapshot:
            transport.snapshot()
        second = send(transport, op.RelayRecipient(DAVE, frozenset(), "utf-8;d\\x{F6}rte@far.test"), ERIN).queued
        transport.run(op.UpdateQueue([op.Requeued(first[DAVE], 99, 3, "451 4.4.1 — no", True)]))
        transport.run(op.FinishQueue([op.Finished(second[ERIN], "dropped")]))
        if snapshot:
            transport.snapshot()
        transport.run(op.UpdateQueue([op.Requeued(second[DAVE], 100, 1, "450 x", False)]))
    live = table(tmp_path / "s" / "index.sqlite")
    assert len(live) == 3
    assert replayed(tmp_path / "s", tmp_path / "replayed.sqlite") == live
    assert_layers_agree(tmp_path / "s", tmp_path / "scratch")


# --- one process relays ----------------------------------------------------------------------------------------------


def test_relay_lock_has_one_holder(tmp_path: Path) -> None:
    with new_store(tmp_path / "s") as transport, closing(Directories(transport.root)) as directories:
        with duty_lock(directories, "relay") as first, duty_lock(directories, "relay") as second:
            assert (first, second) == (True, False)
        with duty_lock(directories, "relay") as again:
            assert again
