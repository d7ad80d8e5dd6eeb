"""Repeat limit: a log line about a disk error is written once, with what to do; then its repetitions are counted.

A failing disk fails every mail. One line a minute says how often, for each place in the code and each cause. Lines of
the levels below warning, and all that have another cause, pass as they are. A disk error gets no traceback: it says
nothing about the code.

Invariants: nothing is suppressed without being counted in a later line; memory is bounded.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from adapter.store.disk_errors import advice, disk_cause, identity

_WINDOW_SECONDS = 60.0
_MAX_KEYS = 256

_Key = tuple[str, str, tuple[str, int]]


@dataclass(slots=True)
class _Repeated:
    first: logging.LogRecord
    until: float
    count: int = 0


class RepeatLimit:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[_Key, _Repeated] = {}  # the first to be due first

    def pass_on(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        """The records to write now: counts that are due, and this one unless it is a repetition."""
        yield from self.due()
        cause = _cause(record) if record.levelno >= logging.WARNING else None
        if cause is None:
            yield record
            return
        condensed = _condense(record, cause)
        key = (record.name, str(record.msg), identity(cause))
        seen = self._seen.get(key)
        if seen is not None:
            seen.count += 1
            return
        if len(self._seen) >= _MAX_KEYS:
            yield from _summary(self._seen.pop(next(iter(self._seen))))
        self._seen[key] = _Repeated(condensed, self._clock() + _WINDOW_SECONDS)
        yield condensed

    def due(self, *, all_of_them: bool = False) -> Iterator[logging.LogRecord]:
        """The counts of windows that are over."""
        now = self._clock()
        for key, repeated in list(self._seen.items()):
            if repeated.until > now and not all_of_them:
                break
            del self._seen[key]
            yield from _summary(repeated)
            if repeated.count:  # it goes on: the next line is a count again
                self._seen[key] = _Repeated(repeated.first, now + _WINDOW_SECONDS)

    @property
    def seconds_to_next(self) -> float | None:
        """When :meth:`due` has something to say; None: not before another record comes."""
        first = next(iter(self._seen.values()), None)
        return None if first is None else max(0.0, first.until - self._clock())


def _cause(record: logging.LogRecord) -> BaseException | None:
    errors = [record.exc_info[1]] if record.exc_info else []
    if isinstance(record.args, tuple):
        errors += [each for each in record.args if isinstance(each, BaseException)]
    return next((cause for each in errors if (cause := disk_cause(each)) is not None), None)


def _condense(record: logging.LogRecord, cause: BaseException) -> logging.LogRecord:
    """The record in one line, with what to do."""
    condensed = copy.copy(record)
    condensed.exc_info = condensed.exc_text = None
    arguments = record.args if isinstance(record.args, tuple) else ()
    if record.exc_info:
        condensed.msg, condensed.args = f"{record.msg}: %s; %s", (*arguments, cause, advice(cause))
    else:
        condensed.msg, condensed.args = f"{record.msg}; %s", (*arguments, advice(cause))
    return condensed


def _summary(repeated: _Repeated) -> Iterator[logging.LogRecord]:
    if repeated.count:
        first = repeated.first
        text = "repeated %d times in %d s: %s"
        arguments = (repeated.count, int(_WINDOW_SECONDS), first.getMessage())
        yield logging.LogRecord(first.name, first.levelno, "", 0, text, arguments, None)
