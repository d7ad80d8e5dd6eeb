"""Several processes that serve one store: a supervisor makes them, replaces those that die, and ends them.

The supervisor opens no store and runs no thread: it forks, watches and signals. A worker inherits the listening sockets
and shares them with the others. What it has to say (ready, alive, reloaded) it sends through a pair of sockets, which
also tells it when the supervisor is gone.

Invariants: a worker outlives its supervisor only for as long as it takes to finish what is in flight; a worker that
dies is replaced, one that dies again and again after growing pauses; one without a heartbeat is killed: after seconds
if it is stopped, or hangs and holds a lock that other workers wait for, else after a minute; the end takes a bounded
time whatever workers do.
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
from adapter.server.service_manager import Overseer
from protocol.errors import MailError

_log = logging.getLogger(__name__)

_TICK = 0.5
_SILENT = 60.0  # seconds without a sign of life after which a worker is taken for hung
_STOPPED_SECONDS = 5.0  # without a heartbeat, after which a stopped worker is killed
_HUNG_SECONDS = 8.0  # after which one is killed that holds the index lock and uses no processor time
_STANDSTILL_SECONDS = 2.0  # for which no processor time was used then
_YOUNG = 5.0  # a worker that lived no longer than this died at once
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0
_SPARE = 10.0  # for the store's last commits, beyond the time workers take for their sessions
_LONGEST_WORD = 4096
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

_READY, _ALIVE, _RELOADED, _STATUS, _FAILED = b"ready", b"alive", b"reloaded", b"status ", b"failed "


class WorkerLink(Overseer):
    """A worker's end: it speaks to the supervisor, and notices when that is gone."""

    def __init__(self, number: int, end: socket.socket, longest_end: Callable[[], float]) -> None:
        self.number = number
        self._end = end
        self._longest_end = longest_end

    def watch(self) -> None:
        threading.Thread(target=self._wait_for_the_end, name="markpost-parent", daemon=True).start()

    def _wait_for_the_end(self) -> None:
        """On a thread of its own: an event loop that hangs must not keep the process alive."""
        with contextlib.suppress(OSError):
            self._end.recv(1)
        _log.error("the supervisor is gone: ending")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._longest_end() + _SPARE)
        os._exit(1)

    def ready(self) -> None:
        self._say(_READY)

    def alive(self) -> None:
        self._say(_ALIVE)

    def reloaded(self) -> None:
        self._say(_RELOADED)

    def status(self, text: str) -> None:
        self._say(_STATUS + text.encode()[:1000])

    def failed(self, text: str) -> None:
        self._say(_FAILED + text.encode()[:1000])

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            self._end.send(word, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


@dataclass(slots=True)
class _Place:
    """Where a worker is, or will be."""

    number: int
    process: int = 0  # 0: none
    end: socket.socket | None = None
    born: float = 0.0
    silence: float = 0.0  # seconds since its last heartbeat in which the supervisor ran
    ticks: int = -1  # processor time when it was last seen to use some
    ticks_at: float = 0.0  # seconds of silence then
    ready: bool = False
    failures: int = 0  # in a row, at once
    due: float = 0.0  # when the next one may be made


class Supervisor:
    """``work`` is what a worker does: called in a process of its own, and over when the worker shall end."""

    def __init__(
        self,
        count: int,
        work: Callable[[WorkerLink], None],
        overseer: Overseer,
        *,
        let_go: Callable[[], None],
        died: Callable[[int], None],
        longest_end: Callable[[], float],
        holds_lock: Callable[[int], bool] = lambda _: False,
        silent: float = _SILENT,
        stopped: float = _STOPPED_SECONDS,
        hung: float = _HUNG_SECONDS,
    ) -> None:
        self._work = work
        self._overseer = overseer
        self._let_go = let_go
        self._died = died
        self._longest_end = longest_end
        self._holds_lock = holds_lock
        self._silent = silent
        self._stopped = stopped
        self._hung = hung
        self._ticked = time.monotonic()
        self._places = [_Place(number) for number in range(count)]
        self._selector = selectors.DefaultSelector()
        self._asked_to: set[int] = set()  # signals that came
        self._was_ready = False
        self._reloading: set[int] = set()  # places of which we wait to hear
        self._deadline: float | None = None  # of the end; None: it has not come
        self._trouble = ""  # why the first workers could not begin

    def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises ConfigError, with a worker's words, if the first ones cannot begin."""
        with self._signals():
            while self._deadline is None or any(place.process for place in self._places):
                if self._deadline is None:
                    self._fill_places()
                self._listen()
                self._obey()
                self._bury()
                self._look_after()
        if self._trouble:
            raise ConfigError(self._trouble)
        _log.info("all workers have ended")

    # --- signals -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        waker, woken = socket.socketpair()
        waker.setblocking(False)
        woken.setblocking(False)
        self._selector.register(woken, selectors.EVENT_READ)
        before = {number: signal.signal(number, self._asked) for number in _SIGNALS}
        waked = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(waked)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            waker.close()
            woken.close()

    def _asked(self, number: int, frame: object) -> None:
        self._asked_to.add(number)

    def _obey(self) -> None:
        asked, self._asked_to = self._asked_to, set()
        if asked & {signal.SIGTERM, signal.SIGINT}:
            self._end_all()
        elif signal.SIGHUP in asked and self._deadline is None:
            self._overseer.reloading()
            self._reloading = {place.number for place in self._places if place.ready}
            self._signal_all(signal.SIGHUP)

    def _end_all(self) -> None:
        if self._deadline is None:
            _log.info("stopping %d workers", len(self._places))
            self._overseer.stopping()
            self._let_go()
            self._signal_all(signal.SIGTERM)
            self._deadline = time.monotonic() + self._longest_end() + _SPARE

    def _signal_all(self, number: int) -> None:
        for place in self._places:
            if place.process:
                os.kill(place.process, number)

    # --- workers -------------------------------------------------------------------------------------------------

    def _fill_places(self) -> None:
        for place in self._places:
            if not place.process and time.monotonic() >= place.due:
                self._make(place)

    def _make(self, place: _Place) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # A signal for the worker must not be taken for one of ours before it has its own ways.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process = os.fork()
        except OSError as error:
            _log.error("no worker can be made: %s", error.strerror)
            process = -1
        if process == 0:
            for other in self._places:
                if other.end is not None:
                    other.end.close()  # else the others would not notice our end
            ours.close()
            self._be_worker(WorkerLink(place.number, theirs, self._longest_end), blocked)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
        if process < 0:
            ours.close()
            place.due = time.monotonic() + _LONGEST_PAUSE
            return
        place.process, place.end, place.ready = process, ours, False
        place.born, place.silence, place.ticks = time.monotonic(), 0.0, -1
        self._selector.register(ours, selectors.EVENT_READ, place)

    def _be_worker(self, link: WorkerLink, blocked: Iterable[int]) -> None:
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            self._selector.close()
            link.watch()
            self._work(link)
            status = 0
        except (MailError, ConfigError, TlsError) as error:
            link.failed(str(error))
            status = 1
        except BaseException:
            _log.exception("a worker failed")
        finally:
            logs.flush()
            os._exit(status)  # nothing of what the supervisor's process would do at its end

    def _listen(self) -> None:
        due = [place.due for place in self._places if not place.process] if self._deadline is None else []
        pause = min([_TICK, *(max(0.0, moment - time.monotonic()) for moment in due)])
        for key, _ in self._selector.select(pause):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(_LONGEST_WORD)  # type: ignore[union-attr]
            else:
                self._hear(key.data)

    def _hear(self, place: _Place) -> None:
        while place.end is not None:
            try:
                word = place.end.recv(_LONGEST_WORD)
            except (BlockingIOError, ConnectionError):
                return
            if not word:
                self._hang_up(place)
                return
            place.silence, place.ticks = 0.0, -1
            if word == _READY:
                place.ready = True
                if not self._was_ready and all(each.ready for each in self._places):
                    self._was_ready = True
                    self._overseer.ready()
            elif word == _RELOADED:
                self._heard_reloaded(place.number)
            elif word.startswith(_STATUS):
                self._overseer.status(word.removeprefix(_STATUS).decode("utf-8", "replace"))
            elif word.startswith(_FAILED):
                self._heard_failure(word.removeprefix(_FAILED).decode("utf-8", "replace"))

    def _hang_up(self, place: _Place) -> None:
        if place.end is not None:
            self._selector.unregister(place.end)
            place.end.close()
            place.end = None

    def _heard_reloaded(self, number: int) -> None:
        if number in self._reloading:
            self._reloading.discard(number)
            if not self._reloading:
                self._overseer.reloaded()

    def _heard_failure(self, text: str) -> None:
        if self._was_ready:
            _log.error("a worker cannot begin: %s", text)
        else:  # a mistake in the configuration is told once, and not tried again
            self._trouble = self._trouble or text
            self._end_all()

    def _bury(self) -> None:
        for place in self._places:
            if not place.process:
                continue
            ended, status = os.waitpid(place.process, os.WNOHANG)
            if ended:
                self._hear(place)
                self._hang_up(place)
                place.process, place.ready = 0, False
                self._died(place.number)
                self._heard_reloaded(place.number)
                if self._deadline is None:
                    self._plan_next(place, status)

    def _plan_next(self, place: _Place, status: int) -> None:
        now = time.monotonic()
        place.failures = place.failures + 1 if now - place.born < _YOUNG else 0
        pause = min(_FIRST_PAUSE * 2.0 ** (place.failures - 1), _LONGEST_PAUSE) if place.failures else 0.0
        place.due = now + pause
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        _log.error("worker %d ended %s; another follows in %.1f s", place.number, how, pause)

    def _look_after(self) -> None:
        now = time.monotonic()
        # While the supervisor itself did not run, it heard nothing: that is no silence of a worker.
        passed, self._ticked = min(now - self._ticked, _TICK), now
        for place in self._places:
            if not place.process:
                continue
            place.silence += passed
            if self._deadline is not None and now >= self._deadline:
                _log.error("worker %d does not end: killing it", place.number)
                os.kill(place.process, signal.SIGKILL)
            elif (reason := self._reason_to_kill(place)) is not None:
                _log.error("worker %d: %s, killing", place.number, reason)
                os.kill(place.process, signal.SIGKILL)
                place.silence = 0.0
        self._overseer.alive()

    def _reason_to_kill(self, place: _Place) -> str | None:
        if place.silence > self._silent and self._deadline is None:
            return "heartbeat timeout"
        if place.silence < self._stopped:
            return None
        state = read_process_state(place.process)
        if state is None:
            return None
        if state.is_stopped:
            return f"stopped for {place.silence:.0f} s"
        if state.goes_on or state.ticks != place.ticks:
            place.ticks, place.ticks_at = state.ticks, place.silence
            return None
        stands_still = place.silence - place.ticks_at >= min(_STANDSTILL_SECONDS, self._hung / 2)
        if place.silence >= self._hung and stands_still and self._holds_lock(place.process):
            return f"no heartbeat for {place.silence:.0f} s while it holds the index lock"
        return None
