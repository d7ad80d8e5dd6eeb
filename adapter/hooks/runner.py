"""Hook runner: calls commands and URLs for new mail, at least once for each message.

Every hook reads the change feed at its own pace, from its *cursor* on. If a call fails, a retry is recorded in the same
commit that moves the cursor, so a failing message delays no other message, and a failing hook delays no other hook.
Cursor and retries are bookmarks of the store and survive a crash; an event delivered but not yet recorded is delivered
again. If the journal no longer reaches back to the cursor, the index supplies the messages since.

One process at a time runs the hooks: it holds a kernel lock, and another takes over when it ends. Deliveries never wait
for a hook.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sqlite3
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from adapter.config.schema import HookSettings
from adapter.hooks import call
from adapter.hooks.call import HookFailed
from adapter.hooks.event import new_mail_event
from adapter.hooks.filter import Filter
from adapter.read_model.stored_messages import StoredMessages
from adapter.read_model.thread_pool import ThreadPool
from adapter.store import locks
from adapter.store.disk import Directories
from adapter.store.effects import Actor
from adapter.store.queries import bookmarks, text_search
from adapter.transport import operations as op
from adapter.transport.changes import Arrival, Gap, new_mail
from adapter.transport.transport import Transport
from protocol.errors import MailError

_log = logging.getLogger(__name__)

_ACTOR = Actor("", "hooks")

_TAKE_OVER_SECONDS = 2.0  # interval of the check whether the process that runs the hooks has ended
_STORE_ERROR_SECONDS = 5.0  # pause after an error of the store
_MAX_PAUSE_SECONDS = 60.0
_SAVE_INTERVAL_RECORDS = 1000  # of records without mail for the hook
_READ_THREADS = 2
_IDLE_THREAD_SECONDS = 120.0  # after which a thread frees its memory
_CURSOR = "cursor"
_RETRY = "retry"


def create_cursors(transport: Transport, hooks: Iterable[str]) -> None:
    """Create the cursors of new hooks at the end of the journal; others keep theirs. Raises MailError."""
    for name in hooks:
        now = f"{transport.index.applied_seq()} {time.time_ns() // 1000}"
        transport.run(op.SetBookmarks(_owner(name), {_CURSOR: now}, missing_only=True), _ACTOR)


async def run(transport: Transport, hooks: Mapping[str, HookSettings], stop: asyncio.Event) -> None:
    """Run the hooks until ``stop`` is set, then finish the calls in progress; if cancelled, they are repeated later."""
    if not hooks:
        return
    with contextlib.closing(Directories(transport.root)) as directories:
        while not stop.is_set():
            with locks.duty_lock(directories, "hooks") as ours:
                if ours:
                    await _run_all(transport, hooks, stop)
                    return
            await _wait(stop, _TAKE_OVER_SECONDS)


async def _run_all(transport: Transport, hooks: Mapping[str, HookSettings], stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    threads = ThreadPool("hooks", _READ_THREADS, lambda: _shrink_memory(transport), _IDLE_THREAD_SECONDS)
    reader = StoredMessages(transport, threads)
    runners = [_Hook(transport, reader, name, settings, stop) for name, settings in hooks.items()]

    def wake(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_set_all, [runner.wake for runner in runners])

    subscription = await asyncio.to_thread(transport.changes.subscribe, wake, None, wake)
    stopping = asyncio.ensure_future(stop.wait())
    stopping.add_done_callback(lambda _: _set_all([runner.wake for runner in runners]))
    try:
        async with asyncio.TaskGroup() as tasks:
            for runner in runners:
                tasks.create_task(runner.run())
    finally:
        subscription.close()
        stopping.cancel()
        await asyncio.to_thread(threads.close)


def _shrink_memory(transport: Transport) -> None:
    with contextlib.suppress(sqlite3.Error):
        transport.index.ask(text_search.shrink_memory)


class Retry(NamedTuple):
    """A message to call the hook for again; times are seconds since the epoch."""

    arrival: Arrival
    attempts: int
    due: float
    since: int

    @property
    def item(self) -> str:
        return f"{_RETRY} {self.arrival.folder:x} {self.arrival.uid} {self.arrival.message_id}"

    @property
    def value(self) -> str:
        arrival = self.arrival
        return f"{self.attempts} {int(self.due)} {self.since} {arrival.registration} {arrival.folder_name}"

    @classmethod
    def decode(cls, item: str, value: str) -> Retry:
        _, folder, uid, message_id = item.split(" ")
        attempts, due, since, registration, name = value.split(" ", 4)
        arrival = Arrival(registration, int(folder, 16), name, int(uid), message_id)
        return cls(arrival, int(attempts), int(due), int(since))


class _Hook:
    """The runner of one hook."""

    def __init__(
        self, transport: Transport, reader: StoredMessages, name: str, settings: HookSettings, stop: asyncio.Event
    ) -> None:
        self._transport = transport
        self._messages = reader
        self._name = name
        self._settings = settings
        self._stop = stop
        self._owner = _owner(name)
        self._filter = Filter(reader, settings)
        self._reader = transport.changes.reader(0)
        self._ahead: deque[tuple[int, int, list[Arrival]]] = deque()  # read-ahead: seq, time, new mail
        self._cursor = (0, 0)  # seq and time (microseconds) of the last processed record
        self._saved = 0  # seq of the saved cursor
        self._retries: dict[str, Retry] = {}
        self._failures = 0  # consecutive
        self._not_before = 0.0
        self._slots = asyncio.Semaphore(settings.concurrency)
        self.wake = asyncio.Event()

    async def run(self) -> None:
        is_loaded = False
        while not self._stop.is_set():
            self.wake.clear()
            try:
                if not is_loaded:
                    await asyncio.to_thread(self._load)
                    is_loaded = True
                has_called = await self._retry_due() or await self._call_new()
                pause = 0.0 if has_called else self._pause()
            except (MailError, OSError, sqlite3.Error) as error:
                _log.error("hook %s: cannot read or write the store (%s); retrying", self._name, error)
                is_loaded, pause = False, _STORE_ERROR_SECONDS  # reload the saved cursor
            except Exception:
                _log.exception("hook %s: unexpected error; retrying", self._name)
                is_loaded, pause = False, _STORE_ERROR_SECONDS
            if pause:
                await _wait(self.wake, pause)
        if is_loaded:
            with contextlib.suppress(MailError):
                await self._save({})

    def _load(self) -> None:
        create_cursors(self._transport, [self._name])
        with self._transport.reading() as connection:
            saved = bookmarks.of_owner(connection, self._owner)
        seq, at = saved.pop(_CURSOR).split(" ")
        self._cursor = (int(seq), int(at))
        self._saved = self._cursor[0]
        self._retries = {item: Retry.decode(item, value) for item, value in saved.items()}
        self._reader = self._transport.changes.reader(self._cursor[0])
        self._ahead.clear()

    @property
    def _position(self) -> str:
        return f"{self._cursor[0]} {self._cursor[1]}"

    def _pause(self) -> float:
        now = time.time()
        due = [retry.due for retry in self._retries.values()]
        if self._not_before > now:
            due.append(self._not_before)
        return min(max(min(due, default=now + _MAX_PAUSE_SECONDS) - now, 0.01), _MAX_PAUSE_SECONDS)

    async def _save(self, retries: Mapping[str, str | None]) -> None:
        await self._transport.commit(op.SetBookmarks(self._owner, {**retries, _CURSOR: self._position}), _ACTOR)
        self._saved = self._cursor[0]

    # --- new mail ----------------------------------------------------------------------------------------------------

    async def _call_new(self) -> bool:
        """Call the hook for the next messages; False if there are none, or during the back-off."""
        if time.time() < self._not_before:
            return False
        try:
            if not self._ahead and not await asyncio.to_thread(self._read):
                return False
        except Gap as gap:
            await self._catch_up(gap)
            return True
        arrivals: list[Arrival] = []
        cursor = self._cursor
        while self._ahead and len(arrivals) < self._settings.concurrency:
            seq, at, batch = self._ahead.popleft()
            cursor = (seq, at)
            arrivals += [each for each in batch if await self._filter.accepts(each)]
        retries = await self._deliver(arrivals)
        self._cursor = cursor
        if arrivals or self._cursor[0] - self._saved >= _SAVE_INTERVAL_RECORDS:
            await self._save_until_done(retries)
        return True

    def _read(self) -> bool:
        before = self._reader.seq
        for record in self._reader.read():
            self._ahead.append((record.seq, record.at, list(new_mail(record))))
        if self._reader.seq > before and (not self._ahead or self._ahead[-1][0] < self._reader.seq):
            self._ahead.append((self._reader.seq, self._cursor[1], []))  # rolled-back records count as read
        return self._reader.seq > before

    async def _catch_up(self, gap: Gap) -> None:
        """Call the hook for the mail since the cursor by the index, because the journal does not reach back."""
        _log.warning("hook %s: %s; catching up from the index", self._name, gap)
        since = self._cursor[1] // 1_000_000
        self._ahead.clear()
        position = (gap.upto, time.time_ns() // 1000)
        for folder in await self._filter.folders():
            after = 0
            while arrivals := await self._filter.since(folder, after, since):
                if self._stop.is_set():
                    self._reader = self._transport.changes.reader(self._cursor[0])
                    return  # without moving the cursor
                await self._save_until_done(await self._deliver(arrivals))
                after = arrivals[-1].uid
        self._cursor = position
        await self._save_until_done({})

    async def _deliver(self, arrivals: Sequence[Arrival]) -> dict[str, str | None]:
        """Call the hook for these messages; return the bookmarks of retries for failed calls."""
        successes = await self._call_all(arrivals)
        now = time.time()
        retries: dict[str, str | None] = {}
        for arrival in (each for each, success in zip(arrivals, successes, strict=True) if not success):
            retry = Retry(arrival, 1, now + self._delay(1), int(now))
            self._retries[retry.item] = retry
            retries[retry.item] = retry.value
        if any(successes):
            self._failures = 0
        elif successes:
            self._failures += 1
            self._not_before = now + self._delay(self._failures)
        return retries

    # --- retries -----------------------------------------------------------------------------------------------------

    async def _retry_due(self) -> bool:
        now = time.time()
        due = sorted((retry for retry in self._retries.values() if retry.due <= now), key=lambda retry: retry.due)
        due = due[: self._settings.concurrency]
        if not due:
            return False
        successes = await self._call_all([retry.arrival for retry in due])
        retries: dict[str, str | None] = {}
        for retry, success in zip(due, successes, strict=True):
            now = time.time()
            if not success and (not self._settings.give_up or now - retry.since < self._settings.give_up):
                attempts = retry.attempts + 1
                again = retry._replace(attempts=attempts, due=now + self._delay(attempts))
                self._retries[retry.item] = again
                retries[retry.item] = again.value
                continue
            if not success:
                _log.error("hook %s: giving up on %s", self._name, retry.arrival.message_id)
            del self._retries[retry.item]
            retries[retry.item] = None
        if any(successes):
            self._failures, self._not_before = 0, 0.0
        await self._save_until_done(retries)
        return True

    def _delay(self, attempts: int) -> float:
        pause = min(self._settings.first_retry * 2.0 ** min(attempts - 1, 32), self._settings.longest_retry)
        return pause * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not security

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _call_all(self, arrivals: Iterable[Arrival]) -> list[bool]:
        outcomes = await asyncio.gather(*(self._call(each) for each in arrivals), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome is True for outcome in outcomes]

    async def _call(self, arrival: Arrival) -> bool:
        async with self._slots:
            header = await self._messages.header(arrival.message_id)
            account = await self._filter.address(arrival.registration)
            if header is None or account is None:
                return True  # deleted or rolled back
            event = new_mail_event(self._transport.root, self._name, account, arrival, header)
            try:
                await call.call(self._settings, event)
            except HookFailed as error:
                _log.warning("hook %s: %s: %s", self._name, arrival.message_id, error)
                return False
            _log.info("hook %s: delivered %s", self._name, arrival.message_id)
            return True

    async def _save_until_done(self, retries: Mapping[str, str | None]) -> None:
        """Persist the cursor, retrying until it succeeds, so that a transient write error does not repeat a call."""
        while True:
            try:
                await self._save(retries)
                return
            except MailError as error:
                if self._stop.is_set():
                    raise
                _log.error("hook %s: cannot save the cursor (%s); retrying", self._name, error)
                await _wait(self._stop, _STORE_ERROR_SECONDS)


def _owner(name: str) -> str:
    return f"hook {name}"


def _set_all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        event.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
