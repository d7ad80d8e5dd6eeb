"""What is looked at before a store is opened; each refusal is one clear line."""

from __future__ import annotations

import os
import stat

from adapter.store import disk, layout, locks, offline_marker
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
    """Refuse a root that is no store we can use, or on an unfit file system."""
    root = directories.root
    check_layout(directories)
    with directories.stable(()) as top:
        for name in (layout.INDEX_FILE,):
            if disk.exists(top, name) and not stat.S_ISREG(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                raise MailError(Reason.UNKNOWN, f"{name} in {root} is not a regular file")
    _check_case(directories)
    locks.check_exclusion(directories)


def check_layout(directories: Directories) -> None:
    """Refuse what is no store, of an unknown version or not ours; make the directories it lacks."""
    _check_version(directories)
    owner = os.fstat(directories.root_fd)
    if not os.access(directories.root, os.R_OK | os.W_OK | os.X_OK):
        raise MailError(
            Reason.UNKNOWN,
            f"{directories.root} belongs to user {owner.st_uid} and is not writable for user {os.geteuid()}",
        )
    for parts in layout.DIRECTORIES:
        try:
            with directories.stable(parts, create=True):
                pass
        except NotADirectoryError:
            place = layout.absolute(directories.root, *parts)
            raise MailError(Reason.UNKNOWN, f"{place} is not a directory") from None
        except OSError as error:
            place = layout.absolute(directories.root, *parts)
            raise MailError(Reason.UNKNOWN, f"{place}: {error.strerror}") from error


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


def refuse_offline(directories: Directories) -> None:
    if reason := offline_reason(directories):
        raise MailError(Reason.MAINTENANCE, f"the store is in maintenance: {reason}")


def offline_reason(directories: Directories) -> str | None:
    """What the maintenance marker says, if the store is offline."""
    marker = offline_marker.read(directories)
    return str(marker) if marker else None
