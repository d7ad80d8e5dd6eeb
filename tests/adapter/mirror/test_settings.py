"""Settings of upstream accounts: each time limit takes effect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import Settings, UpstreamSettings
from adapter.mirror import follow
from adapter.mirror.limits import MirrorLimits
from adapter.mirror.session import UpstreamError
from adapter.store.quotas import Quotas
from adapter.transport.transport import Transport
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE, until

LIMITS = MirrorLimits(1 << 20, Quotas(Settings()))


def upstream(port: int, **changes: float) -> UpstreamSettings:
    times: dict[str, Any] = {name: Seconds(value) for name, value in changes.items()}
    return UpstreamSettings(
        host="127.0.0.1", port=port, tls="none", user="ada", password="x", account=ADA, follow=True, **times
    )


@pytest.mark.setting("upstream.timeout")
async def test_silent_upstream_times_out(transport: Transport) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENCE):
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UpstreamError):
            await follow.pull(transport, "work", upstream(port, timeout=0.3), LIMITS)


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
        task = asyncio.create_task(follow.run(transport, {"work": upstream(port, **times)}, LIMITS, stop))
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
