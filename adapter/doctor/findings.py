"""What the doctor finds: one line each, good or bad, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"  # mail works, but not for ever or not for everybody
    BAD = "bad"  # something does not work, or is not safe


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    check: str  # what was looked at
    seen: str
    advice: str = ""


def ok(check: str, seen: str) -> Finding:
    return Finding(Level.OK, check, seen)


def warn(check: str, seen: str, advice: str) -> Finding:
    return Finding(Level.WARN, check, seen, advice)


def bad(check: str, seen: str, advice: str) -> Finding:
    return Finding(Level.BAD, check, seen, advice)
