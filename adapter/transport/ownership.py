"""Whose a store is. What another user writes into it, its own user cannot write any more, and mail stops."""

from __future__ import annotations

import contextlib
import os
import pwd

from adapter.store import layout
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason


def refuse_superuser(directories: Directories) -> None:
    """Refuse user 0 on the store of somebody else, which nothing but this keeps from writing there.

    A store that root itself made in the directory of another user is root's.
    """
    found = os.fstat(directories.root_fd)
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(layout.VERSION_FILE, dir_fd=directories.root_fd, follow_symlinks=False)
    if os.geteuid() != 0 or found.st_uid == 0:
        return
    name = _name(found.st_uid)
    become = f"runuser -u {name} --"
    if name.isdigit():
        become = f"setpriv --reuid={found.st_uid} --regid={found.st_gid} --clear-groups"
    raise MailError(
        Reason.UNKNOWN, f"{directories.root} belongs to user {name}: run this as that user ({become} markpost …)"
    )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
