"""Logging to standard error: one line for each event, as text or JSON.

Lines about a session begin with its :class:`~adapter.observability.peer.Peer` (id, address, user); in JSON these are
fields of their own. A serving process calls :func:`write_behind`: its event loop then only formats lines, and a thread
writes them in batches.

Repeated disk errors are counted instead of written (:mod:`adapter.observability.repeated_errors`).

Invariants: lines keep their order; a warning or error, and every line before it, is written before ``emit`` returns; a
killed process loses at most ``_BATCH_SECONDS`` of lines; lines of several processes are not interleaved; no octet that
a peer sent can end a line or begin another.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal, TextIO

from adapter.observability.peer import Peer
from adapter.observability.repeated_errors import RepeatLimit

_BATCH_SECONDS = 0.1
_ATOMIC_BYTES = 4096  # a pipe does not interleave writes up to this size (PIPE_BUF)


class LogWriter(logging.Handler):
    """Writes lines to a stream, at once or from a thread."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._write_lock = threading.Lock()
        self._has_lines = threading.Event()
        self._is_behind = False
        self._repeats = RepeatLimit()

    def write_behind(self) -> None:
        """Leave lines below warning to a thread from now on."""
        if not self._is_behind:
            self._is_behind = True
            threading.Thread(target=self._run, name="markpost-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            is_urgent = self._queue(self._repeats.filter(record))
        except Exception:
            self.handleError(record)
            return
        if is_urgent or not self._is_behind:
            self.flush()
        if self._is_behind and not self._has_lines.is_set():
            self._has_lines.set()

    def _queue(self, records: Iterable[logging.LogRecord]) -> bool:
        """Queue lines; return whether one of them is a warning or worse."""
        is_urgent = False
        for record in records:
            self._lines.append(self.format(record))
            is_urgent = is_urgent or record.levelno >= logging.WARNING
        return is_urgent

    def queue_counts(self, *, all_of_them: bool = False) -> None:
        """Queue the counts of suppressed lines: those that are due, or all."""
        self.acquire()
        try:
            self._queue(self._repeats.due(all_of_them=all_of_them))
        finally:
            self.release()

    def flush(self) -> None:
        with self._write_lock:
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            try:
                for block in _blocks(lines):
                    self._stream.write(block)
                    self._stream.flush()
            except (OSError, ValueError):
                pass  # the reader of the log is gone: keep serving

    def _run(self) -> None:
        while True:
            self.acquire()
            seconds = self._repeats.seconds_to_next
            self.release()
            if self._has_lines.wait(seconds):
                time.sleep(_BATCH_SECONDS)
                self._has_lines.clear()
            self.queue_counts()
            self.flush()


def _blocks(lines: list[str]) -> Iterator[str]:
    """Join whole lines up to the size of an atomic write."""
    block: list[str] = []
    size = 0
    for line in lines:
        octets = len(line.encode("utf-8", "replace")) + 1
        if block and size + octets > _ATOMIC_BYTES:
            yield "".join(block)
            block, size = [], 0
        block.append(line + "\n")
        size += octets
    if block:
        yield "".join(block)


class TextLines(logging.Formatter):
    """One line of text for each record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return line if line.isprintable() else _one_line(line)


class JsonLines(logging.Formatter):
    """One JSON object for each record."""

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
    """Escape line ends and unprintable characters."""
    return "".join(
        each if each.isprintable() else " | " if each == "\n" else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def to_stderr(level: str, line_format: Literal["text", "json"]) -> None:
    """Log to standard error from now on."""
    handler = LogWriter(sys.stderr)
    handler.setFormatter(JsonLines() if line_format == "json" else TextLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    set_level(level)
    # Do not record thread, process and caller: they are not shown, and finding them costs as much as the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


def set_level(name: str) -> None:
    """Set the level of our own lines; libraries log warnings only, because their lines may contain mail."""
    logging.getLogger("adapter").setLevel(name.upper())


def write_behind() -> None:
    """Write from a thread: the event loop of a serving process must not wait for the reader of the log."""
    for handler in _writers():
        handler.write_behind()


def flush() -> None:
    """Write everything that is queued, before the process ends."""
    for handler in _writers():
        handler.queue_counts(all_of_them=True)
        handler.flush()


def _writers() -> Iterator[LogWriter]:
    return (handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter))
