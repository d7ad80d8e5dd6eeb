"""The fair queue: round-robin between peers, bounded, left at once by cancelled callers."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from adapter.accounts.login_queue import Bounds, CrowdedError, FairQueue
from tests.support.waiting import PATIENCE, until


async def _run_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class _Served:
    """Callers of a queue with one slot, which record the order in which they are served."""

    def __init__(self, waiting: int) -> None:
        self.queue = FairQueue(1, waiting)
        self.order: list[str] = []
        self.refused: list[str] = []
        self.go_on = asyncio.Event()

    async def call(self, line: str, name: str) -> None:
        try:
            async with self.queue.slot(line):
                self.order.append(name)
                await self.go_on.wait()
        except CrowdedError:
            self.refused.append(name)

    async def begin(self, line: str, *names: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.call(line, name)) for name in names]
        await _run_loop()
        return tasks

    async def finish(self, *tasks: asyncio.Task[None]) -> None:
        self.go_on.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_peer_with_many_logins_delays_another_by_one() -> None:
    served = _Served(1000)
    tasks = await served.begin("a", *(f"a{number}" for number in range(945)))
    tasks += await served.begin("b", "b0", "b1")
    tasks += await served.begin("c", "c0")
    await served.finish(*tasks)
    assert served.order[:6] == ["a0", "a1", "b0", "c0", "a2", "b1"]
    assert len(served.order) == 948
    assert not len(served.queue)


async def test_longest_line_gives_way_when_the_queue_is_full() -> None:
    served = _Served(10)
    tasks = await served.begin("a", *(f"a{number}" for number in range(30)))
    assert len(served.refused) == 19
    tasks += await served.begin("b", *(f"b{number}" for number in range(30)))
    assert len(served.queue) == 10
    waiting = {line: len(turns) for line, turns in served.queue._lines.items()}
    assert waiting == {"a": 5, "b": 5}
    await served.finish(*tasks)
    assert served.order[:5] == ["a0", "a1", "b0", "a2", "b1"]


async def test_cancelled_caller_leaves_the_line() -> None:
    served = _Served(10)
    first, second, third = await served.begin("a", "a0", "a1", "a2")
    (other,) = await served.begin("b", "b0")
    second.cancel()
    await _run_loop()
    assert len(served.queue) == 2
    await served.finish(first, second, third, other)
    assert sorted(served.order) == ["a0", "a2", "b0"]


async def test_slot_of_a_cancelled_caller_goes_to_the_next() -> None:
    served = _Served(10)
    first, second, third = await served.begin("a", "a0", "a1", "a2")
    first.cancel()
    await asyncio.sleep(0)
    assert len(served.queue) == 1  # the slot was handed to the second caller, which has not run yet
    assert served.order == ["a0"]
    second.cancel()
    await served.finish(first, second, third)
    assert served.order == ["a0", "a2"]
    async with asyncio.timeout(PATIENCE), served.queue.slot("b"):
        pass


async def test_running_thread_keeps_its_slot_after_its_caller_was_cancelled() -> None:
    queue = FairQueue(1, 10)
    gate = threading.Event()
    at_once = most = 0

    def check() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        gate.wait(PATIENCE)
        at_once -= 1
        raise OSError("for none")

    with ThreadPoolExecutor(4) as threads:
        calls = [asyncio.create_task(queue.run("a", threads, check)) for _ in range(3)]
        await until(lambda: at_once == 1)
        calls[0].cancel()
        await _run_loop()
        assert len(queue) == 2
        gate.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, OSError, OSError]
    assert most == 1


def test_limit_applies_to_each_key() -> None:
    bounds = Bounds()
    with bounds.hold({"peer": 2, "user": 1}):
        with pytest.raises(CrowdedError), bounds.hold({"other peer": 2, "user": 1}):
            pass
        with bounds.hold({"peer": 2, "other": 1}), pytest.raises(CrowdedError), bounds.hold({"peer": 2}):
            pass
    assert not len(bounds)
