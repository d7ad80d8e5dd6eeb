"""The relay: send the outbox through the smarthost.

One process at a time relays: it holds a kernel lock, and another process takes over when it ends. Due recipients of one
message go in one transaction. Each recipient ends as relayed, retried with exponential back-off, or failed; the report
of a failure and the removal of its row are one commit. If no report can be made, the row is kept and retried later.

Delivery is at least once. A crash between the smarthost's reply and our commit sends the same message again: the other
order would lose it. For the same reason a row stays claimed until its result is committed, even while the disk is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from adapter.config.schema import RelaySettings
from adapter.observability.metrics import RELAYED
from adapter.relay import bounce, replies, retry_policy
from adapter.relay.bounce import Notice
from adapter.relay.message_source import OutgoingMessage
from adapter.relay.replies import RecipientReply, Verdict
from adapter.relay.smarthost import Smarthost, Unreachable, unreadable
from adapter.store import locks
from adapter.store.disk import Directories
from adapter.store.effects import Actor, Enqueue, Requeue
from adapter.store.journal import Record
from adapter.store.queries import outbox
from adapter.store.queries.outbox import QueueRow
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

_TAKE_OVER_SECONDS = 2.0  # between two attempts to take the lock of the relaying process
_COOL_DOWN_SECONDS = 2.0  # without a new connection after one that failed
_MAX_PAUSE_SECONDS = 60.0
_READ_RETRY_SECONDS = 5.0
_ACTOR = Actor("", "relay")
_NO_SENDER = {Reason.NO_SUCH_ADDRESS, Reason.INACTIVE_ADDRESS, Reason.NO_SUCH_FOLDER}

Clock = Callable[[], float]


async def run(
    transport: Transport,
    settings: RelaySettings,
    stop: asyncio.Event,
    *,
    hostname: str = "",
    drain: float | None = None,
    clock: Clock = time.time,
) -> None:
    """Relay until ``stop`` is set, then finish the open transactions, for ``drain`` seconds at most.

    Unfinished rows stay in the outbox for the next run.
    """
    if not settings.host:
        return
    with contextlib.closing(Directories(transport.root)) as directories:
        while not stop.is_set():
            with locks.duty_lock(directories, "relay") as is_holder:
                if is_holder:
                    await _Relay(transport, settings, stop, hostname or socket.gethostname(), clock).run(drain)
                    return
            await _wait(stop, _TAKE_OVER_SECONDS)


class _ReportFailed(Exception):  # noqa: N818 - a signal inside this module
    """The report cannot be composed."""


class _Batch(NamedTuple):
    """One transaction: some recipients of one message."""

    rows: list[QueueRow]
    message: OutgoingMessage


class _Relay:
    def __init__(
        self, transport: Transport, settings: RelaySettings, stop: asyncio.Event, hostname: str, clock: Clock
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._stop = stop
        self._hostname = hostname
        self._clock = clock
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._claimed: set[str] = set()  # queue ids in open transactions
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[Smarthost] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._down: tuple[float, RecipientReply] | None = None  # until when (monotonic), and why

    # --- scheduling ------------------------------------------------------------------------------------------------

    async def run(self, drain: float | None) -> None:
        changes = self._transport.changes
        subscription = await asyncio.to_thread(changes.subscribe, self._on_records, None, self._on_gap)
        stopping = asyncio.ensure_future(self._stop.wait())
        stopping.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    pause = await self._start_due()
                except (MailError, OSError, sqlite3.Error) as error:
                    _log.error("relay: cannot read the outbox (%s); retrying in %.0f s", error, _READ_RETRY_SECONDS)
                    pause = _READ_RETRY_SECONDS
                self._close_idle(self._settings.idle)
                await _wait(self._wake, min(pause, self._settings.idle) if self._idle else pause)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=drain)
        finally:
            subscription.close()
            stopping.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._close_idle(0.0)
            await asyncio.gather(*self._closing)

    def _on_records(self, records: list[Record]) -> None:
        """Wake up for new or rescheduled rows; runs on the change feed's thread."""
        if any(isinstance(effect, Enqueue | Requeue) for record in records for effect in record.effects):
            self._loop.call_soon_threadsafe(self._wake.set)

    def _on_gap(self, after: int, upto: int) -> None:
        self._loop.call_soon_threadsafe(self._wake.set)

    async def _start_due(self) -> float:
        """Start as many transactions as the limit allows; return the seconds until another row is due."""
        room = self._settings.connections - len(self._tasks)
        if room <= 0:
            return _MAX_PAUSE_SECONDS  # the end of a transaction wakes the loop
        now = self._clock()
        batches, next_due = await asyncio.to_thread(self._find_due, int(now), room, frozenset(self._claimed))
        for batch in batches:
            self._claimed.update(row.queue_id for row in batch.rows)
            task = asyncio.create_task(self._send(batch))
            self._tasks.add(task)
            task.add_done_callback(self._on_sent)
        return _MAX_PAUSE_SECONDS if next_due is None else min(max(next_due - now, 0.0), _MAX_PAUSE_SECONDS)

    def _find_due(self, now: int, room: int, claimed: frozenset[str]) -> tuple[list[_Batch], int | None]:
        batches: dict[str, _Batch] = {}
        with self._transport.reading() as connection:
            next_due = outbox.next_due(connection, now)
            for first in outbox.due(connection, now, len(claimed) + room * self._settings.recipients):
                if first.queue_id not in claimed and first.message_id not in batches:
                    due = outbox.due_of(connection, first.message_id, now)
                    rows = [row for row in due if row.queue_id not in claimed][: self._settings.recipients]
                    batches[first.message_id] = _Batch(
                        rows, OutgoingMessage(self._transport, first.message_id, first.sender)
                    )
                    if len(batches) == room:
                        break
        return list(batches.values()), next_due

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("relay: transaction failed; its rows stay queued", exc_info=task.exception())

    def _close_idle(self, max_idle: float) -> None:
        """Close idle connections in the background: a smarthost may be slow to reply to QUIT."""
        now = time.monotonic()
        expired = [session for session in self._idle if now - session.idle_since >= max_idle]
        self._idle = [session for session in self._idle if session not in expired]
        for session in expired:
            task = asyncio.create_task(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    # --- one transaction -------------------------------------------------------------------------------------------

    async def _send(self, batch: _Batch) -> None:
        try:
            session = self._idle.pop() if self._idle else Smarthost(self._settings, self._helo)
            try:
                results = await self._attempt(session, batch)
            except BaseException:
                session.abort()
                raise
            if session.is_open:
                session.idle_since = time.monotonic()
                self._idle.append(session)
            await self._record(batch, results, session.offers_dsn)
        finally:
            self._claimed.difference_update(row.queue_id for row in batch.rows)

    @property
    def _helo(self) -> str:
        return self._settings.helo or self._hostname

    async def _attempt(self, session: Smarthost, batch: _Batch) -> list[RecipientReply]:
        try:
            traits = await batch.message.measure()
            if session.is_open:
                try:
                    return await session.send(batch.rows, batch.message, traits)
                except Unreachable:
                    pass  # the connection was reused and is gone: try a new one
            reply = self._cool_down_reply()
            if reply is None:
                await self._open(session)
                return await session.send(batch.rows, batch.message, traits)
        except Unreachable as error:
            reply = error.reply
        except (MailError, OSError) as error:
            reply = unreadable(error)
        except Exception as error:
            _log.exception("%s: relaying failed; retrying later", batch.rows[0].message_id)
            session.abort()
            reply = replies.deferred("4.3.0", f"internal error: {type(error).__name__}")
        return [reply] * len(batch.rows)

    def _cool_down_reply(self) -> RecipientReply | None:
        """The error of the last connection for as long as no new one may be tried; None: connect."""
        return self._down[1] if self._down is not None and time.monotonic() < self._down[0] else None

    async def _open(self, session: Smarthost) -> None:
        try:
            await session.open()
        except Unreachable as error:
            if self._down is None:
                _log.warning("relay: %s; retrying", error)
            self._down = (time.monotonic() + min(_COOL_DOWN_SECONDS, self._settings.first_retry), error.reply)
            raise
        self._down = None

    # --- results ---------------------------------------------------------------------------------------------------

    async def _record(self, batch: _Batch, results: Sequence[RecipientReply], offers_dsn: bool) -> None:
        """Commit the result of each recipient, with the reports to the sender."""
        now = self._clock()
        finished: list[op.Finished] = []
        requeued: list[op.Requeued] = []
        final_notices: list[Notice] = []
        delay_notices: list[Notice] = []
        for row, reply in zip(batch.rows, results, strict=True):
            if reply.verdict is Verdict.DEFERRED and retry_policy.is_expired(row, now):
                reply = bounce.expired(row, reply)
            _log_result(row, reply, self._settings.host)
            if reply.verdict is Verdict.FAILED:
                finished.append(op.Finished(row.queue_id, "failed", reply.text))
                final_notices.append(Notice(row, "FAILURE", reply))
            elif reply.verdict is Verdict.RELAYED:
                finished.append(op.Finished(row.queue_id, "relayed", reply.text))
                if not offers_dsn:  # RFC 3461 5.2.2: otherwise the smarthost reports it
                    final_notices.append(Notice(row, "SUCCESS", reply))
            elif reply.verdict is Verdict.DEFERRED:
                is_late = retry_policy.is_late(row, now, self._settings)
                if is_late:
                    delay_notices.append(Notice(row, "DELAY", reply))
                requeued.append(self._requeue(row, reply, now, is_late))
        await asyncio.gather(
            self._finish(finished, final_notices, now) if finished else _nothing(),
            self._postpone(requeued, delay_notices) if requeued else _nothing(),
        )

    async def _finish(self, finished: Sequence[op.Finished], notices: Sequence[Notice], now: float) -> None:
        if await self._commit(lambda report: op.FinishQueue(finished, report), notices):
            return
        # Delivered recipients are done, reported or not. A failure without a report would be lost mail: retry it.
        unreported = [notice for notice in _requested(notices) if notice.event == "FAILURE"]
        requeued = [
            self._requeue(notice.row, _without_report(notice.reply), now, is_late=False) for notice in unreported
        ]
        ids = {item.queue_id for item in requeued}
        if rest := [item for item in finished if item.queue_id not in ids]:
            await self._commit(lambda _: op.FinishQueue(rest))
        if requeued:
            await self._commit(lambda _: op.UpdateQueue(requeued))

    async def _postpone(self, requeued: Sequence[op.Requeued], notices: Sequence[Notice]) -> None:
        if not await self._commit(lambda report: op.UpdateQueue(requeued, report), notices):
            ids = {notice.row.queue_id for notice in notices}
            unwarned = [replace(item, delay_warned=False) if item.queue_id in ids else item for item in requeued]
            await self._commit(lambda _: op.UpdateQueue(unwarned))

    def _requeue(self, row: QueueRow, reply: RecipientReply, now: float, is_late: bool) -> op.Requeued:
        attempts = row.attempts + 1
        row = row._replace(delay_warned=int(bool(row.delay_warned) or is_late))
        # The same pause for all recipients of a message, so that they are retried in one transaction.
        chance = random.Random(f"{row.message_id} {attempts}").random()  # noqa: S311 - no secret
        moment = retry_policy.next_attempt(row, attempts, now, self._settings, chance)
        return op.Requeued(row.queue_id, moment, attempts, reply.text, bool(row.delay_warned))

    async def _commit(
        self,
        operation: Callable[[op.QueueReport | None], op.FinishQueue | op.UpdateQueue],
        notices: Sequence[Notice] = (),
    ) -> bool:
        """Commit, retrying until it succeeds: a lost result would send the message again. False: no report can be made.

        Disk errors are waited out here: otherwise more mail would be sent without a record of its result.
        """
        notices = _requested(notices)
        pause = 1.0
        while True:
            try:
                report = await self._report(notices) if notices else None
                await self._transport.commit(operation(report), _ACTOR)
                return True
            except _ReportFailed:
                _log.exception("%s: cannot compose the report; retrying later", notices[0].row.message_id)
                return False
            except op.StaleReport:
                notices = await asyncio.to_thread(self._still_queued, notices)
                continue
            except (MailError, OSError) as error:
                if isinstance(error, MailError) and notices and not error.temporary:
                    if error.reason not in _NO_SENDER:
                        _log.error(
                            "%s: cannot deliver the report (%s); retrying later", notices[0].row.message_id, error
                        )
                        return False
                    _log.warning("%s: no sender to report to (%s)", notices[0].row.message_id, error)
                    notices = []
                    continue
                _log.error("relay: cannot record a result (%s); retrying in %.0f s", error, pause)
            except Exception:
                _log.exception("relay: cannot record a result; retrying in %.0f s", pause)
            await _wait(self._stop, pause)
            if self._stop.is_set():
                return True
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _still_queued(self, notices: Sequence[Notice]) -> list[Notice]:
        with self._transport.reading() as connection:
            rows = outbox.rows_of(connection, [notice.row.queue_id for notice in notices])
        ids = {row.queue_id for row in rows}
        return [notice for notice in notices if notice.row.queue_id in ids]

    async def _report(self, notices: Sequence[Notice]) -> op.QueueReport | None:
        try:
            report = await asyncio.to_thread(
                bounce.stage_report, self._transport, self._hostname, notices, self._clock()
            )
        except (MailError, OSError):
            raise
        except Exception as error:  # caused by this message: an immediate retry would fail in the same way
            raise _ReportFailed from error
        if report is None:
            _log.warning("%s: no sender to report to", notices[0].row.message_id)
        return report


async def _nothing() -> None:
    return


def _without_report(reply: RecipientReply) -> RecipientReply:
    return replace(reply, text=f"{reply.text} (could not report to the sender)")


def _requested(notices: Sequence[Notice]) -> list[Notice]:
    return [notice for notice in notices if bounce.is_requested(notice.row, notice.event)]


def _log_result(row: QueueRow, reply: RecipientReply, host: str) -> None:
    RELAYED.of(reply.verdict.value).add()
    level = logging.INFO if reply.verdict in (Verdict.RELAYED, Verdict.RETRY_NOW) else logging.WARNING
    fields = (row.queue_id, row.message_id, row.sender, row.recipient, host, reply.verdict.value, reply.text)
    _log.log(level, "%s: %s from=<%s> to=<%s> relay=%s: %s (%s)", *fields)
    if reply.verdict is Verdict.FAILED and not row.sender:
        _log.warning("%s: undeliverable with the null sender; no report", row.queue_id)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
