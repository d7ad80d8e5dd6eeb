"""CommitQueue in the event loop: small messages share a batch, large ones do not delay them, callers get errors."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from adapter.store.effects import Actor
from adapter.transport import operations as op
from adapter.transport.commit_queue import CommitQueue
from adapter.transport.operations.base import Operation
from adapter.transport.staging import SPOOL_MEMORY
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.stores import ADA, new_store, rows
from tests.support.waiting import PATIENCE, until


@contextlib.asynccontextmanager
async def open_commits(root: Path) -> AsyncIterator[tuple[Transport, CommitQueue]]:
    with new_store(root / "store", ADA) as transport:
        commits = CommitQueue(transport, 1)
        try:
            yield transport, commits
        finally:
            await asyncio.to_thread(commits.close)
    assert_layers_agree(root / "store", root / "scratch")


def delivery(transport: Transport, subject: str, gate: threading.Event | None = None) -> Callable[[], op.Deliver]:
    def prepare() -> op.Deliver:
        assert gate is None or gate.wait(PATIENCE)
        return op.Deliver(transport.stage(message(subject=subject)), "", [ADA])

    return prepare


async def test_waiting_messages_are_committed_in_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    gate = threading.Event()
    async with open_commits(tmp_path) as (transport, commits):
        real = transport.commit_all

        def counting(
            operations: Sequence[Operation[Any]], actors: Sequence[Actor | None] | None = None
        ) -> list[Future[Any]]:
            batches.append(len(operations))
            return real(operations, actors)

        monkeypatch.setattr(transport, "commit_all", counting)
        monkeypatch.setattr("adapter.transport.commit_queue._MAX_STAGING_SECONDS", PATIENCE)
        tasks = [asyncio.create_task(commits.run(delivery(transport, str(n), gate), 2000)) for n in range(9)]
        await until(lambda: commits._small.qsize() == 8)
        gate.set()
        done = await asyncio.gather(*tasks)
        assert batches == [9]
        assert len({each.message_id for each in done}) == len(rows(transport)) == 9


async def test_large_messages_do_not_delay_small_ones(tmp_path: Path) -> None:
    gate = threading.Event()
    async with open_commits(tmp_path) as (transport, commits):
        large = asyncio.create_task(commits.run(delivery(transport, "large", gate), SPOOL_MEMORY + 1))
        await commits.run(delivery(transport, "small"), SPOOL_MEMORY)
        assert not large.done()
        gate.set()
        await large
        assert len(rows(transport)) == 2


async def test_failed_preparation_does_not_affect_other_messages(tmp_path: Path) -> None:
    def broken() -> op.Deliver:
        raise MemoryError

    async with open_commits(tmp_path) as (transport, commits):
        outcomes = await asyncio.gather(
            commits.run(broken, 0),
            commits.run(delivery(transport, "x"), 0),
            commits.run(broken, SPOOL_MEMORY + 1),
            return_exceptions=True,
        )
        assert [isinstance(each, MailError) and each.temporary for each in outcomes] == [True, False, True]


@pytest.mark.parametrize("size", [0, SPOOL_MEMORY + 1])
async def test_message_prepared_after_closing_the_store_is_refused(tmp_path: Path, size: int) -> None:
    gate = threading.Event()
    async with open_commits(tmp_path) as (transport, commits):
        waiting = asyncio.create_task(commits.run(delivery(transport, "late", gate), size))
        await asyncio.to_thread(transport._writer.close)
        gate.set()
        with pytest.raises(MailError) as caught:
            await waiting
        assert caught.value.reason is Reason.MAINTENANCE
        assert rows(transport) == []


@pytest.mark.parametrize("size", [0, SPOOL_MEMORY + 1])
async def test_closed_queue_refuses_messages_at_once(tmp_path: Path, size: int) -> None:
    with new_store(tmp_path / "store", ADA) as transport:
        commits = CommitQueue(transport, 1)
        await asyncio.to_thread(commits.close)
        with pytest.raises(MailError) as caught:
            async with asyncio.timeout(PATIENCE):
                await commits.run(delivery(transport, "late"), size)
        assert caught.value.reason is Reason.MAINTENANCE
