"""Reports to the sender: conditions, content, destination; each result is reported exactly once."""

from __future__ import annotations

import logging
import sqlite3
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from adapter.config.loader import Seconds
from adapter.relay import bounce, relay, replies
from adapter.relay.bounce import Notice
from adapter.store import disk
from adapter.store.effects import AddContent, Dequeue, Enqueue, Project
from adapter.store.queries import mailboxes, outbox
from adapter.store.queries.outbox import QueueRow
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.smtp.commands import OriginalRecipient, Ret
from tests.support.messages import message
from tests.support.relays import DAVE, ERIN, HOST, inbox, queue, read_report, relaying, send, settings
from tests.support.sink import Script, Sink
from tests.support.stores import ADA, BOB, rows
from tests.support.waiting import until

HOUR = 3600
LETTER = message(subject="Grüße", body="Lieber Dave,\r\n\r\nbis bald.\r\n", message_id="<1@example.test>")
NO_DSN = ["8BITMIME"]
DROPPED = replies.failed("5.7.0", "dropped")


def refuse(reply: str, step: str = "RCPT") -> Script:
    return lambda verb, command: reply if verb == step else None


async def reports(transport: Transport, count: int = 1) -> list[bytes]:
    await until(lambda: len(inbox(transport)) >= count)
    return inbox(transport)


# --- failures --------------------------------------------------------------------------------------------------------


async def test_failure_report_returns_the_message(transport: Transport) -> None:
    recipient = op.RelayRecipient(DAVE, orcpt="rfc822;d.dave+2Bwork@far.test")
    began = int(time.time())
    async with Sink(refuse("550 5.1.1 No such user here")) as sink, relaying(transport, settings(sink)):
        send(transport, recipient, octets=LETTER, envelope=op.RelayEnvelope(envid="QQ=314159"))
        [octets] = await reports(transport)
    assert octets.startswith(b"Return-Path: <>\r\n")
    report = read_report(octets)
    assert report.message["To"] == ADA
    assert report.message["From"].addresses[0].addr_spec == f"MAILER-DAEMON@{HOST}"
    assert report.message["Auto-Submitted"] == "auto-replied"
    assert report.message["References"] == "<1@example.test>"
    assert report.about["Reporting-MTA"] == f"dns; {HOST}"
    assert report.about["Original-Envelope-Id"] == "QQ=314159"
    assert parsedate_to_datetime(str(report.about["Arrival-Date"])).timestamp() >= began
    fields = report.recipients[DAVE]
    assert fields["Original-Recipient"] == "rfc822;d.dave+work@far.test"
    assert (fields["Action"], fields["Status"]) == ("failed", "5.1.1")
    assert fields["Remote-MTA"] == "dns; 127.0.0.1"
    assert fields["Diagnostic-Code"] == "smtp; 550 5.1.1 No such user here"
    assert fields["Last-Attempt-Date"]
    assert "No such user here" in report.text
    assert report.returned.get_content_type() == "message/global"  # its header is UTF-8
    assert LETTER in octets
    assert queue(transport) == []
    [row] = rows(transport)
    with transport.reading() as connection:
        assert connection.execute("SELECT sender FROM messages WHERE message_id = ?", (row.message_id,)).fetchone() == (
            "",
        )


async def test_one_report_for_all_recipients_of_a_transaction(transport: Transport) -> None:
    async with Sink(refuse("554 5.7.1 no", "DATA")) as sink, relaying(transport, settings(sink)):
        send(transport, DAVE, ERIN)
        [octets] = await reports(transport)
    assert read_report(octets).recipients.keys() == {DAVE, ERIN}


