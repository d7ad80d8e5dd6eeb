"""Changes of the outbox, killed before each step."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.layers import disagreements
from tests.support.relays import DAVE, ERIN, inbox, queue
from tests.support.stores import ADA, new_store
from tests.system.crash.lab import letters
from tests.system.crash.lab.children import killed_at, no_background_checkpoints
from tests.system.crash.lab.scenarios import Action, Scenario
from tests.system.crash.lab.world import copy, remove


def queueing(octets: bytes) -> Action:
    return lambda transport: op.Deliver(
        transport.stage(octets), ADA, [ADA], relay=[op.RelayRecipient(DAVE), op.RelayRecipient(ERIN)]
    )


def updating(transport: Transport) -> op.UpdateQueue:
    report = op.QueueReport(transport.stage(letters.plain(201)), ADA)
    return op.UpdateQueue([op.Requeued(row.queue_id, 9, 1, "450 x", True) for row in queue(transport)], report)


def finishing(transport: Transport) -> op.FinishQueue:
    report = op.QueueReport(transport.stage(letters.plain(202)), ADA)
    return op.FinishQueue([op.Finished(row.queue_id, "failed", "550 x") for row in queue(transport)], report)


def see(transport: Transport) -> tuple[list[tuple[str, int, str]], int]:
    return sorted((row.recipient, row.attempts, row.last_status) for row in queue(transport)), len(inbox(transport))


@pytest.mark.parametrize(
    ("prepare", "action"),
    [
        ([], queueing(letters.plain(200))),
        ([], queueing(letters.with_files(200, letters.noise(1, 300_000)))),
        ([queueing(letters.plain(200))], updating),
        ([queueing(letters.plain(200))], finishing),
    ],
    ids=["enqueue", "enqueue large", "update", "finish"],
)
def test_killed_before_each_step(
    tmp_path: Path, prepare: list[Action], action: Action, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "adapter")  # recovery is logged in every run
    base = str(tmp_path / "base")
    scenario = Scenario("outbox", [action])
    with no_background_checkpoints():
        with new_store(base, ADA) as transport:
            for each in prepare:
                operation = each(transport)
                assert operation is not None
                transport.run(operation)
            before = see(transport)
        reference = copy(base, str(tmp_path / "reference"))
        report = killed_at(reference, scenario, None)
        with Transport.open(reference) as transport:
            after = see(transport)
        assert before != after
        for step in range(report.closing):
            root = copy(base, str(tmp_path / f"killed-{step}"))
            killed = killed_at(root, scenario, step)
            assert killed.killed
            with Transport.open(root) as transport:
                assert see(transport) in ([after] if killed.acknowledged else [before, after])
            assert disagreements(root, tmp_path / "scratch") == [], report.steps[step]
            remove(root)
