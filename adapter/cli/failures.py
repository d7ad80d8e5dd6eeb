"""What a failure says to the person at the terminal, and the exit status it leaves to the calling program.

The statuses are those of sysexits.h, which mail transport agents understand: what is temporary must never look
permanent to them, or they would bounce mail.
"""

from __future__ import annotations

from protocol.errors import MailError, Reason

FAILED = 1
DATA = 65
NO_INPUT = 66
NO_USER = 67
CANNOT_CREATE = 73
TEMPORARY = 75
NO_PERMISSION = 77

_STATUS = {
    Reason.NO_SUCH_ADDRESS: NO_USER,
    Reason.INACTIVE_ADDRESS: NO_USER,
    Reason.BAD_ADDRESS: DATA,
    Reason.BAD_CONTENT: DATA,
    Reason.TOO_BIG: DATA,
    Reason.LIMIT: DATA,
    Reason.OVER_QUOTA: CANNOT_CREATE,
    Reason.NOT_ALLOWED: NO_PERMISSION,
}
_ADVICE = {
    Reason.NO_SUCH_ADDRESS: "register it with markpost account add",
    Reason.INACTIVE_ADDRESS: "bring it back with markpost account add",
    Reason.ADDRESS_EXISTS: "set its password with markpost account passwd, or see --mode",
    Reason.LOCK_TIMEOUT: "another process is busy with it",
    Reason.DISK_FULL: "make room on the disk of the store",
}
#: What their details say is all there is to say.
_TOLD_BY_DETAIL = (Reason.UNKNOWN, Reason.MAINTENANCE, Reason.NOT_ALLOWED, Reason.BAD_ADDRESS, Reason.BAD_CONTENT)


class CommandError(Exception):
    """A command cannot go on; the text is one line that says what to do."""

    def __init__(self, line: str, status: int = FAILED) -> None:
        super().__init__(line)
        self.status = status


def explain(error: MailError | CommandError | OSError) -> tuple[str, int]:
    """One line for people, and an exit status for programs."""
    if isinstance(error, CommandError):
        return str(error), error.status
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return (f"{error.filename}: {what}" if error.filename else what), TEMPORARY
    return _line(error), status_of(error)


def status_of(error: MailError) -> int:
    return TEMPORARY if error.temporary else _STATUS.get(error.reason, FAILED)


def _line(error: MailError) -> str:
    if error.reason in _TOLD_BY_DETAIL and error.detail:
        return error.detail
    line = f"{error.detail}: {error.public[:1].lower()}{error.public[1:]}" if error.detail else error.public
    advice = _ADVICE.get(error.reason)
    return f"{line} ({advice})" if advice else line
