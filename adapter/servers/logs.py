"""Log lines that cost the event loop nothing but their formatting: a thread writes them, many at once.

Invariants: lines keep their order; a warning or worse is written before ``emit`` returns, and so is everything before
it; at most ``_PAUSE`` seconds of lines are lost if the process is killed.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import deque
from typing import TextIO

from adapter.settings import Server

_PAUSE = 0.1


class LogWriter(logging.Handler):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._written = threading.Lock()
        self._some = threading.Event()
        self._thread = threading.Thread(target=self._run, name="markpost-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record))
        except Exception:
            self.handleError(record)
            return
        if record.levelno >= logging.WARNING:
            self.flush()
        elif not self._some.is_set():
            self._some.set()

    def flush(self) -> None:
        with self._written:
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if lines:
                try:
                    self._stream.write("".join(f"{line}\n" for line in lines))
                    self._stream.flush()
                except (OSError, ValueError):
                    pass  # nobody reads the log: mail goes on

    def _run(self) -> None:
        while True:
            self._some.wait()
            time.sleep(_PAUSE)
            self._some.clear()
            self.flush()


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "module": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def to_stderr(settings: Server) -> None:
    handler = LogWriter(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else text)
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    # Who logged a line in which thread is of no interest here, and to find out costs as much as the line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