@pytest.mark.parametrize(
    ("letter", "envelope"),
    [
        (LETTER, op.RelayEnvelope(Ret.HEADERS)),
        (LETTER + b"padding\r\n" * 200_000, op.RelayEnvelope()),
        (LETTER, op.RelayEnvelope(Ret.FULL, requiretls=True)),  # RFC 8689 section 5
    ],
    ids=["not requested", "large", "to be encrypted"],
)
async def test_report_returns_only_the_header(transport: Transport, letter: bytes, envelope: op.RelayEnvelope) -> None:
    async with Sink(refuse("550 5.1.1 no")) as sink, relaying(transport, settings(sink)):
        send(transport, octets=letter, envelope=envelope)
        [octets] = await reports(transport)
    report = read_report(octets)
    assert report.returned.get_content_type() == "text/rfc822-headers"
    assert b"Message-ID: <1@example.test>" in octets
    assert b"bis bald" not in octets


async def test_reply_of_the_smarthost_cannot_inject_fields(transport: Transport) -> None:
    hostile = "550-5.1.1 a\tb\r\n550-5.1.1 \udc80\udcff\x07 Action: delivered\r\n550 5.1.1 " + "x" * 4000
    async with Sink(refuse(hostile)) as sink, relaying(transport, settings(sink)):
        send(transport)
        [octets] = await reports(transport)
    report = read_report(octets)
    assert report.recipients.keys() == {DAVE}
    assert report.recipients[DAVE]["Action"] == "failed"
    assert max(len(line) for line in octets.split(b"\r\n")) <= 998


@pytest.mark.parametrize(
    ("notify", "reported"),
    [
        (None, True),
        (frozenset({"FAILURE"}), True),
        (frozenset({"FAILURE", "SUCCESS"}), True),
        (frozenset({"SUCCESS", "DELAY"}), False),
        (frozenset(), False),
    ],
)
async def test_notify_decides_whether_failures_are_reported(
    transport: Transport, notify: frozenset[str] | None, reported: bool
) -> None:
    async with Sink(refuse("550 5.1.1 no")) as sink, relaying(transport, settings(sink)):
        send(transport, op.RelayRecipient(DAVE, notify))
        await until(lambda: not queue(transport))
    assert len(inbox(transport)) == reported


