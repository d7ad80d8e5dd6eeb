"""Whose a store is. What another user writes into it, its own user cannot write any more, and mail stops."""

from __future__ import annotations

import os
import pwd

from adapter.store.disk import Directories
from protocol.errors import MailError, Reason


def owner(directories: Directories) -> str:
    """The name of the user a store belongs to, or the number of one without a name."""
    number = os.fstat(directories.root_fd).st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def refuse_superuser(directories: Directories) -> None:
    """Refuse user 0 on the store of somebody else, which nothing but this keeps from writing there."""
    found = os.fstat(directories.root_fd)
    if os.geteuid() != 0 or found.st_uid == 0:
        return
    name = owner(directories)
    become = f"runuser -u {name} --"
    if name.isdigit():
        become = f"setpriv --reuid={found.st_uid} --regid={found.st_gid} --clear-groups"
    raise MailError(
        Reason.UNKNOWN, f"{directories.root} belongs to user {name}: run this as that user ({become} markpost …)"
    )
