"""Settings of the relay: each time limit takes effect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import RelaySettings
from adapter.relay import retry_policy
from adapter.transport.transport import Transport
from tests.support.relays import relaying, send, settings, status_after_attempt
from tests.support.sink import Sink
from tests.support.waiting import until


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


@pytest.mark.setting("relay.connect")
async def test_silent_smarthost_times_out(transport: Transport) -> None:
    async with talking() as mute:
        assert "cannot connect" in await status_after_attempt(transport, settings(mute, connect=Seconds(0.2)))


@pytest.mark.setting("relay.accept")
async def test_smarthost_without_a_final_reply_times_out(transport: Transport) -> None:
    ready = b"250 ok\r\n"
    async with talking(b"220 hello\r\n", ready, ready, ready, b"354 go\r\n") as mute:
        chosen = settings(mute, accept=Seconds(0.3), first_retry=Seconds(60), longest_retry=Seconds(60))
        assert "while sending the data" in await status_after_attempt(transport, chosen)


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