async def test_null_sender_gets_no_report(transport: Transport, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with Sink(refuse("550 5.1.1 no")) as sink, relaying(transport, settings(sink)):
            send(transport, sender="")
            await until(lambda: not queue(transport))
    assert inbox(transport) == []
    assert "null sender" in caplog.text


async def test_deregistered_sender_gets_no_report(transport: Transport, caplog: pytest.LogCaptureFixture) -> None:
    transport.run(op.Register(BOB))
    async with Sink(refuse("550 5.1.1 no")) as sink:
        send(transport, sender=BOB)
        transport.run(op.Deregister(BOB, "deactivate"))
        async with relaying(transport, settings(sink)):
            await until(lambda: not queue(transport))
    assert inbox(transport) == []
    assert "no sender to report to" in caplog.text


async def test_report_to_an_alias_goes_to_the_account(transport: Transport) -> None:
    async with Sink(refuse("550 5.1.1 no")) as sink, relaying(transport, settings(sink)):
        send(transport, sender="sales@example.test", envelope=op.RelayEnvelope(return_to=ADA))
        [octets] = await reports(transport)
    assert read_report(octets).message["To"] == "sales@example.test"


async def test_report_and_removal_are_one_commit(transport: Transport) -> None:
    commits: list[tuple[str, list[type]]] = []
    transport.changes.subscribe(
        lambda records: commits.extend((each.op, [type(effect) for effect in each.effects]) for each in records)
    )
    async with Sink(refuse("550 5.1.1 no")) as sink, relaying(transport, settings(sink)):
        send(transport)
        await reports(transport)
        await until(lambda: len(commits) == 2)
    assert commits == [("deliver", [AddContent, Enqueue]), ("queue-finish", [AddContent, Project, Dequeue])]


# --- success ---------------------------------------------------------------------------------------------------------


async def test_success_is_reported_if_the_smarthost_does_not_offer_dsn(transport: Transport) -> None:
    recipients = [op.RelayRecipient(DAVE, frozenset({"SUCCESS"})), op.RelayRecipient(ERIN, frozenset({"FAILURE"}))]
    async with Sink(extensions=NO_DSN) as sink, relaying(transport, settings(sink)):
        send(transport, *recipients, octets=LETTER)
        [octets] = await reports(transport)
    report = read_report(octets)
    assert report.recipients.keys() == {DAVE}
    assert (report.recipients[DAVE]["Action"], report.recipients[DAVE]["Status"]) == ("relayed", "2.0.0")
    assert report.returned.get_content_type() == "text/rfc822-headers"
    assert len(sink.taken) == 1


async def test_success_and_failure_in_one_report(transport: Transport) -> None:
    def script(verb: str, command: str) -> str | None:
        return "550 5.1.1 no" if "erin" in command else None

    async with Sink(script, NO_DSN) as sink, relaying(transport, settings(sink)):
        both = frozenset({"SUCCESS", "FAILURE"})
        send(transport, op.RelayRecipient(DAVE, both), op.RelayRecipient(ERIN, both))
        [octets] = await reports(transport)
    actions = {address: fields["Action"] for address, fields in read_report(octets).recipients.items()}
    assert actions == {DAVE: "relayed", ERIN: "failed"}


@pytest.mark.parametrize("reply", ["550 5.1.1 no", "450 4.2.0 later"])
async def test_recipient_dropped_during_the_attempt_is_reported_once(transport: Transport, reply: str) -> None:
    clock = Clock()
    clock.hours = 5  # so that a delay is reported as well

    def script(verb: str, command: str) -> str | None:
        if verb != "RCPT":
            return None
        if dropped := [row for row in queue(transport) if row.recipient == DAVE]:
            report = bounce.stage_report(transport, HOST, [Notice(dropped[0], "FAILURE", DROPPED)], clock())
            transport.run(op.FinishQueue([op.Finished(dropped[0].queue_id, "dropped")], report))
        return reply

    async with Sink(script) as sink, relaying(transport, settings(sink), clock=clock):
        send(transport, DAVE, ERIN)
        reported = await reports(transport, 2)
        await until(lambda: all(row.attempts for row in queue(transport)))
    assert [set(read_report(octets).recipients) for octets in reported] == [{DAVE}, {ERIN}]


# --- delay and expiry ------------------------------------------------------------------------------------------------


class Clock:
    """Real time plus some hours."""

    def __init__(self) -> None:
        self.hours = 0.0

    def __call__(self) -> float:
        return time.time() + self.hours * HOUR


async def test_delay_is_reported_once(transport: Transport) -> None:
    clock = Clock()
    async with Sink(refuse("450 4.2.0 later")) as sink, relaying(transport, settings(sink), clock=clock):
        send(transport, DAVE, op.RelayRecipient(ERIN, frozenset({"FAILURE"})), octets=LETTER)
        await until(lambda: all(row.attempts for row in queue(transport)))
        assert inbox(transport) == []
        clock.hours = 4.01
        transport.run(op.UpdateQueue([op.Requeued(row.queue_id, 0) for row in queue(transport)]))
        [octets] = await reports(transport)
        before = [row.attempts for row in queue(transport)]
        clock.hours = 9
        transport.run(op.UpdateQueue([op.Requeued(row.queue_id, 0) for row in queue(transport)]))
        await until(lambda: all(row.attempts > old for row, old in zip(queue(transport), before)))
    report = read_report(octets)
    assert report.recipients.keys() == {DAVE}
    fields = report.recipients[DAVE]
    assert (fields["Action"], fields["Status"]) == ("delayed", "4.2.0")
    until_when = parsedate_to_datetime(str(fields["Will-Retry-Until"]))
    assert abs((until_when - datetime.now(UTC)).total_seconds() - 5 * 24 * HOUR) < 60
    assert len(inbox(transport)) == 1
    assert {row.recipient: row.delay_warned for row in queue(transport)} == {DAVE: 1, ERIN: 1}


async def test_delay_report_can_be_disabled(transport: Transport) -> None:
    clock = Clock()
    clock.hours = 10
    async with (
        Sink(refuse("450 4.2.0 later")) as sink,
        relaying(transport, settings(sink, warn_after=Seconds(0)), clock=clock),
    ):
        send(transport)
        await until(lambda: all(row.attempts for row in queue(transport)))
    assert inbox(transport) == []


async def test_expired_message_is_returned_after_one_last_attempt(transport: Transport) -> None:
    clock = Clock()
    async with Sink(refuse("450 4.2.1 still full")) as sink, relaying(transport, settings(sink), clock=clock):
        send(transport, envelope=op.RelayEnvelope(lifetime=24 * HOUR))
        await until(lambda: all(row.attempts for row in queue(transport)))
        clock.hours = 25
        transport.run(op.UpdateQueue([op.Requeued(row.queue_id, 0) for row in queue(transport)]))
        await until(lambda: not queue(transport))
    report = read_report(inbox(transport)[-1])
    fields = report.recipients[DAVE]
    assert (fields["Action"], fields["Status"]) == ("failed", "4.4.7")
    assert fields["Diagnostic-Code"] == "smtp; 450 4.2.1 still full"  # RFC 3464 2.3.6: the reply of the remote host
    assert "    not delivered within 1 days\r\n    127.0.0.1 said: 450 4.2.1 still full\r\n" in report.text


async def test_message_that_expired_while_stopped_is_tried_once_more(transport: Transport) -> None:
    clock = Clock()
    clock.hours = 24 * 30
    async with Sink() as sink:
        send(transport)
        async with relaying(transport, settings(sink), clock=clock):
            await sink.wait_for(1)
    assert inbox(transport) == []


# --- errors of the store ---------------------------------------------------------------------------------------------


async def test_message_is_not_sent_again_if_its_result_cannot_be_recorded(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [True]
    real = disk.write_at

    def write_at(fd: int, pieces: list[bytes], offset: int, spaces: int = 0) -> None:
        if broken[0] and b'"dequeue"' in b"".join(pieces):
            raise OSError(28, "No space left on device")
        real(fd, pieces, offset, spaces)

    monkeypatch.setattr(disk, "write_at", write_at)
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport)
        await sink.wait_for(1)
        transport.run(op.UpdateQueue([op.Requeued(queue(transport)[0].queue_id, 0)]))
        send(transport, ERIN)
        await sink.wait_for(2)
        assert len(queue(transport)) == 2
        broken[0] = False
        await until(lambda: not queue(transport))
    assert [taken.addresses for taken in sink.taken] == [[DAVE], [ERIN]]


class Unreportable:
    """Composing a report about mail for Dave fails while ``broken`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.broken = True
        self.attempts = 0
        self._error = error or ValueError("a report of this cannot be made")
        self._real = bounce.stage_report
        monkeypatch.setattr(bounce, "stage_report", self._stage)

    def _stage(self, *arguments: Any) -> op.QueueReport | None:
        if self.broken and any(notice.row.recipient == DAVE for notice in arguments[2]):
            self.attempts += 1
            raise self._error
        return self._real(*arguments)


@pytest.mark.parametrize("error", [ValueError("odd"), MailError(Reason.BAD_CONTENT, "odd")])
async def test_failure_without_a_report_is_retried_and_blocks_no_other_mail(
    transport: Transport, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    unreportable = Unreportable(monkeypatch, error)
    chosen = {"connections": 1, "first_retry": Seconds(1000), "longest_retry": Seconds(1000)}
    async with Sink(refuse("550 5.1.1 no")) as sink, relaying(transport, settings(sink, **chosen)):
        send(transport, DAVE)
        await until(lambda: unreportable.attempts == 1)
        send(transport, ERIN)  # one connection for both
        [octets] = await reports(transport)
        assert read_report(octets).recipients.keys() == {ERIN}
        [row] = queue(transport)
        assert (row.recipient, row.attempts, row.delay_warned) == (DAVE, 1, 0)
        assert row.last_status == "550 5.1.1 no (could not report to the sender)"
        assert row.next_attempt_at > time.time() + 600
        unreportable.broken = False
        transport.run(op.UpdateQueue([op.Requeued(row.queue_id, 0)]))
        [_, octets] = await reports(transport, 2)
    assert read_report(octets).recipients.keys() == {DAVE}
    assert queue(transport) == []


async def test_success_without_a_report_is_not_sent_again(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(verb: str, command: str) -> str | None:
        return "550 5.1.1 no" if "erin" in command else None

    unreportable = Unreportable(monkeypatch)
    both = frozenset({"SUCCESS", "FAILURE"})
    chosen = {"first_retry": Seconds(1000), "longest_retry": Seconds(1000)}
    async with Sink(script, NO_DSN) as sink, relaying(transport, settings(sink, **chosen)):
        send(transport, op.RelayRecipient(DAVE, both), op.RelayRecipient(ERIN, both), op.RelayRecipient("z@far.test"))
        await until(lambda: [(row.recipient, row.attempts) for row in queue(transport)] == [(ERIN, 1)])
        transport.run(op.UpdateQueue([op.Requeued(queue(transport)[0].queue_id, 0)]))
        [octets] = await reports(transport)
    assert unreportable.attempts == 1
    assert read_report(octets).recipients.keys() == {ERIN}
    assert [sorted(taken.addresses) for taken in sink.taken] == [[DAVE, "z@far.test"]]


async def test_delay_without_a_report_is_reported_at_the_next_attempt(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreportable = Unreportable(monkeypatch)
    clock = Clock()
    clock.hours = 5
    chosen = {"first_retry": Seconds(1000), "longest_retry": Seconds(1000)}
    async with (
        Sink(refuse("450 4.2.0 later")) as sink,
        relaying(transport, settings(sink, **chosen), clock=clock),
    ):
        send(transport)
        await until(lambda: [row.attempts for row in queue(transport)] == [1])
        [row] = queue(transport)
        assert (row.delay_warned, row.last_status) == (0, "450 4.2.0 later")
        unreportable.broken = False
        transport.run(op.UpdateQueue([op.Requeued(row.queue_id, 0)]))
        [octets] = await reports(transport)
    assert read_report(octets).recipients[DAVE]["Action"] == "delayed"
    assert [row.delay_warned for row in queue(transport)] == [1]


async def test_reading_the_outbox_is_retried_after_an_error(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = outbox.due
    broken = [True]

    def due(*arguments: Any) -> list[QueueRow]:
        if broken.pop() if broken else False:
            raise sqlite3.OperationalError("disk I/O error")
        return real(*arguments)

    monkeypatch.setattr(outbox, "due", due)
    monkeypatch.setattr(relay, "_READ_RETRY_SECONDS", 0.05)
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport)
        await sink.wait_for(1)
    assert not broken


# --- the parts -------------------------------------------------------------------------------------------------------


def test_original_recipient_round_trips() -> None:
    for original in (OriginalRecipient("rfc822", "a+b=c@x.test"), OriginalRecipient("utf-8", "dörte@x.test")):
        assert bounce.original_recipient(original.parameter) == original
    assert bounce.original_recipient(None) is None
    assert bounce.original_recipient("nonsense") is None


def test_queueing_does_not_change_the_senders_folders(transport: Transport) -> None:
    """Queueing alone shows the message in no folder."""
    send(transport)
    with transport.reading() as connection:
        registration = mailboxes.active_registration(connection, ADA).id
        assert sum(folder.messages for folder in mailboxes.folders(connection, registration)) == 0
