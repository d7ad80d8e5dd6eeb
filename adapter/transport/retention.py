"""Retention: erase deleted content after the configured time, and delete old messages from folders that expire.

One process of a store does this at a time, in small batches with pauses, so that mail is not held up. Each batch is an
ordinary commit: a crash between two batches loses nothing, and the next run continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from adapter.store import locks
from adapter.store.disk import Directories
from adapter.store.effects import Actor
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError

_log = logging.getLogger(__name__)

ACTOR = Actor("", "retention")
INTERVAL_SECONDS = 3600.0
_FIRST_RUN_SECONDS = 60.0  # after the start, which has other work to do
_TAKE_OVER_SECONDS = 60.0
_BATCH_MESSAGES = 200
_IDLE_SHARE = 4  # a pause is this many times as long as the batch before it


@dataclass(frozen=True, slots=True)
class RetentionRules:
    deleted_seconds: float  # content that no folder shows is kept this long; 0: forever
    expire_seconds: Mapping[str, float]  # folder or special use -> age at which its messages are deleted

    @property
    def is_active(self) -> bool:
        return bool(self.deleted_seconds) or any(self.expire_seconds.values())

    def expiry_of(self, folder: Folder) -> float:
        """The age at which messages of this folder are deleted; 0: never."""
        by_name = {name.casefold(): seconds for name, seconds in self.expire_seconds.items()}
        return by_name.get(folder.name.casefold()) or by_name.get(folder.special_use.lstrip("\\").casefold()) or 0.0


@dataclass(slots=True)
class RetentionResult:
    erased: int = 0  # messages without a folder that lost their content
    expired: int = 0  # messages deleted from a folder because of their age


async def run(
    transport: Transport, rules: RetentionRules, stop: asyncio.Event, *, first_run: float = _FIRST_RUN_SECONDS
) -> None:
    """Apply the rules every hour until ``stop`` is set. A process that is not the holder of the duty waits for it."""
    if not rules.is_active:
        return
    with contextlib.closing(Directories(transport.root)) as directories:
        await _wait(stop, first_run)
        while not stop.is_set():
            with locks.duty_lock(directories, "retention") as is_holder:
                while is_holder and not stop.is_set():
                    await _run_once(transport, rules, stop)
                    await _wait(stop, INTERVAL_SECONDS)
            await _wait(stop, _TAKE_OVER_SECONDS)


async def _run_once(transport: Transport, rules: RetentionRules, stop: asyncio.Event) -> None:
    try:
        result = await apply_rules(transport, rules, stop)
    except (MailError, OSError, sqlite3.Error) as error:
        _log.error("retention: interrupted (%s); continuing in %.0f s", error, INTERVAL_SECONDS)
        return
    if result.erased or result.expired:
        _log.info("retention: %d messages expired, content of %d erased", result.expired, result.erased)


async def apply_rules(
    transport: Transport,
    rules: RetentionRules,
    stop: asyncio.Event,
    clock: Callable[[], float] = time.time,
) -> RetentionResult:
    """Delete expired messages, then erase content that was kept long enough; ``stop`` ends it between two batches."""
    result = RetentionResult()
    now = clock()
    for address, folder, seconds in await asyncio.to_thread(_expiring_folders, transport, rules):
        while not stop.is_set():
            began = time.monotonic()
            expired = await transport.commit(op.Expire(address, folder, int(now - seconds), _BATCH_MESSAGES), ACTOR)
            result.expired += expired
            if expired < _BATCH_MESSAGES:
                break
            await _wait(stop, (time.monotonic() - began) * _IDLE_SHARE)
    while rules.deleted_seconds and not stop.is_set():
        began = time.monotonic()
        erased = await transport.commit(op.Collect(int(now - rules.deleted_seconds), _BATCH_MESSAGES), ACTOR)
        result.erased += erased
        if erased < _BATCH_MESSAGES:
            break
        await _wait(stop, (time.monotonic() - began) * _IDLE_SHARE)
    return result


def _expiring_folders(transport: Transport, rules: RetentionRules) -> list[tuple[str, int, float]]:
    """(address, folder id, seconds) of the folders of active accounts that have an expiry."""
    if not any(rules.expire_seconds.values()):
        return []
    with transport.reading() as connection:
        return [
            (registration.address, folder.id, seconds)
            for registration in mailboxes.registrations(connection)
            if registration.status == "active"
            for folder in mailboxes.folders(connection, registration.id)
            if (seconds := rules.expiry_of(folder))
        ]


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
