"""Checks before a store is opened; each refusal is one clear line."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat

from adapter.store import disk, layout, locks, offline_marker
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason


def open_root(root: str) -> Directories:
    """Open the directory that is to be a store."""
    try:
        return Directories(root)
    except (FileNotFoundError, NotADirectoryError):
        raise MailError(Reason.UNKNOWN, f"{root} is not a store: make one with markpost init") from None
    except OSError as error:
        raise MailError(Reason.UNKNOWN, f"{root} cannot be opened: {error.strerror}") from error


def check_root(directories: Directories) -> None:
    """Refuse a root that is not a usable store, or on an unsuitable file system."""
    root = directories.root
    check_layout(directories)
    with directories.stable(()) as top:
        for name in (layout.INDEX_FILE, f"{layout.INDEX_FILE}-journal"):
            if not disk.exists(top, name):
                continue
            if not stat.S_ISREG(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                raise MailError(Reason.UNKNOWN, f"{name} in {root} is not a regular file")
            if not os.access(name, os.R_OK | os.W_OK, dir_fd=top):  # SQLite would not name the cause
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    _check_case(directories)
    locks.check_exclusion(directories)


def check_layout(directories: Directories) -> None:
    """Refuse a root that is not a store, has another format version or another owner; make missing directories."""
    check_version(directories)
    refuse_superuser(directories)
    owner = os.fstat(directories.root_fd)
    if not os.access(directories.root, os.R_OK | os.W_OK | os.X_OK):
        why = f"belongs to user {owner.st_uid} and is not writable for user {os.geteuid()}"
        if os.fstatvfs(directories.root_fd).f_flag & os.ST_RDONLY:
            why = "is on a file system that is mounted read-only"
        raise MailError(Reason.UNKNOWN, f"{directories.root} {why}")
    check_directories(directories, create=True)


def check_directories(directories: Directories, *, create: bool) -> None:
    """Refuse a store in which something else is in the place of a directory; make those it lacks, if wanted."""
    for parts in layout.DIRECTORIES:
        try:
            with directories.stable(parts, create=create):
                pass
        except NotADirectoryError:
            place = layout.absolute(directories.root, *parts)
            raise MailError(Reason.UNKNOWN, f"{place} is not a directory") from None
        except OSError as error:
            if create or not isinstance(error, FileNotFoundError):
                place = layout.absolute(directories.root, *parts)
                raise MailError(Reason.UNKNOWN, f"{place}: {error.strerror}") from error


def check_version(directories: Directories) -> None:
    """Refuse a store of another format version."""
    number = version(directories)
    if number != layout.VERSION:
        raise MailError(
            Reason.UNKNOWN,
            f"{directories.root} has format version {number}, but this program knows version {layout.VERSION}:"
            " use the markpost that created the store",
        )


def version(directories: Directories) -> int:
    """The version of a store. Raises MailError if there is none."""
    place = layout.absolute(directories.root, layout.VERSION_FILE)
    with directories.stable(()) as top:
        try:
            text = disk.read_file(top, layout.VERSION_FILE).decode("ascii", "replace").strip()
        except FileNotFoundError:
            what = "is not a store: make one with markpost init"
            if is_backup(directories):
                what = "is not a store but a backup: markpost restore makes a store of it"
            raise MailError(Reason.UNKNOWN, f"{directories.root} {what}") from None
        except OSError as error:
            raise MailError(Reason.UNKNOWN, f"{place} cannot be read: {error.strerror}") from error
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise MailError(
            Reason.UNKNOWN,
            f"{place} says {text[:20]!r}, which is not a format version; this program knows version {layout.VERSION}",
        )
    return int(text)


def is_backup(directories: Directories) -> bool:
    with directories.stable(()) as top:
        return disk.exists(top, layout.BACKUP_FILE)


def _check_case(directories: Directories) -> None:
    """Refuse a case-insensitive file system: folder names may differ in case alone."""
    with directories.stable(()) as top:
        if disk.exists(top, layout.VERSION_FILE.swapcase()):
            raise MailError(
                Reason.UNKNOWN,
                f"{directories.root} is on a file system that ignores case; use one that does not",
            )


def refuse_offline(directories: Directories) -> None:
    if reason := offline_reason(directories):
        raise MailError(Reason.MAINTENANCE, f"the store is in maintenance: {reason}")


def offline_reason(directories: Directories) -> str | None:
    """Return the text of the maintenance marker if the store is offline."""
    marker = offline_marker.read(directories)
    return str(marker) if marker else None


# --- the owner -------------------------------------------------------------------------------------------------------


def owner(directories: Directories) -> str:
    """The name of the user a store belongs to, or the number of one without a name."""
    return _name(_described(directories).st_uid)


def refuse_superuser(directories: Directories) -> None:
    """Refuse root on the store of another user: root's files would make the store unwritable for its owner."""
    owner_status = _described(directories)
    if os.geteuid() != 0 or owner_status.st_uid == 0:
        return
    name = _name(owner_status.st_uid)
    become = f"runuser -u {name} --"
    if name.isdigit():
        become = f"setpriv --reuid={owner_status.st_uid} --regid={owner_status.st_gid} --clear-groups"
    raise MailError(
        Reason.UNKNOWN, f"{directories.root} belongs to user {name}: run this as that user ({become} markpost …)"
    )


def _described(directories: Directories) -> os.stat_result:
    """Status of the store itself, if there is one: root may have made it in the directory of another user."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat(layout.VERSION_FILE, dir_fd=directories.root_fd, follow_symlinks=False)
    return os.fstat(directories.root_fd)


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
