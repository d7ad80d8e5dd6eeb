"""Files and directories that cannot be read now: the cause, and what to do about it.

Unreadable is not lost: content may be intact behind a wrong permission, a failing cable or a full table of open files.
Nothing leaves the store because of it.
"""

from __future__ import annotations

import errno
import os

from adapter.maintenance.findings import Finding
from adapter.store import disk, layout

_PERMISSION = "give the user of the store the right to read it (chown, chmod), then run check again"
_DISK = "the disk reports an error: see the kernel's log, then restore the file from a backup or run check again"
_RESOURCES = "close other programs or raise the limit, then run check again"
_ADVICE = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EIO: _DISK,
    errno.ESTALE: "the network file system has lost the file: mount it again, then run check again",
    errno.ENOMEM: _RESOURCES,
    errno.EMFILE: _RESOURCES,
    errno.ENFILE: _RESOURCES,
}


def cause(error: OSError) -> str:
    """What keeps a file from being read, and what to do; empty if there is no such file, or something else."""
    if not disk.is_unreadable(error):
        return ""
    number = error.errno or 0
    return f"{os.strerror(number)}: {_ADVICE.get(number, 'run check again')}"


def finding(where: layout.Parts, why: str) -> Finding:
    return Finding("unreadable", layout.absolute(*where), detail=why)
