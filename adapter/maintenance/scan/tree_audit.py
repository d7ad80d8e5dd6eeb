"""Audit of the store's tree: stray entries, modes wider than ours, entries of another owner, a damaged text index.

Names and modes of everything but content and links are checked here, on the driver; executors check the mode and the
owner of each file they read (:func:`of_file`). Nothing is opened, so that a pipe keeps nothing waiting.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from adapter.maintenance.findings import Finding
from adapter.store import layout, names, tree
from adapter.store.disk import Directories
from adapter.store.queries import text_index
from adapter.store.tree import Expected

_EXECUTE_OTHERS = 0o001


def audit(directories: Directories) -> Iterator[Finding]:
    """Every finding about the tree; those about credentials come first."""
    top = os.fstat(directories.root_fd)
    reachable = bool(top.st_mode & _EXECUTE_OTHERS)
    yield from _credentials(directories, top.st_uid)
    if wide := top.st_mode & tree.READABLE:
        yield _too_wide("mode-too-wide", (), "", top.st_mode, wide)
    yield from _directory(directories, (), top.st_uid, reachable)
    if trouble := text_index.trouble(directories.root):
        yield Finding("text-index-damaged", layout.TEXT_INDEX_FILE, name=layout.TEXT_INDEX_FILE, detail=trouble)


def of_file(where: layout.Parts, name: str, about: os.stat_result, owner: int) -> Iterator[Finding]:
    """Findings about the mode and the owner of a file of content."""
    if wide := about.st_mode & tree.READABLE:
        yield _too_wide("mode-too-wide", where, name, about.st_mode, wide)
    if about.st_uid != owner:
        yield _foreign(where, name, about.st_uid, owner)


def shown(name: str) -> str:
    """A name that is perhaps not UTF-8, as text: octets that are none are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def name_of(finding: Finding) -> str:
    """The name of a stray entry as the file system has it."""
    return os.fsdecode(bytes.fromhex(finding.id)) if finding.id else finding.name


def _credentials(directories: Directories, owner: int) -> Iterator[Finding]:
    with contextlib.suppress(FileNotFoundError):
        about = os.stat(layout.CREDENTIALS[0], dir_fd=directories.root_fd, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode):
            yield from _entry((), layout.CREDENTIALS[0], about, Expected(True, tree.SECRET), owner, reachable=True)
            yield from _directory(directories, layout.CREDENTIALS, owner, reachable=True)


def _directory(directories: Directories, where: layout.Parts, owner: int, reachable: bool) -> Iterator[Finding]:
    """``reachable``: other users can get here, so that what they may read they can read."""
    inside: list[tuple[str, bool]] = []
    with (
        contextlib.suppress(OSError),  # gone, or the scan reports it as unreadable
        directories.open(where) as fd,
        os.scandir(fd) as entries,
    ):
        for entry in entries:
            if _is_ordinary(where, entry.name):
                continue
            known = tree.expected(where, entry.name)
            is_directory = entry.is_dir(follow_symlinks=False)
            if known is None or (known.is_checked and not _is_as_expected(entry, known)):
                if not _is_scanned(where, entry.name, is_directory):
                    yield _stray(where, entry.name, is_directory)
            elif known.forbidden and not (where and tree.has_own_scan(where) and not is_directory):
                if (*where, entry.name) == layout.CREDENTIALS:
                    continue  # they came first
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if is_directory:
                        inside.append((entry.name, reachable and bool(about.st_mode & _EXECUTE_OTHERS)))
                    if is_directory or stat.S_ISREG(about.st_mode):
                        yield from _entry(where, entry.name, about, known, owner, reachable=reachable)
    for name, passable in inside:
        if tree.is_walked((*where, name)):
            yield from _directory(directories, (*where, name), owner, passable)


def _is_ordinary(where: layout.Parts, name: str) -> bool:
    """Whether an entry is content or a link by its name: almost all are, and others scan them."""
    if len(where) == 2:
        return name.isascii() and tree.has_own_scan(where)
    return len(where) == 3 and layout.PROJECTION.match(name) is not None


def _is_as_expected(entry: os.DirEntry[str], known: Expected) -> bool:
    if known.is_directory:
        return entry.is_dir(follow_symlinks=False)
    return entry.is_file(follow_symlinks=False)


def _is_scanned(where: layout.Parts, name: str, is_directory: bool) -> bool:
    """Whether the scan of content finds the entry by itself: a file with a name that is text, at any level."""
    return bool(where) and tree.has_own_scan(where) and names.is_text(name) and not (len(where) == 1 and is_directory)


def _entry(
    where: layout.Parts, name: str, about: os.stat_result, known: Expected, owner: int, *, reachable: bool
) -> Iterator[Finding]:
    forbidden = known.forbidden if reachable else known.forbidden & ~0o005
    if wide := about.st_mode & forbidden:
        kind = "credentials-exposed" if known.forbidden == tree.SECRET else "mode-too-wide"
        yield _too_wide(kind, where, name, about.st_mode, wide)
    if about.st_uid != owner:
        yield _foreign(where, name, about.st_uid, owner)


def _stray(where: layout.Parts, name: str, is_directory: bool) -> Finding:
    raw = "" if names.is_text(name) else os.fsencode(name).hex()
    place = layout.absolute(*where) if where else ""
    what = "a directory" if is_directory else "an entry"
    subject = layout.absolute(*where, shown(name)) if where else shown(name)
    return Finding("stray-entry", subject, place=place, name=shown(name), id=raw, detail=f"{what} that is not ours")


def _too_wide(kind: str, where: layout.Parts, name: str, mode: int, wide: int) -> Finding:
    detail = f"mode {stat.S_IMODE(mode):04o}: {'writable' if wide & 0o022 else 'readable'} for other users"
    return Finding(kind, _path(where, name), place=layout.absolute(*where) if where else "", name=name, detail=detail)


def _foreign(where: layout.Parts, name: str, found: int, owner: int) -> Finding:
    place = layout.absolute(*where) if where else ""
    detail = f"belongs to user {found}, the store to user {owner}"
    return Finding("owner-foreign", _path(where, name), place=place, name=name, detail=detail)


def _path(where: layout.Parts, name: str) -> str:
    return layout.absolute(*where, name) if where else name or "."
