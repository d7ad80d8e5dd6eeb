"""Findings of the doctor: one line each with a level, and advice unless all is well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import MailError

RUN_AS_OWNER = "run this as the user that owns the store"


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"  # mail works, but with limits or not for long
    BAD = "bad"  # something does not work or is not safe


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    check: str
    seen: str
    advice: str = ""


def ok(check: str, seen: str) -> Finding:
    return Finding(Level.OK, check, seen)


def warn(check: str, seen: str, advice: str) -> Finding:
    return Finding(Level.WARN, check, seen, advice)


def bad(check: str, seen: str, advice: str) -> Finding:
    return Finding(Level.BAD, check, seen, advice)


def guarded(check: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings; turn a failure of the check into a finding."""
    try:
        yield from findings
    except (OSError, MailError) as error:
        yield bad(check, f"check failed: {error}", RUN_AS_OWNER)
