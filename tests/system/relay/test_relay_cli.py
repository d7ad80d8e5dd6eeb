"""``markpost queue``, alone and while a server relays."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from adapter.cli import main
from adapter.config.loader import Seconds
from adapter.relay import bounce
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.relays import DAVE, ERIN, inbox, queue, read_report, relaying, send, settings
from tests.support.sink import Sink
from tests.support.stores import ADA
from tests.support.waiting import until


def cli(transport: Transport, *arguments: str, status: int = 0) -> Result:
    """The command opens the store beside us, as another process would."""
    result = CliRunner().invoke(main, ["queue", *arguments], env={"MARKPOST_ROOT": transport.root})
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result


def listed(transport: Transport) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(cli(transport, "list", "--json").stdout)
    return rows


def test_list(transport: Transport) -> None:
    assert cli(transport, "list").stdout == ""
    assert listed(transport) == []
    sent = send(transport, DAVE, ERIN)
    transport.run(op.UpdateQueue([op.Requeued(sent.queued[DAVE], 4_000_000_000, 3, "450 4.2.1 büsy")]))
    by_recipient = {each["recipient"]: each for each in listed(transport)}
    assert by_recipient.keys() == {DAVE, ERIN}
    dave = by_recipient[DAVE]
    assert dave["id"] == sent.queued[DAVE]
    assert dave["message"] == sent.message_id
    assert (dave["sender"], dave["attempts"], dave["last_status"]) == (ADA, 3, "450 4.2.1 büsy")
    assert dave["next_attempt"] == "2096-10-02T07:06:40Z"
    assert dave["octets"] > 100
    text = cli(transport, "list").stdout
    assert f"{sent.queued[ERIN]}  <{ADA}> to <{ERIN}>" in text
    assert "450 4.2.1 büsy" in text
    assert "3 attempts, next in" in text
    assert "0 attempts, due now" in text


def test_retry(transport: Transport) -> None:
    first, second = send(transport), send(transport, ERIN)
    ids = [*first.queued.values(), *second.queued.values()]
    later = op.UpdateQueue([op.Requeued(each, 4_000_000_000, 5, "450 no") for each in ids])
    transport.run(later)
    assert cli(transport, "retry", ids[0]).stdout == "1 recipient due now\n"
    assert {row.queue_id for row in queue(transport) if row.next_attempt_at < 4_000_000_000} == {ids[0]}
    transport.run(later)
    assert cli(transport, "retry", second.message_id).stdout == "1 recipient due now\n"
    transport.run(later)
    assert cli(transport, "retry", "--all").stdout == "2 recipients due now\n"
    assert {(row.attempts, row.last_status) for row in queue(transport)} == {(5, "450 no")}


def test_mistakes_are_told_in_one_line(transport: Transport) -> None:
    sent = send(transport)
    assert "--all" in cli(transport, "retry", status=1).stderr
    assert "--all" in cli(transport, "retry", "--all", "q-1", status=1).stderr
    assert "queue list" in cli(transport, "drop", status=1).stderr
    result = cli(transport, "drop", *sent.queued.values(), "q-unknown", status=1)
    assert result.stderr == "markpost: not in the queue: q-unknown\n"
    assert queue(transport) == []  # the queue was emptied


def test_drop(transport: Transport) -> None:
    sent = send(transport, DAVE, ERIN)
    assert cli(transport, "drop", sent.queued[DAVE]).stdout == "1 recipient dropped\n"
    assert [row.recipient for row in queue(transport)] == [ERIN]
    assert inbox(transport) == []


def test_drop_and_tell_the_sender(transport: Transport) -> None:
    sent = send(transport, DAVE, ERIN)
    other = send(transport, op.RelayRecipient("quiet@far.test", frozenset()))
    result = cli(transport, "drop", "--notify", sent.message_id, *other.queued.values())
    assert result.stdout == "3 recipients dropped\n"
    [report] = inbox(transport)
    recipients = read_report(report).recipients
    assert recipients.keys() == {DAVE, ERIN}
    assert {(fields["Action"], fields["Status"]) for fields in recipients.values()} == {("failed", "5.3.0")}


def test_the_sender_is_told_by_the_server_s_name(transport: Transport, tmp_path: Path) -> None:
    file = tmp_path / "markpost.toml"
    file.write_text('[server]\nhostname = "mail.far.test"\n')
    sent = send(transport)
    cli(transport, "drop", "--config", str(file), "--notify", *sent.queued.values())
    [octets] = inbox(transport)
    report = read_report(octets)
    assert report.about["Reporting-MTA"] == "dns; mail.far.test"
    assert report.message["From"].addresses[0].addr_spec == "MAILER-DAEMON@mail.far.test"
    assert report.message["Message-ID"].endswith("@mail.far.test>")
    file.write_text("[server]\nhostname = 5\n")
    sent = send(transport)
    refused = cli(transport, "drop", "--config", str(file), "--notify", *sent.queued.values(), status=1)
    assert "server.hostname" in refused.stderr
    assert len(queue(transport)) == 1


@pytest.mark.parametrize("sender", ["", "gone@example.test"])
def test_drop_without_a_sender_to_notify(transport: Transport, sender: str) -> None:
    sent = send(transport, sender=sender)
    result = cli(transport, "drop", "--notify", *sent.queued.values())
    assert result.stdout == "1 recipient dropped\n"
    assert ("has no mailbox here" in result.stderr) == bool(sender)
    assert queue(transport) == []


async def test_a_running_relay_hears_of_a_retry(transport: Transport, tmp_path: Path) -> None:
    open_now = [False]

    def script(verb: str, command: str) -> str | None:
        return None if open_now[0] or verb != "RCPT" else "450 4.2.1 not yet"

    patient = {"first_retry": Seconds(600), "longest_retry": Seconds(600)}
    async with Sink(script) as sink, relaying(transport, settings(sink, **patient)):
        send(transport)
        await until(lambda: [row.attempts for row in queue(transport)] == [1])
        open_now[0] = True
        await asyncio.to_thread(cli, transport, "retry", "--all")
        await sink.wait_for(1)


def test_mail_that_leaves_the_queue_during_a_drop_is_not_reported(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = send(transport, DAVE, ERIN)
    real = bounce.stage_report

    def stage(*arguments: Any) -> op.QueueReport | None:
        report = real(*arguments)
        transport.run(op.FinishQueue([op.Finished(sent.queued[DAVE], "relayed")]))
        return report

    monkeypatch.setattr(bounce, "stage_report", stage)
    assert cli(transport, "drop", "--notify", sent.message_id).stdout == "1 recipient dropped\n"
    [octets] = inbox(transport)
    assert read_report(octets).recipients.keys() == {ERIN}
    assert queue(transport) == []
