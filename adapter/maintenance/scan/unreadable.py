"""Files and directories that cannot be read now: cause and remedy.

Unreadable is not lost: content may be intact behind a wrong permission, a failing cable or an exhausted file table.
Repair changes nothing because of an unreadable file.
"""

from __future__ import annotations

import errno
import os

from adapter.maintenance.findings import Finding
from adapter.store import disk, layout

_PERMISSION = "grant the store's user read access (chown, chmod), then run check again"
_DISK = "disk error: see the kernel log, then restore the file from a backup or run check again"
_RESOURCES = "close other programs or raise the limit, then run check again"
_REMEDIES = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EIO: _DISK,
    errno.ESTALE: "stale network file handle: remount the file system, then run check again",
    errno.ENOMEM: _RESOURCES,
    errno.EMFILE: _RESOURCES,
    errno.ENFILE: _RESOURCES,
}


def cause(error: OSError) -> str:
    """Cause and remedy of a read error; "" if the error does not mean that the file is unreadable."""
    if not disk.is_unreadable(error):
        return ""
    number = error.errno or 0
    return f"{os.strerror(number)}: {_REMEDIES.get(number, 'run check again')}"


def finding(where: layout.Parts, why: str) -> Finding:
    return Finding("unreadable", layout.absolute(*where), detail=why)
