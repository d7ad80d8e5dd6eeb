"""Translate exceptions to MailError; unknown errors become temporary failures.

A full disk, a damaged journal and files of another user have errors of their own.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sqlite3
from collections.abc import Iterator

from adapter.observability.disk_errors import advice
from adapter.store import layout
from adapter.store.index import IndexDiverged
from adapter.store.journal import JournalDamaged, JournalForeign
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


def as_mail_error(error: Exception) -> MailError:
    """The MailError for any exception; that is its cause, so that the log knows a disk error."""
    if isinstance(error, MailError):
        return error
    failure = _translate(error)
    failure.__cause__ = error
    return failure


def _translate(error: Exception) -> MailError:
    full = (isinstance(error, OSError) and error.errno in _DISK_FULL) or (
        isinstance(error, sqlite3.OperationalError) and "full" in str(error)
    )
    if full:
        return MailError(Reason.DISK_FULL, str(error))
    if isinstance(error, PermissionError):
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return MailError(Reason.UNKNOWN, f"{what}; it must belong to the store's user: run markpost doctor")
    if isinstance(error, JournalForeign):
        return MailError(Reason.UNKNOWN, f"the journal is of another store ({error}): run markpost repair")
    if isinstance(error, IndexDiverged):
        what = f"{layout.INDEX_FILE} and the journal are of different histories"
        return MailError(Reason.UNKNOWN, f"{what} ({error}): run markpost repair")
    if isinstance(error, JournalDamaged):
        return MailError(Reason.UNKNOWN, f"the journal is damaged ({error}): run markpost repair")
    if advice(error):
        _log.error("operation failed (%s); rolled back", error)
    else:
        _log.exception("operation failed unexpectedly; rolled back", exc_info=error)
    return MailError(Reason.UNKNOWN, f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def translate_disk_errors() -> Iterator[None]:
    """Translate errors of the disk and of the index inside the block to :class:`MailError`."""
    try:
        yield
    except (OSError, sqlite3.Error, JournalDamaged, IndexDiverged) as error:
        raise as_mail_error(error) from error
