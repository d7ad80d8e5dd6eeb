"""Disk errors: which exceptions come from the disk and not from a mistake in the code, and what to do about them."""

from __future__ import annotations

import errno
import sqlite3

_CHECK_DISK = "check the disk and the kernel log (dmesg)"
_FREE_SPACE = "free disk space or raise the quota"
_REMOUNT = "the file system is read-only: check the kernel log (dmesg) and remount it"
_DESCRIPTORS = "raise the limit of open files (ulimit -n, LimitNOFILE=)"
_REPAIR = "run markpost repair"

_ADVICE_BY_ERRNO = {
    errno.EIO: _CHECK_DISK,
    errno.ENXIO: _CHECK_DISK,
    errno.ENODEV: _CHECK_DISK,
    errno.ESTALE: _CHECK_DISK,
    errno.EUCLEAN: _CHECK_DISK,
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EROFS: _REMOUNT,
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: _DESCRIPTORS,
}
_ADVICE_BY_SQLITE_CODE = {
    sqlite3.SQLITE_IOERR: _CHECK_DISK,
    sqlite3.SQLITE_CANTOPEN: _CHECK_DISK,
    sqlite3.SQLITE_FULL: _FREE_SPACE,
    sqlite3.SQLITE_READONLY: _REMOUNT,
    sqlite3.SQLITE_CORRUPT: _REPAIR,
    sqlite3.SQLITE_NOTADB: _REPAIR,
}
_LONGEST_CHAIN = 8


def disk_cause(error: BaseException | None) -> BaseException | None:
    """The disk error that an exception is, or was raised because of; None: there is none."""
    for _ in range(_LONGEST_CHAIN):
        if error is None or advice(error):
            return error
        error = error.__cause__
    return None


def advice(error: BaseException) -> str:
    """What to do about a disk error; empty for any other exception."""
    if isinstance(error, OSError):
        return _ADVICE_BY_ERRNO.get(error.errno or 0, "")
    code = getattr(error, "sqlite_errorcode", None) if isinstance(error, sqlite3.Error) else None
    return "" if code is None else _ADVICE_BY_SQLITE_CODE.get(code & 0xFF, "")


def identity(error: BaseException) -> tuple[str, int]:
    """What two errors with the same cause have in common, whichever file they are about."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "sqlite_errorcode", 0)
    return type(error).__name__, code or 0
