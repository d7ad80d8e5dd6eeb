"""Audit the store's tree: stray entries, file modes that are too wide, foreign owners, a damaged text index.

The driver checks names and modes of everything except content and links; executors check the mode and the owner of
each file they read (:func:`audit_file`). No file is opened, so that a pipe cannot block the audit.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from adapter.maintenance.findings import Finding
from adapter.maintenance.scan import tree_rules
from adapter.maintenance.scan.tree_rules import Expected
from adapter.store import layout, names
from adapter.store.disk import Directories
from adapter.store.queries import text_index

_EXECUTE_OTHERS = 0o001


def audit(directories: Directories) -> Iterator[Finding]:
    """Yield all findings about the tree, those about credentials first."""
    top = os.fstat(directories.root_fd)
    reachable = bool(top.st_mode & _EXECUTE_OTHERS)
    yield from _credentials(directories, top.st_uid)
    if wide := top.st_mode & tree_rules.READABLE:
        yield _too_wide("mode-too-wide", (), "", top.st_mode, wide)
    yield from _directory(directories, (), top.st_uid, reachable)
    if problem := text_index.find_defect(directories.root):
        yield Finding("text-index-damaged", layout.TEXT_INDEX_FILE, name=layout.TEXT_INDEX_FILE, detail=problem)


def audit_file(where: layout.Parts, name: str, about: os.stat_result, owner: int) -> Iterator[Finding]:
    """Yield findings about the mode and the owner of a content file."""
    if wide := about.st_mode & tree_rules.READABLE:
        yield _too_wide("mode-too-wide", where, name, about.st_mode, wide)
    if about.st_uid != owner:
        yield _foreign(where, name, about.st_uid, owner)


def shown(name: str) -> str:
    """Convert a file name to text; octets that are not valid UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def name_of(finding: Finding) -> str:
    """The original file name of a stray entry."""
    return os.fsdecode(bytes.fromhex(finding.id)) if finding.id else finding.name


def _credentials(directories: Directories, owner: int) -> Iterator[Finding]:
    with contextlib.suppress(FileNotFoundError):
        about = os.stat(layout.CREDENTIALS[0], dir_fd=directories.root_fd, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode):
            yield from _entry(
                (), layout.CREDENTIALS[0], about, Expected(True, tree_rules.SECRET), owner, reachable=True
            )
            yield from _directory(directories, layout.CREDENTIALS, owner, reachable=True)


def _directory(directories: Directories, where: layout.Parts, owner: int, reachable: bool) -> Iterator[Finding]:
    """Audit a directory and those below it. ``reachable``: other users can traverse the path to it."""
    inside: list[tuple[str, bool]] = []
    with (
        contextlib.suppress(OSError),  # removed, or reported as unreadable by the scan
        directories.open(where) as fd,
        os.scandir(fd) as entries,
    ):
        for entry in entries:
            if _is_ordinary(where, entry.name):
                continue
            expected = tree_rules.expected(where, entry.name)
            is_directory = entry.is_dir(follow_symlinks=False)
            if expected is None or (expected.is_checked and not _has_expected_type(entry, expected)):
                if not _is_scanned(where, entry.name, is_directory):
                    yield _stray(where, entry.name, is_directory)
            elif expected.forbidden and not (where and tree_rules.has_own_scan(where) and not is_directory):
                if (*where, entry.name) == layout.CREDENTIALS:
                    continue  # audited first
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if is_directory:
                        inside.append((entry.name, reachable and bool(about.st_mode & _EXECUTE_OTHERS)))
                    if is_directory or stat.S_ISREG(about.st_mode):
                        yield from _entry(where, entry.name, about, expected, owner, reachable=reachable)
    for name, passable in inside:
        if tree_rules.is_walked((*where, name)):
            yield from _directory(directories, (*where, name), owner, passable)


def _is_ordinary(where: layout.Parts, name: str) -> bool:
    """True if an entry is content or a link by its name; almost all are, and executors scan them."""
    if len(where) == 2:
        return name.isascii() and tree_rules.has_own_scan(where)
    return len(where) == 3 and layout.PROJECTION.match(name) is not None


def _has_expected_type(entry: os.DirEntry[str], expected: Expected) -> bool:
    if expected.is_directory:
        return entry.is_dir(follow_symlinks=False)
    return entry.is_file(follow_symlinks=False)


def _is_scanned(where: layout.Parts, name: str, is_directory: bool) -> bool:
    """True if the content scan reports the entry: a file with a UTF-8 name, at any level."""
    return (
        bool(where)
        and tree_rules.has_own_scan(where)
        and names.is_text(name)
        and not (len(where) == 1 and is_directory)
    )


def _entry(
    where: layout.Parts, name: str, about: os.stat_result, expected: Expected, owner: int, *, reachable: bool
) -> Iterator[Finding]:
    forbidden = expected.forbidden if reachable else expected.forbidden & ~0o005
    if wide := about.st_mode & forbidden:
        kind = "credentials-exposed" if expected.forbidden == tree_rules.SECRET else "mode-too-wide"
        yield _too_wide(kind, where, name, about.st_mode, wide)
    if about.st_uid != owner:
        yield _foreign(where, name, about.st_uid, owner)


def _stray(where: layout.Parts, name: str, is_directory: bool) -> Finding:
    raw = "" if names.is_text(name) else os.fsencode(name).hex()
    place = layout.absolute(*where) if where else ""
    what = "directory" if is_directory else "entry"
    subject = layout.absolute(*where, shown(name)) if where else shown(name)
    return Finding("stray-entry", subject, place=place, name=shown(name), id=raw, detail=f"{what} does not belong here")


def _too_wide(kind: str, where: layout.Parts, name: str, mode: int, wide: int) -> Finding:
    detail = f"mode {stat.S_IMODE(mode):04o}: {'writable' if wide & 0o022 else 'readable'} for other users"
    return Finding(kind, _path(where, name), place=layout.absolute(*where) if where else "", name=name, detail=detail)


def _foreign(where: layout.Parts, name: str, actual_owner: int, owner: int) -> Finding:
    place = layout.absolute(*where) if where else ""
    detail = f"owned by user {actual_owner}; the store is owned by user {owner}"
    return Finding("owner-foreign", _path(where, name), place=place, name=name, detail=detail)


def _path(where: layout.Parts, name: str) -> str:
    return layout.absolute(*where, name) if where else name or "."
