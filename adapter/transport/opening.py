"""What is looked at before a store is opened; each refusal is one clear line."""

from __future__ import annotations

import os
import stat

from adapter.store import disk, layout, locks
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason


def open_root(root: str) -> Directories:
    """The directory a store is said to be in."""
    try:
        return Directories(root)
    except (FileNotFoundError, NotADirectoryError):
        raise MailError(Reason.UNKNOWN, f"{root} is not a store: make one with markpost init") from None
    except OSError as error:
        raise MailError(Reason.UNKNOWN, f"{root} cannot be opened: {error.strerror}") from error


def check_root(directories: Directories) -> None:
    """Refuse a root that is no store, of an unknown version, not ours, or on an unfit file system."""
    root = directories.root
    _check_version(directories)
    owner = os.fstat(directories.root_fd)
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise MailError(
            Reason.UNKNOWN,
            f"{root} belongs to user {owner.st_uid} and is not writable for user {os.geteuid()}",
        )
    with directories.stable(()) as top:
        for name in (layout.INDEX_FILE,):
            if disk.exists(top, name) and not stat.S_ISREG(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                raise MailError(Reason.UNKNOWN, f"{name} in {root} is not a regular file")
    for parts in layout.DIRECTORIES:
        try:
            with directories.stable(parts, create=True):
                pass
        except NotADirectoryError:
            raise MailError(Reason.UNKNOWN, f"{layout.absolute(root, *parts)} is not a directory") from None
        except OSError as error:
            raise MailError(Reason.UNKNOWN, f"{layout.absolute(root, *parts)}: {error.strerror}") from error
    _check_case(directories)
    locks.check_exclusion(directories)


def _check_version(directories: Directories) -> None:
    with directories.stable(()) as top:
        try:
            text = disk.read_file(top, layout.VERSION_FILE).decode("ascii", "replace").strip()
        except FileNotFoundError:
            raise MailError(Reason.UNKNOWN, f"{directories.root} is not a store: make one with markpost init") from None
        except OSError as error:
            place = layout.absolute(directories.root, layout.VERSION_FILE)
            raise MailError(Reason.UNKNOWN, f"{place} cannot be read: {error.strerror}") from error
    if text != str(layout.VERSION):
        raise MailError(
            Reason.UNKNOWN,
            f"{directories.root} has version {text[:20]!r}; this program knows version {layout.VERSION}",
        )


def _check_case(directories: Directories) -> None:
    """Folder names differ by case alone; a file system that does not tell them apart would mix them up."""
    with directories.stable(()) as top:
        if disk.exists(top, layout.VERSION_FILE.swapcase()):
            raise MailError(
                Reason.UNKNOWN,
                f"{directories.root} is on a file system that ignores case; use one that does not",
            )


def offline_reason(directories: Directories) -> str | None:
    """What the maintenance marker says, if the store is offline."""
    with directories.stable(layout.MAINTENANCE) as maintenance:
        try:
            return disk.read_file(maintenance, layout.OFFLINE_MARKER).decode("utf-8", "replace").strip() or "offline"
        except FileNotFoundError:
            return None
