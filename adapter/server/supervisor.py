"""Supervisor: several processes that serve one store. It forks the workers, restarts crashed ones, and ends them.

The supervisor opens no store and runs no thread: it forks, watches and signals. A worker inherits the listening sockets
and shares them with the others. It reports (ready, heartbeat, reloaded) over a socket pair, by which it also notices
the end of the supervisor.

Invariants: a worker outlives its supervisor only for as long as it takes to finish what is in flight; a worker that
exits is restarted, with exponential back-off if it exits early; a worker without a heartbeat is killed: after seconds
if it is stopped, or hangs while it holds a lock that other workers wait for, else after a minute; shutdown takes a
bounded time, whatever workers do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from adapter.config.loader import ConfigError
from adapter.net.tls import TlsError
from adapter.observability import logging as logs
from adapter.server.process_state import read_process_state
from adapter.server.service_manager import StatusReporter
from protocol.errors import MailError

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
_HEARTBEAT_TIMEOUT_SECONDS = 60.0
_STOPPED_SECONDS = 5.0  # without a heartbeat, until a stopped worker is killed
_HUNG_SECONDS = 8.0  # until a worker is killed that holds the index lock and uses no processor time
_STANDSTILL_SECONDS = 2.0  # without processor time, for a worker to count as hung
_EARLY_EXIT_SECONDS = 5.0  # a worker that exits within this time is restarted with back-off
_MIN_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 30.0
_COMMIT_SECONDS = 10.0  # for the store's last commits, beyond the time workers take for their sessions
_MAX_MESSAGE_BYTES = 4096
_MAX_TEXT_BYTES = 1000
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

_READY, _ALIVE, _RELOADED, _STATUS, _FAILED = b"ready", b"alive", b"reloaded", b"status ", b"failed "


class WorkerChannel(StatusReporter):
    """A worker's end of the socket pair: reports to the supervisor, and notices its end."""

    def __init__(self, number: int, end: socket.socket, max_close_seconds: Callable[[], float]) -> None:
        self.number = number
        self._end = end
        self._max_close_seconds = max_close_seconds

    def watch_supervisor(self) -> None:
        """End the process when the supervisor has gone."""
        threading.Thread(target=self._exit_after_supervisor, name="markpost-parent", daemon=True).start()

    def _exit_after_supervisor(self) -> None:
        """Run on a thread, because a hanging event loop must not keep the process alive."""
        with contextlib.suppress(OSError):
            self._end.recv(1)
        _log.error("supervisor gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._max_close_seconds() + _COMMIT_SECONDS)
        os._exit(1)

    def ready(self) -> None:
        self._send(_READY)

    def alive(self) -> None:
        self._send(_ALIVE)

    def reloaded(self) -> None:
        self._send(_RELOADED)

    def status(self, text: str) -> None:
        self._send(_STATUS + text.encode()[:_MAX_TEXT_BYTES])

    def failed(self, text: str) -> None:
        """Report that the worker cannot start."""
        self._send(_FAILED + text.encode()[:_MAX_TEXT_BYTES])

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self._end.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


@dataclass(slots=True)
class WorkerSlot:
    """One worker of the configured number, running or about to be started."""

    number: int
    process: int = 0  # 0: not running
    end: socket.socket | None = None
    started_at: float = 0.0
    silence: float = 0.0  # seconds since the last heartbeat, as far as the supervisor was running
    ticks: int = -1  # processor time when it last increased
    ticks_at: float = 0.0  # silence at that moment
    is_ready: bool = False
    early_exits: int = 0  # in a row
    start_at: float = 0.0  # the earliest time for the next start


class Supervisor:
    """Forks, watches and ends the workers. ``work`` runs in a worker's process until the worker shall exit."""

    def __init__(
        self,
        count: int,
        work: Callable[[WorkerChannel], None],
        reporter: StatusReporter,
        *,
        close_listeners: Callable[[], None],
        on_exit: Callable[[int], None],
        max_close_seconds: Callable[[], float],
        holds_lock: Callable[[int], bool] = lambda _: False,
        heartbeat_timeout: float = _HEARTBEAT_TIMEOUT_SECONDS,
        stopped: float = _STOPPED_SECONDS,
        hung: float = _HUNG_SECONDS,
    ) -> None:
        self._work = work
        self._reporter = reporter
        self._close_listeners = close_listeners
        self._on_exit = on_exit
        self._max_close_seconds = max_close_seconds
        self._holds_lock = holds_lock
        self._heartbeat_timeout = heartbeat_timeout
        self._stopped = stopped
        self._hung = hung
        self._ticked_at = time.monotonic()
        self._slots = [WorkerSlot(number) for number in range(count)]
        self._selector = selectors.DefaultSelector()
        self._pending_signals: set[int] = set()
        self._was_ready = False
        self._reloading: set[int] = set()  # slots that have not reported the end of a reload
        self._deadline: float | None = None  # of the shutdown; None: serving
        self._start_error = ""  # why the first workers could not start

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT. Raises ConfigError with a worker's error if the first ones fail."""
        with self._signals():
            while self._deadline is None or any(slot.process for slot in self._slots):
                if self._deadline is None:
                    self._start_workers()
                self._receive_messages()
                self._handle_signals()
                self._reap_workers()
                self._check_heartbeats()
        if self._start_error:
            raise ConfigError(self._start_error)
        _log.info("supervisor: all workers have exited")

    # --- signals -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        waker, woken = socket.socketpair()
        waker.setblocking(False)
        woken.setblocking(False)
        self._selector.register(woken, selectors.EVENT_READ)
        previous_handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        previous_waker = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_waker)
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
            self._selector.close()
            waker.close()
            woken.close()

    def _on_signal(self, number: int, frame: object) -> None:
        self._pending_signals.add(number)

    def _handle_signals(self) -> None:
        pending, self._pending_signals = self._pending_signals, set()
        if pending & {signal.SIGTERM, signal.SIGINT}:
            self._shut_down()
        elif signal.SIGHUP in pending and self._deadline is None:
            self._reporter.reloading()
            self._reloading = {slot.number for slot in self._slots if slot.is_ready}
            self._signal_workers(signal.SIGHUP)

    def _shut_down(self) -> None:
        if self._deadline is None:
            _log.info("supervisor: stopping %d workers", len(self._slots))
            self._reporter.stopping()
            self._close_listeners()
            self._signal_workers(signal.SIGTERM)
            self._deadline = time.monotonic() + self._max_close_seconds() + _COMMIT_SECONDS

    def _signal_workers(self, number: int) -> None:
        for slot in self._slots:
            if slot.process:
                os.kill(slot.process, number)

    # --- starting ----------------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        for slot in self._slots:
            if not slot.process and time.monotonic() >= slot.start_at:
                self._start(slot)

    def _start(self, slot: WorkerSlot) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # Block signals over the fork: one for the worker must not reach our handlers before it has its own.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process = os.fork()
        except OSError as error:
            _log.error(
                "worker %d: cannot fork (%s); retrying in %.1f s", slot.number, error.strerror, _MAX_BACKOFF_SECONDS
            )
            process = -1
        if process == 0:
            for other in self._slots:
                if other.end is not None:
                    other.end.close()  # else the other workers would not notice the end of the supervisor
            ours.close()
            self._run_worker(WorkerChannel(slot.number, theirs, self._max_close_seconds), blocked)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
        if process < 0:
            ours.close()
            slot.start_at = time.monotonic() + _MAX_BACKOFF_SECONDS
            return
        slot.process, slot.end, slot.is_ready = process, ours, False
        slot.started_at, slot.silence, slot.ticks = time.monotonic(), 0.0, -1
        self._selector.register(ours, selectors.EVENT_READ, slot)

    def _run_worker(self, channel: WorkerChannel, blocked: Iterable[int]) -> None:
        """Run a worker in the forked process; never returns."""
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            self._selector.close()
            channel.watch_supervisor()
            self._work(channel)
            status = 0
        except (MailError, ConfigError, TlsError) as error:
            channel.failed(str(error))
            status = 1
        except BaseException:
            _log.exception("worker %d: unexpected error; exiting", channel.number)
        finally:
            logs.flush()
            os._exit(status)  # without the exit handlers of the supervisor's process

    # --- messages ----------------------------------------------------------------------------------------------------

    def _receive_messages(self) -> None:
        starts = [slot.start_at for slot in self._slots if not slot.process] if self._deadline is None else []
        timeout = min([_TICK_SECONDS, *(max(0.0, moment - time.monotonic()) for moment in starts)])
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(_MAX_MESSAGE_BYTES)  # type: ignore[union-attr]
            else:
                self._receive(key.data)

    def _receive(self, slot: WorkerSlot) -> None:
        while slot.end is not None:
            try:
                message = slot.end.recv(_MAX_MESSAGE_BYTES)
            except (BlockingIOError, ConnectionError):
                return
            if not message:
                self._close_channel(slot)
                return
            slot.silence, slot.ticks = 0.0, -1
            if message == _READY:
                slot.is_ready = True
                if not self._was_ready and all(each.is_ready for each in self._slots):
                    self._was_ready = True
                    self._reporter.ready()
            elif message == _RELOADED:
                self._on_reloaded(slot.number)
            elif message.startswith(_STATUS):
                self._reporter.status(message.removeprefix(_STATUS).decode("utf-8", "replace"))
            elif message.startswith(_FAILED):
                self._on_failed(slot.number, message.removeprefix(_FAILED).decode("utf-8", "replace"))

    def _close_channel(self, slot: WorkerSlot) -> None:
        if slot.end is not None:
            self._selector.unregister(slot.end)
            slot.end.close()
            slot.end = None

    def _on_reloaded(self, number: int) -> None:
        if number in self._reloading:
            self._reloading.discard(number)
            if not self._reloading:
                self._reporter.reloaded()

    def _on_failed(self, number: int, text: str) -> None:
        if self._was_ready:
            _log.error("worker %d: cannot start: %s", number, text)
        else:  # an error in the configuration: report it once instead of retrying
            self._start_error = self._start_error or text
            self._shut_down()

    # --- watching ----------------------------------------------------------------------------------------------------

    def _reap_workers(self) -> None:
        for slot in self._slots:
            if not slot.process:
                continue
            process, status = os.waitpid(slot.process, os.WNOHANG)
            if process:
                self._receive(slot)
                self._close_channel(slot)
                slot.process, slot.is_ready = 0, False
                self._on_exit(slot.number)
                self._on_reloaded(slot.number)
                if self._deadline is None:
                    self._schedule_restart(slot, status)

    def _schedule_restart(self, slot: WorkerSlot, status: int) -> None:
        now = time.monotonic()
        slot.early_exits = slot.early_exits + 1 if now - slot.started_at < _EARLY_EXIT_SECONDS else 0
        exponent = slot.early_exits - 1
        pause = min(_MIN_BACKOFF_SECONDS * 2.0**exponent, _MAX_BACKOFF_SECONDS) if slot.early_exits else 0.0
        slot.start_at = now + pause
        code = os.waitstatus_to_exitcode(status)
        cause = f"signal {-code}" if code < 0 else f"status {code}"
        _log.error("worker %d: exited (%s); restarting in %.1f s", slot.number, cause, pause)

    def _check_heartbeats(self) -> None:
        now = time.monotonic()
        # While the supervisor itself was stopped it received nothing: that is not a worker's silence.
        elapsed, self._ticked_at = min(now - self._ticked_at, _TICK_SECONDS), now
        for slot in self._slots:
            if not slot.process:
                continue
            slot.silence += elapsed
            if self._deadline is not None and now >= self._deadline:
                _log.error("worker %d: shutdown timeout, killing", slot.number)
                os.kill(slot.process, signal.SIGKILL)
            elif (reason := self._reason_to_kill(slot)) is not None:
                _log.error("worker %d: %s, killing", slot.number, reason)
                os.kill(slot.process, signal.SIGKILL)
                slot.silence = 0.0
        self._reporter.alive()

    def _reason_to_kill(self, slot: WorkerSlot) -> str | None:
        if slot.silence > self._heartbeat_timeout and self._deadline is None:
            return "heartbeat timeout"
        if slot.silence < self._stopped:
            return None
        state = read_process_state(slot.process)
        if state is None:
            return None
        if state.is_stopped:
            return f"stopped for {slot.silence:.0f} s"
        if state.continues or state.ticks != slot.ticks:
            slot.ticks, slot.ticks_at = state.ticks, slot.silence
            return None
        is_idle = slot.silence - slot.ticks_at >= min(_STANDSTILL_SECONDS, self._hung / 2)
        if slot.silence >= self._hung and is_idle and self._holds_lock(slot.process):
            return f"no heartbeat for {slot.silence:.0f} s while it holds the index lock"
        return None
