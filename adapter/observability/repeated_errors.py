"""Repeat limit: a log line about a disk error is written once, with advice; its repetitions are counted.

A failing disk fails every mail. For each place in the code and each cause, one line a minute gives the count. Lines
below warning, and those with another cause, pass unchanged. A disk error has no traceback: it is not a fault of the
code.

Invariants: every suppressed line is counted in a later one; memory is bounded.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from adapter.observability.disk_errors import advice, disk_cause, identity

_WINDOW_SECONDS = 60.0
_MAX_KEYS = 256

_Key = tuple[str, str, tuple[str, int]]


@dataclass(slots=True)
class _Window:
    """The repetitions of one line within a minute."""

    first: logging.LogRecord
    until: float
    count: int = 0


class RepeatLimit:
    """Filters log records; not thread-safe, the log handler calls it under its lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[_Key, _Window] = {}  # in the order in which they end

    def filter(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        """Yield the records to write now: counts that are due, and this one unless it is a repetition."""
        yield from self.due()
        cause = _cause(record) if record.levelno >= logging.WARNING else None
        if cause is None:
            yield record
            return
        condensed = _condense(record, cause)
        key = (record.name, str(record.msg), identity(cause))
        window = self._windows.get(key)
        if window is not None:
            window.count += 1
            return
        if len(self._windows) >= _MAX_KEYS:
            yield from _summary(self._windows.pop(next(iter(self._windows))))
        self._windows[key] = _Window(condensed, self._clock() + _WINDOW_SECONDS)
        yield condensed

    def due(self, *, all_of_them: bool = False) -> Iterator[logging.LogRecord]:
        """Yield the counts of windows that are over."""
        now = self._clock()
        for key, window in list(self._windows.items()):
            if window.until > now and not all_of_them:
                break
            del self._windows[key]
            yield from _summary(window)
            if window.count:  # still failing: the next line is a count again
                self._windows[key] = _Window(window.first, now + _WINDOW_SECONDS)

    @property
    def seconds_to_next(self) -> float | None:
        """Seconds until a window ends; None: no window is open."""
        first = next(iter(self._windows.values()), None)
        return None if first is None else max(0.0, first.until - self._clock())


def _cause(record: logging.LogRecord) -> BaseException | None:
    errors = [record.exc_info[1]] if record.exc_info else []
    if isinstance(record.args, tuple):
        errors += [each for each in record.args if isinstance(each, BaseException)]
    return next((cause for each in errors if (cause := disk_cause(each)) is not None), None)


def _condense(record: logging.LogRecord, cause: BaseException) -> logging.LogRecord:
    """Return the record as one line with advice."""
    condensed = copy.copy(record)
    condensed.exc_info = condensed.exc_text = None
    arguments = record.args if isinstance(record.args, tuple) else ()
    if record.exc_info:
        condensed.msg, condensed.args = f"{record.msg}: %s; %s", (*arguments, cause, advice(cause))
    else:
        condensed.msg, condensed.args = f"{record.msg}; %s", (*arguments, advice(cause))
    return condensed


def _summary(window: _Window) -> Iterator[logging.LogRecord]:
    if window.count:
        first = window.first
        text = "repeated %d times in %d s: %s"
        arguments = (window.count, int(_WINDOW_SECONDS), first.getMessage())
        yield logging.LogRecord(first.name, first.levelno, "", 0, text, arguments, None)
