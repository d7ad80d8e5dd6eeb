"""The relay: empties the outbox through the smarthost.

One process at a time relays (a kernel lock says which; another takes over when it ends). Due recipients of one message
go in one transaction. Answers are per recipient: done; tried again after a growing pause; or given up, and then the
sender's report and the removal of the row are one commit. Where no report can be made the row is not removed: it is
tried again, and then reported, later.

Delivery is at least once. Between the smarthost's answer and our commit lies a moment in which a crash makes the same
message go out again: the other order would lose it. For the same reason a row whose outcome cannot be committed (a full
disk) stays claimed until it can.
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
from adapter.relay.message_source import Outgoing
from adapter.relay.replies import Answer, Verdict
from adapter.relay.smarthost import Smarthost, Unreachable, unreadable
from adapter.store import locks
from adapter.store.disk import Directories
from adapter.store.journal import Record
from adapter.store.queries import outbox
from adapter.store.queries.outbox import QueueRow
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

_TAKE_OVER = 2.0  # seconds between looks whether the process that relays has ended
_COOL_DOWN = 2.0  # so long no other connection is tried after one that failed
_NEWS = {"enqueue", "queue-update"}
_NOBODY = {Reason.NO_SUCH_ADDRESS, Reason.INACTIVE_ADDRESS, Reason.NO_SUCH_FOLDER}
_LONGEST_PAUSE = 60.0
_AFTER_TROUBLE = 5.0

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
    """Relay until ``stop`` is set, then finish what is under way, for so many seconds at most.

    What is not finished then, or when this is cancelled, is left for the next to run.
    """
    if not settings.host:
        return
    with contextlib.closing(Directories(transport.root)) as directories:
        while not stop.is_set():
            with locks.duty_lock(directories, "relay") as ours:
                if ours:
                    await _Relay(transport, settings, stop, hostname or socket.gethostname(), clock).run(drain)
                    return
            await _wait(stop, _TAKE_OVER)


class _NoReport(Exception):  # noqa: N818 - a signal inside this module
    """What is to be reported cannot be put into a message."""


class _Work(NamedTuple):
    """One transaction: some recipients of one message."""

    rows: list[QueueRow]
    message: Outgoing


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
        self._claimed: set[str] = set()  # queue ids under way
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[Smarthost] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._down: tuple[float, Answer] | None = None  # until when (monotonic), and why

    # --- what to do next -------------------------------------------------------------------------------------------

    async def run(self, drain: float | None) -> None:
        news = await asyncio.to_thread(self._transport.changes.subscribe, self._heard, None, self._missed)
        stopping = asyncio.ensure_future(self._stop.wait())
        stopping.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    pause = await self._start_due()
                except (MailError, OSError, sqlite3.Error) as error:
                    _log.error("the outbox cannot be read, it is tried again: %s", error)
                    pause = _AFTER_TROUBLE
                self._close_idle(self._settings.idle)
                await _wait(self._wake, min(pause, self._settings.idle) if self._idle else pause)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=drain)
        finally:
            news.close()
            stopping.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._close_idle(0.0)
            await asyncio.gather(*self._closing)

    def _heard(self, records: list[Record]) -> None:
        """On the change feed's thread: mail was queued, or somebody wants it tried now."""
        if any(effect["do"] in _NEWS for record in records for effect in record.effects):
            self._loop.call_soon_threadsafe(self._wake.set)

    def _missed(self, after: int, upto: int) -> None:
        self._loop.call_soon_threadsafe(self._wake.set)

    async def _start_due(self) -> float:
        """Start as many transactions as there is room for; returns how long nothing else will be due."""
        room = self._settings.connections - len(self._tasks)
        if room <= 0:
            return _LONGEST_PAUSE  # the end of a transaction wakes us
        now = self._clock()
        works, following = await asyncio.to_thread(self._find_due, int(now), room, frozenset(self._claimed))
        for work in works:
            self._claimed.update(row.queue_id for row in work.rows)
            task = asyncio.create_task(self._carry(work))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return _LONGEST_PAUSE if following is None else min(max(following - now, 0.0), _LONGEST_PAUSE)

    def _find_due(self, now: int, room: int, claimed: frozenset[str]) -> tuple[list[_Work], int | None]:
        works: dict[str, _Work] = {}
        with self._transport.reading() as connection:
            following = outbox.next_due(connection, now)
            for first in outbox.due(connection, now, len(claimed) + room * self._settings.recipients):
                if first.queue_id not in claimed and first.message_id not in works:
                    due = outbox.due_of(connection, first.message_id, now)
                    rows = [row for row in due if row.queue_id not in claimed][: self._settings.recipients]
                    works[first.message_id] = _Work(rows, Outgoing(self._transport, first.message_id, first.sender))
                    if len(works) == room:
                        break
        return list(works.values()), following

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("the relay failed unexpectedly", exc_info=task.exception())

    def _close_idle(self, longest: float) -> None:
        """Beside the rest: a smarthost may take its time to answer QUIT."""
        now = time.monotonic()
        over = [session for session in self._idle if now - session.idle_since >= longest]
        self._idle = [session for session in self._idle if session not in over]
        for session in over:
            task = asyncio.create_task(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    # --- one transaction -------------------------------------------------------------------------------------------

    async def _carry(self, work: _Work) -> None:
        try:
            session = self._idle.pop() if self._idle else Smarthost(self._settings, self._helo)
            try:
                told = await self._attempt(session, work)
            except BaseException:
                session.abort()
                raise
            if session.is_open:
                session.idle_since = time.monotonic()
                self._idle.append(session)
            await self._settle(work, told, session.offers_dsn)
        finally:
            self._claimed.difference_update(row.queue_id for row in work.rows)

    @property
    def _helo(self) -> str:
        return self._settings.helo or self._hostname

    async def _attempt(self, session: Smarthost, work: _Work) -> list[Answer]:
        try:
            nature = await work.message.examine()
            if session.is_open:
                try:
                    return await session.send(work.rows, work.message, nature)
                except Unreachable:
                    pass  # it was used before and is used up: a fresh one shall tell
            answer = self._known_down()
            if answer is None:
                await self._open(session)
                return await session.send(work.rows, work.message, nature)
        except Unreachable as trouble:
            answer = trouble.answer
        except (MailError, OSError) as error:
            answer = unreadable(error)
        except Exception as error:
            _log.exception("sending %s failed unexpectedly", work.rows[0].message_id)
            session.abort()
            answer = replies.later("4.3.0", f"internal error: {type(error).__name__}")
        return [answer] * len(work.rows)

    def _known_down(self) -> Answer | None:
        """With a long queue, a smarthost that does not answer is asked now and then, not for every message."""
        return self._down[1] if self._down is not None and time.monotonic() < self._down[0] else None

    async def _open(self, session: Smarthost) -> None:
        try:
            await session.open()
        except Unreachable as trouble:
            if self._down is None:
                _log.warning("%s", trouble)
            self._down = (time.monotonic() + min(_COOL_DOWN, self._settings.first_retry), trouble.answer)
            raise
        self._down = None

    # --- what becomes of it ----------------------------------------------------------------------------------------

    async def _settle(self, work: _Work, told: Sequence[Answer], offers_dsn: bool) -> None:
        now = self._clock()
        finished: list[op.Finished] = []
        requeued: list[op.Requeued] = []
        endings: list[Notice] = []
        delays: list[Notice] = []
        for row, answer in zip(work.rows, told, strict=True):
            if answer.verdict is Verdict.LATER and retry_policy.is_expired(row, now):
                answer = bounce.expiry(row, answer)
            _log_outcome(row, answer, self._settings.host)
            if answer.verdict is Verdict.FAILED:
                finished.append(op.Finished(row.queue_id, "failed", answer.text))
                endings.append(Notice(row, "FAILURE", answer))
            elif answer.verdict is Verdict.RELAYED:
                finished.append(op.Finished(row.queue_id, "relayed", answer.text))
                if not offers_dsn:  # RFC 3461 5.2.2: else the smarthost will tell
                    endings.append(Notice(row, "SUCCESS", answer))
            elif answer.verdict is Verdict.LATER:
                late = retry_policy.is_late(row, now, self._settings)
                if late:
                    delays.append(Notice(row, "DELAY", answer))
                requeued.append(self._requeue(row, answer, now, late))
        await asyncio.gather(
            self._end(finished, endings, now) if finished else _nothing(),
            self._postpone(requeued, delays) if requeued else _nothing(),
        )

    async def _end(self, finished: Sequence[op.Finished], notices: Sequence[Notice], now: float) -> None:
        if await self._commit(lambda report: op.FinishQueue(finished, report), notices):
            return
        # Who has the message has it, told or not. Failures that nobody is told of would be mail that is lost.
        untold = [notice for notice in _wanted(notices) if notice.event == "FAILURE"]
        again = [self._requeue(notice.row, _untold(notice.answer), now, late=False) for notice in untold]
        ids = {item.queue_id for item in again}
        if rest := [item for item in finished if item.queue_id not in ids]:
            await self._commit(lambda _: op.FinishQueue(rest))
        if again:
            await self._commit(lambda _: op.UpdateQueue(again))

    async def _postpone(self, requeued: Sequence[op.Requeued], notices: Sequence[Notice]) -> None:
        if not await self._commit(lambda report: op.UpdateQueue(requeued, report), notices):
            unwarned = {notice.row.queue_id for notice in notices}
            again = [replace(item, delay_warned=False) if item.queue_id in unwarned else item for item in requeued]
            await self._commit(lambda _: op.UpdateQueue(again))

    def _requeue(self, row: QueueRow, answer: Answer, now: float, late: bool) -> op.Requeued:
        attempts = row.attempts + 1
        row = row._replace(delay_warned=int(bool(row.delay_warned) or late))
        # The same for all recipients of a message: those that fail together are retried in one transaction.
        chance = random.Random(f"{row.message_id} {attempts}").random()  # noqa: S311 - no secret
        moment = retry_policy.next_attempt(row, attempts, now, self._settings, chance)
        return op.Requeued(row.queue_id, moment, attempts, answer.text, bool(row.delay_warned))

    async def _commit(
        self,
        operation: Callable[[op.QueueReport | None], op.FinishQueue | op.UpdateQueue],
        notices: Sequence[Notice] = (),
    ) -> bool:
        """Until it is done: to forget the outcome would be to send the message again. False: no report can be made.

        Trouble of the disk is waited for here: it keeps more mail from going out that could not be recorded either.
        """
        notices = _wanted(notices)
        pause = 1.0
        while True:
            try:
                report = await self._report(notices) if notices else None
                await self._transport.commit(operation(report))
                return True
            except _NoReport:
                _log.exception("%s: no report can be made", notices[0].row.message_id)
                return False
            except op.StaleReport:
                notices = await asyncio.to_thread(self._still_queued, notices)
                continue
            except (MailError, OSError) as error:
                if isinstance(error, MailError) and notices and not error.temporary:
                    if error.reason not in _NOBODY:
                        _log.error("%s: no report can be delivered: %s", notices[0].row.message_id, error)
                        return False
                    _log.warning("%s: nobody to report to: %s", notices[0].row.message_id, error)
                    notices = []
                    continue
                _log.error("an outcome cannot be recorded, it is tried again: %s", error)
            except Exception:
                _log.exception("an outcome cannot be recorded, it is tried again")
            await _wait(self._stop, pause)
            if self._stop.is_set():
                return True
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _still_queued(self, notices: Sequence[Notice]) -> list[Notice]:
        with self._transport.reading() as connection:
            rows = outbox.rows_of(connection, [notice.row.queue_id for notice in notices])
        ids = {row.queue_id for row in rows}
        return [notice for notice in notices if notice.row.queue_id in ids]

    async def _report(self, notices: Sequence[Notice]) -> op.QueueReport | None:
        try:
            report = await asyncio.to_thread(bounce.stage, self._transport, self._hostname, notices, self._clock())
        except (MailError, OSError):
            raise
        except Exception as error:  # of this message: another attempt right now would end in the same way
            raise _NoReport from error
        if report is None:
            _log.warning("%s: nobody to report to", notices[0].row.message_id)
        return report


async def _nothing() -> None:
    return


def _untold(answer: Answer) -> Answer:
    return replace(answer, text=f"{answer.text} (the sender could not be told)")


def _wanted(notices: Sequence[Notice]) -> list[Notice]:
    return [notice for notice in notices if bounce.is_wanted(notice.row, notice.event)]


def _log_outcome(row: QueueRow, answer: Answer, host: str) -> None:
    RELAYED.of(answer.verdict.value).add()
    level = logging.INFO if answer.verdict in (Verdict.RELAYED, Verdict.AGAIN) else logging.WARNING
    words = (row.queue_id, row.message_id, row.sender, row.recipient, host, answer.verdict.value, answer.text)
    _log.log(level, "%s: %s from=<%s> to=<%s> relay=%s: %s (%s)", *words)
    if answer.verdict is Verdict.FAILED and not row.sender:
        _log.warning("%s: undeliverable, and has the null sender: nobody is told", row.queue_id)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
