"""Limits of hook commands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import HookSettings
from adapter.transport.transport import Transport
from tests.support.hooks import running_hooks
from tests.support.stores import ADA, deliver
from tests.support.waiting import until


@pytest.mark.setting("hook.concurrency")
@pytest.mark.parametrize(("concurrency", "together"), [(1, 1), (3, 3)])
async def test_concurrent_calls_are_bounded(
    transport: Transport, tmp_path: Path, concurrency: int, together: int
) -> None:
    log, go_on = tmp_path / "calls", tmp_path / "go on"
    log.touch()
    command = ("/bin/sh", "-c", f"echo begin >> {log}; until [ -e '{go_on}' ]; do sleep 0.05; done; echo end >> {log}")
    async with running_hooks(transport, agent=HookSettings(command=command, concurrency=concurrency)):
        for _ in range(3):
            deliver(transport, ADA)
        await until(lambda: log.read_text().count("begin") == together)
        await asyncio.sleep(0.2)  # time for an unexpected additional call
        go_on.touch()
        await until(lambda: log.read_text().count("end") == 3)
    running, most = 0, 0
    for word in log.read_text().split():
        running += 1 if word == "begin" else -1
        most = max(most, running)
    assert most == together


@pytest.mark.setting("hook.longest_retry")
async def test_pauses_between_failed_calls_follow_the_settings(transport: Transport, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    command = ("/bin/sh", "-c", f"echo x >> {log}; exit 1")
    async with running_hooks(
        transport, agent=HookSettings(command=command, first_retry=Seconds(0.05), longest_retry=Seconds(0.1))
    ):
        deliver(transport, ADA)
        # Doubled each time, the tenth would come after half a minute.
        await until(lambda: log.exists() and log.read_text().count("x") >= 10)
