"""Pulling accounts of a Dovecot: what a test of it does again and again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from adapter.config.schema import Settings, UpstreamSettings
from adapter.mirror import follow
from adapter.mirror.folder_sync import PullResult
from adapter.mirror.limits import MirrorLimits
from adapter.store.quotas import Quotas
from adapter.transport.transport import Transport
from tests.support.processes.upstream import PASSWORD, Dovecot, contents
from tests.support.stores import ADA, rows
from tests.support.waiting import PATIENCE

LIMITS = MirrorLimits(50 << 20, Quotas(Settings()))
LARGE = b"Subject: large\r\n\r\n" + random.Random(5).randbytes(5 << 20).replace(b"\0", b"0").replace(
    b"\r", b"x"
).replace(b"\n", b"\r\n")


async def pull(transport: Transport, settings: UpstreamSettings) -> PullResult:
    return await follow.pull(transport, "work", settings, LIMITS)


@contextlib.asynccontextmanager
async def following(transport: Transport, settings: UpstreamSettings) -> AsyncIterator[None]:
    stop = asyncio.Event()
    upstreams = {"work": dataclasses.replace(settings, follow=True), "home": settings}  # the second is left alone
    task = asyncio.create_task(follow.run(transport, upstreams, LIMITS, stop))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await task


def here(transport: Transport, name: str = "INBOX") -> Counter[bytes]:
    return Counter(transport.content.octets(row.message_id) for row in rows(transport, name))


def there(dovecot: Dovecot, user: str, name: str = "INBOX") -> Counter[bytes]:
    with dovecot.session(user) as client:
        return Counter(contents(client, name).values())


def configure(dovecot: Dovecot, user: str, directory: Path, more: str = "") -> str:
    """The settings of an upstream, with a file for its password."""
    (directory / "secret").write_text(PASSWORD + "\n")
    return (
        f'host = "localhost"\nport = {dovecot.imap}\ntls = "none"\nuser = "{user}"\naccount = "{ADA}"\n'
        f'password_file = "{directory}/secret"\n{more}'
    )
