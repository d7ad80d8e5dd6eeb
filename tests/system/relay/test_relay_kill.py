"""Processes that die, stop and wait for each other: every message arrives at least once, and the queue ends empty."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter

import pytest

from adapter.config.loader import Seconds
from adapter.relay import relay
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.paths import REPOSITORY
from tests.support.processes.fronts import free_port
from tests.support.relays import DAVE, ERIN, inbox, queue, relaying, send, settings
from tests.support.sink import Sink
from tests.support.waiting import until


class Killer:
    """A sink's script: after some commands, more or fewer each time, the process that sends them is killed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._left = 0
        self._victim: asyncio.subprocess.Process | None = None

    def aim(self, process: asyncio.subprocess.Process | None) -> None:
        self._victim = process
        self._left = self._random.randint(1, 40)

    def __call__(self, verb: str, command: str) -> None:
        """Before the answer; for ``.`` the message is taken all the same: the sender does not learn of it."""
        self._left -= 1
        if self._left == 0 and self._victim is not None:
            self._victim.send_signal(signal.SIGKILL)


async def start_relay(root: str, port: int) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.processes.relay_child", root, str(port)),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def test_killed_again_and_again(transport: Transport) -> None:
    """The relay dies at any point of a transaction and of its commits, while mail keeps coming in."""
    killer = Killer(20261116)
    expected: set[tuple[bytes, str]] = set()

    def send_some(count: int) -> None:
        for _ in range(count):
            subject = f"Letter {len(expected)}"
            octets = message(subject=subject, attachments=[b"x" * 300_000] if len(expected) % 10 == 0 else ())
            send(transport, DAVE, ERIN, octets=octets)
            expected.update({(octets, DAVE), (octets, ERIN)})

    deaths = 0
    async with Sink(killer) as sink:
        for _ in range(9):
            await asyncio.to_thread(send_some, 5)
            process = await start_relay(transport.root, sink.port)
            killer.aim(process)
            await until(lambda process=process: process.returncode is not None or not queue(transport))  # type: ignore[misc]
            if process.returncode is None:
                process.kill()
            else:
                deaths += 1
            await process.wait()
        killer.aim(None)
        last = await start_relay(transport.root, sink.port)
        await until(lambda: not queue(transport))
        last.kill()
        await last.wait()
    arrived = Counter((taken.octets, address) for taken in sink.taken for address in taken.addresses)
    assert arrived.keys() == expected
    assert deaths >= 4
    # At least once, but not without reason: each death repeats what was under way, two transactions at most.
    assert sum(arrived.values()) - len(expected) <= 9 * 2 * 2
    assert inbox(transport) == []
    Transport.open(transport.root).close()  # clears away what the dead left in staging


async def test_one_relays_and_the_other_takes_over(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_TAKE_OVER_SECONDS", 0.05)
    async with Sink() as first_sink, Sink() as second_sink:
        with Transport.open(transport.root) as beside:
            async with relaying(transport, settings(first_sink)):
                send(transport)
                await first_sink.wait_for(1)
                async with relaying(beside, settings(second_sink)):
                    send(beside)  # queued by the process that does not relay
                    await first_sink.wait_for(2)
                    assert second_sink.taken == []
            async with relaying(beside, settings(second_sink)):
                send(transport)
                await second_sink.wait_for(1)
    assert len(first_sink.taken) == 2


async def test_what_waited_goes_out_after_a_restart(transport: Transport) -> None:
    for _ in range(5):
        send(transport)
    async with Sink() as sink, relaying(transport, settings(sink)):
        await sink.wait_for(5)
        await until(lambda: not queue(transport))


async def test_a_smarthost_that_comes_back(transport: Transport) -> None:
    sink = Sink()
    sink.port = free_port()
    async with relaying(transport, settings(sink)):
        send(transport)
        send(transport)
        await until(lambda: all(row.attempts for row in queue(transport)))
        assert all(row.last_status.startswith("451 4.4.1 cannot connect") for row in queue(transport))
        await sink.start(sink.port)
        await sink.wait_for(2)
    await sink.stop()


async def test_stopping_finishes_what_is_under_way(transport: Transport) -> None:
    reached = asyncio.Event()

    def slow(verb: str, command: str) -> None:
        if verb == ".":
            reached.set()
            time.sleep(0.3)

    async with Sink(slow) as sink:
        async with relaying(transport, settings(sink)):
            send(transport)
            await reached.wait()
        assert queue(transport) == []
    assert len(sink.taken) == 1


async def test_cancelling_leaves_the_rest_for_the_next(transport: Transport) -> None:
    silence = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await reader.readline()
        silence.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    sink = Sink()
    sink.port = server.sockets[0].getsockname()[1]
    task = asyncio.create_task(relay.run(transport, settings(sink), asyncio.Event()))
    send(transport)
    await silence.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    server.close()
    assert [row.attempts for row in queue(transport)] == [0]
    async with Sink() as living, relaying(transport, settings(living)):
        await living.wait_for(1)


async def test_a_smarthost_that_does_not_answer_quit_holds_nothing_up(transport: Transport) -> None:
    leaving = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        while (line := await reader.readline()) and line != b"QUIT\r\n":
            if line == b"DATA\r\n":
                writer.write(b"354 go\r\n")
                await reader.readuntil(b"\r\n.\r\n")
            writer.write(b"250 ok\r\n")
        leaving.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sink = Sink()
    sink.port = server.sockets[0].getsockname()[1]
    async with relaying(transport, settings(sink, idle=Seconds(0.1))):
        send(transport)
        await leaving.wait()
        began = time.monotonic()
        send(transport)
        await until(lambda: not queue(transport))
        assert time.monotonic() - began < 4.0  # QUIT is waited for 5 seconds
    server.close()


@pytest.mark.setting("relay.command")
async def test_a_smarthost_that_falls_silent_is_given_up(transport: Transport) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    sink = Sink()
    sink.port = server.sockets[0].getsockname()[1]
    async with relaying(transport, settings(sink, command=Seconds(0.2))):
        send(transport)
        await until(lambda: all(row.attempts for row in queue(transport)))
    server.close()
    assert "451 4.4.1 cannot connect" in queue(transport)[0].last_status
