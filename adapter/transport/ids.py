"""Fresh identifiers. Message ids sort by arrival: a time to the microsecond, then random bits."""

from __future__ import annotations

import os
import time


def microseconds() -> int:
    return time.time_ns() // 1000


def iso_time(now: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now // 1_000_000))


def message_id(now: int) -> str:
    """``msg-<UTC second>-<20 hex>``: the first five hex digits are the microseconds, the rest is random."""
    seconds, fraction = divmod(now, 1_000_000)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
    return f"msg-{stamp}-{fraction:05x}{os.urandom(8).hex()[:15]}"


def folder_id() -> int:
    return int.from_bytes(os.urandom(6), "big") | 1  # never zero


def folder_label(folder: int) -> str:
    """Format a folder's id for ``.mailbox`` files and IMAP MAILBOXID."""
    return f"mbx-{folder:012x}"


def queue_id(now: int) -> str:
    """Sorts by the second it was given out."""
    return f"q-{now // 1_000_000:08x}{os.urandom(6).hex()}"


def registration_id() -> str:
    return f"reg-{os.urandom(8).hex()}"
