"""Disk errors: exceptions that the disk causes, not the code, and advice for the operator."""

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
_MAX_CHAIN = 8


def disk_cause(error: BaseException | None) -> BaseException | None:
    """Return the disk error in an exception's chain of causes, or None."""
    for _ in range(_MAX_CHAIN):
        if error is None or advice(error):
            return error
        error = error.__cause__
    return None


def advice(error: BaseException) -> str:
    """Return what to do about a disk error; empty for any other exception."""
    if isinstance(error, OSError):
        return _ADVICE_BY_ERRNO.get(error.errno or 0, "")
    code = getattr(error, "sqlite_errorcode", None) if isinstance(error, sqlite3.Error) else None
    return "" if code is None else _ADVICE_BY_SQLITE_CODE.get(code & 0xFF, "")


def identity(error: BaseException) -> tuple[str, int]:
    """Return a key that is equal for errors with the same cause, whatever file they name."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "sqlite_errorcode", 0)
    return type(error).__name__, code or 0
