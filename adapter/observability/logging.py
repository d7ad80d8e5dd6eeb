"""The log: one line for each event, for people or as JSON, on standard error.

Lines about a session begin with its id, the peer's address and, once somebody has logged in, the user
(:class:`~adapter.net.networks.Peer`); as JSON these are fields of their own. A process that serves calls
:func:`write_behind`: its lines then cost the event loop nothing but their formatting, and a thread writes them, many at
once.

Repeated disk errors are counted instead of written (:mod:`adapter.observability.repeated_errors`).

Invariants: lines keep their order; a warning or worse is written before ``emit`` returns, and so is everything before
it; at most ``_PAUSE`` seconds of lines are lost if the process is killed; lines of several processes do not run into
one another; nothing a peer sent can end a line or begin another.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TextIO

from adapter.config.schema import Server
from adapter.net.networks import Peer
from adapter.observability.repeated_errors import RepeatLimit

_PAUSE = 0.1
_ATOMIC = 4096  # octets: a pipe takes so many from one process before those of another (PIPE_BUF)


class LogWriter(logging.Handler):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._written = threading.Lock()
        self._some = threading.Event()
        self._behind = False
        self._repeats = RepeatLimit()

    def write_behind(self) -> None:
        """From now on a thread writes what is no warning."""
        if not self._behind:
            self._behind = True
            threading.Thread(target=self._run, name="markpost-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            urgent = self._add(self._repeats.pass_on(record))
        except Exception:
            self.handleError(record)
            return
        if urgent or not self._behind:
            self.flush()
        if self._behind and not self._some.is_set():
            self._some.set()

    def _add(self, records: Iterable[logging.LogRecord]) -> bool:
        """Queue lines; whether one of them is a warning or worse."""
        urgent = False
        for record in records:
            self._lines.append(self.format(record))
            urgent = urgent or record.levelno >= logging.WARNING
        return urgent

    def add_counts(self, *, all_of_them: bool = False) -> None:
        """Queue the counts of lines that were suppressed, those that are due or all."""
        self.acquire()
        try:
            self._add(self._repeats.due(all_of_them=all_of_them))
        finally:
            self.release()

    def flush(self) -> None:
        with self._written:
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            try:
                for piece in _pieces(lines):
                    self._stream.write(piece)
                    self._stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads the log: mail goes on

    def _run(self) -> None:
        while True:
            self.acquire()
            seconds = self._repeats.seconds_to_next
            self.release()
            if self._some.wait(seconds):
                time.sleep(_PAUSE)
                self._some.clear()
            self.add_counts()
            self.flush()


def _pieces(lines: list[str]) -> Iterator[str]:
    """Whole lines, as many as are written as one."""
    piece: list[str] = []
    size = 0
    for line in lines:
        octets = len(line.encode("utf-8", "replace")) + 1
        if piece and size + octets > _ATOMIC:
            yield "".join(piece)
            piece, size = [], 0
        piece.append(line + "\n")
        size += octets
    if piece:
        yield "".join(piece)


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return line if line.isprintable() else _one_line(line)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "module": record.name,
        }
        peer = next((each for each in record.args if isinstance(each, Peer)), None) if record.args else None
        if peer is not None:
            entry |= {"session": peer.session, "peer": peer.address}
            if peer.user:
                entry["user"] = peer.user
            message = message.removeprefix(f"{peer} ")
        entry["message"] = message
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Line ends and whatever else is not for a terminal, written out."""
    return "".join(
        each if each.isprintable() else " | " if each == "\n" else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def to_stderr(settings: Server) -> None:
    handler = LogWriter(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    set_level(settings.log_level)
    # Who logged a line in which thread is of no interest here, and to find out costs as much as the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


def set_level(name: str) -> None:
    """For our own lines; of libraries, which tell what passes through them, only warnings are wanted."""
    logging.getLogger("adapter").setLevel(name.upper())


def write_behind() -> None:
    """This process serves: its event loop does not wait for whoever reads the log."""
    for handler in _writers():
        handler.write_behind()


def flush() -> None:
    """Write everything: this process ends."""
    for handler in _writers():
        handler.add_counts(all_of_them=True)
        handler.flush()


def _writers() -> Iterator[LogWriter]:
    return (handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter))
