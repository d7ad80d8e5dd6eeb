"""Failures and interrupts of commands: the line for the user, the exit status for the caller, and Ctrl-C.

Exit statuses follow sysexits.h, which mail transfer agents understand. A temporary failure must never look permanent to
them, or they would bounce mail.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from protocol.errors import MailError, Reason

EX_FAILURE = 1
EX_REFUSED = 3  # repair, maintenance: the store is in use
EX_DATAERR = 65
EX_NOINPUT = 66
EX_NOUSER = 67
EX_CANTCREAT = 73
EX_TEMPFAIL = 75
EX_NOPERM = 77

_STATUS = {
    Reason.NO_SUCH_ADDRESS: EX_NOUSER,
    Reason.INACTIVE_ADDRESS: EX_NOUSER,
    Reason.BAD_ADDRESS: EX_DATAERR,
    Reason.BAD_CONTENT: EX_DATAERR,
    Reason.TOO_BIG: EX_DATAERR,
    Reason.LIMIT: EX_DATAERR,
    Reason.OVER_QUOTA: EX_CANTCREAT,
    Reason.NOT_ALLOWED: EX_NOPERM,
}
_ADVICE = {
    Reason.NO_SUCH_ADDRESS: "register it with markpost account add",
    Reason.INACTIVE_ADDRESS: "reactivate it with markpost account add",
    Reason.ADDRESS_EXISTS: "set its password with markpost account passwd, or see --mode",
    Reason.LOCK_TIMEOUT: "another process holds its lock",
    Reason.DISK_FULL: "free space on the disk of the store",
}
#: Reasons with a detail that is a complete error text.
_DETAIL_IS_COMPLETE = (Reason.UNKNOWN, Reason.MAINTENANCE, Reason.NOT_ALLOWED, Reason.BAD_ADDRESS, Reason.BAD_CONTENT)


class CommandError(Exception):
    """A command failed; the text is one line that says what to do."""

    def __init__(self, line: str, status: int = EX_FAILURE) -> None:
        super().__init__(line)
        self.status = status


def explain(error: MailError | CommandError | OSError) -> tuple[str, int]:
    """Return the line for the user and the exit status."""
    if isinstance(error, CommandError):
        return str(error), error.status
    if isinstance(error, OSError):
        cause = error.strerror or str(error)
        return (f"{error.filename}: {cause}" if error.filename else cause), EX_TEMPFAIL
    return _line(error), exit_status(error)


def exit_status(error: MailError) -> int:
    return EX_TEMPFAIL if error.temporary else _STATUS.get(error.reason, EX_FAILURE)


def _line(error: MailError) -> str:
    if error.reason in _DETAIL_IS_COMPLETE and error.detail:
        return error.detail
    line = f"{error.detail}: {error.public[:1].lower()}{error.public[1:]}" if error.detail else error.public
    advice = _ADVICE.get(error.reason)
    return f"{line} ({advice})" if advice else line


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------
#
# Python raises KeyboardInterrupt between any two instructions, so also between acquiring a lock and the code that
# releases it; closing the store would then wait for ever. While a command works with a store, the first Ctrl-C is
# therefore recorded and raised at a safe point. The second Ctrl-C is raised at once.

_interrupt_pending = False


def _record_interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupt_pending
    if _interrupt_pending:
        raise KeyboardInterrupt
    _interrupt_pending = True


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Raise the first Ctrl-C of the block only at :func:`raise_pending_interrupt` or at the end of the block."""
    global _interrupt_pending
    if threading.current_thread() is not threading.main_thread():  # signals are handled in the main thread only
        yield
        return
    _interrupt_pending = False
    previous_handler = signal.signal(signal.SIGINT, _record_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    raise_pending_interrupt()


def raise_pending_interrupt() -> None:
    """Mark a safe point: no operation is half done here."""
    if _interrupt_pending:
        raise KeyboardInterrupt


@contextlib.contextmanager
def immediate_interrupts() -> Iterator[None]:
    """Within :func:`deferred_interrupts`, raise Ctrl-C at once: for reads that may block."""
    if signal.getsignal(signal.SIGINT) is not _record_interrupt:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        raise_pending_interrupt()
        yield
    finally:
        signal.signal(signal.SIGINT, _record_interrupt)
