"""Settings of the smarthost, of upstream accounts and of hooks: each time limit and number takes effect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import RelaySettings, Settings, UpstreamSettings
from adapter.mirror import follow
from adapter.mirror.limits import MirrorLimits
from adapter.mirror.session import UpstreamError
from adapter.relay import retry_policy
from adapter.store.quotas import Quotas
from adapter.transport.transport import Transport
from tests.support.relays import queue, relaying, send, settings
from tests.support.sink import Sink
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE, until

LIMITS = MirrorLimits(1 << 20, Quotas(Settings()))


@contextlib.asynccontextmanager
async def talking(*replies: bytes) -> AsyncIterator[Sink]:
    """A server that sends these replies, one for each packet, and then nothing more."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            for reply in replies:
                writer.write(reply)
                await reader.read(1 << 16)
            while await reader.read(1 << 16):
                pass
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    sink = Sink()
    sink.port = server.sockets[0].getsockname()[1]
    try:
        yield sink
    finally:
        server.close()


async def _given_up(transport: Transport, chosen: RelaySettings) -> str:
    """The last status of a message after a time limit of the smarthost."""
    async with relaying(transport, chosen):
        send(transport)
        await until(lambda: all(row.attempts for row in queue(transport)))
    return queue(transport)[0].last_status


@pytest.mark.setting("relay.connect")
async def test_silent_smarthost_times_out(transport: Transport) -> None:
    async with talking() as mute:
        assert "cannot connect" in await _given_up(transport, settings(mute, connect=Seconds(0.2)))


@pytest.mark.setting("relay.accept")
async def test_smarthost_without_a_final_reply_times_out(transport: Transport) -> None:
    ready = b"250 ok\r\n"
    async with talking(b"220 hello\r\n", ready, ready, ready, b"354 go\r\n") as mute:
        chosen = settings(mute, accept=Seconds(0.3), first_retry=Seconds(60), longest_retry=Seconds(60))
        assert "while sending the data" in await _given_up(transport, chosen)


@pytest.mark.setting("relay.idle")
async def test_idle_connection_is_closed_after_the_time_limit(transport: Transport) -> None:
    async with Sink() as sink:
        async with relaying(transport, settings(sink, idle=Seconds(0.3))):
            send(transport)
            await sink.wait_for(1)
            assert sink.open_now == 1
            await until(lambda: sink.open_now == 0)
            send(transport)
            await sink.wait_for(2)
        assert sink.connections == 2


@pytest.mark.setting("relay.first_retry", "relay.longest_retry")
def test_retry_pauses_of_the_smarthost_follow_the_settings() -> None:
    chosen = RelaySettings(first_retry=Seconds(10), longest_retry=Seconds(25))
    assert [retry_policy.pause(attempts, chosen, 0.5) for attempts in (1, 2, 3, 9)] == [10, 20, 25, 25]


# --- upstream accounts -----------------------------------------------------------------------------------------------


def elsewhere(port: int, **changes: float) -> UpstreamSettings:
    times: dict[str, Any] = {name: Seconds(value) for name, value in changes.items()}
    return UpstreamSettings(
        host="127.0.0.1", port=port, tls="none", user="ada", password="x", account=ADA, follow=True, **times
    )


@pytest.mark.setting("upstream.timeout")
async def test_silent_upstream_times_out(transport: Transport) -> None:
    async with talking() as mute, asyncio.timeout(PATIENCE):
        with pytest.raises(UpstreamError):
            await follow.pull(transport, "work", elsewhere(mute.port, timeout=0.3), LIMITS)


@pytest.mark.setting("upstream.first_retry", "upstream.longest_retry")
async def test_retry_pauses_of_an_upstream_follow_the_settings(transport: Transport) -> None:
    connections = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    @contextlib.asynccontextmanager
    async def following(**times: float) -> AsyncIterator[None]:
        stop = asyncio.Event()
        port = server.sockets[0].getsockname()[1]
        task = asyncio.create_task(follow.run(transport, {"work": elsewhere(port, **times)}, LIMITS, stop))
        yield
        stop.set()
        await task

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        async with following(first_retry=60, longest_retry=900):
            await until(lambda: connections == 1)
            await asyncio.sleep(0.5)
            assert connections == 1
        async with following(first_retry=0.02, longest_retry=0.05):
            # With doubling, the twelfth would be after a minute.
            await until(lambda: connections >= 13)


# --- hooks -----------------------------------------------------------------------------------------------------------
