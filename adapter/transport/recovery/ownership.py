"""Whose a store is. What another user writes into it, its own user cannot write any more, and mail stops."""

from __future__ import annotations

import contextlib
import os
import pwd

from adapter.store import layout
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason


def owner(directories: Directories) -> str:
    """The name of the user a store belongs to, or the number of one without a name."""
    return _name(_described(directories).st_uid)


def refuse_superuser(directories: Directories) -> None:
    """Refuse user 0 on the store of somebody else, which nothing but this keeps from writing there."""
    found = _described(directories)
    if os.geteuid() != 0 or found.st_uid == 0:
        return
    name = _name(found.st_uid)
    become = f"runuser -u {name} --"
    if name.isdigit():
        become = f"setpriv --reuid={found.st_uid} --regid={found.st_gid} --clear-groups"
    raise MailError(
        Reason.UNKNOWN, f"{directories.root} belongs to user {name}: run this as that user ({become} markpost …)"
    )


def _described(directories: Directories) -> os.stat_result:
    """Of the store itself, if there is one: root may have made it in the directory of another user."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat(layout.VERSION_FILE, dir_fd=directories.root_fd, follow_symlinks=False)
    return os.fstat(directories.root_fd)


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
