"""Repair the tree: restore modes, quarantine stray entries, remove a damaged text index."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat

from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair.folders import FolderRepair
from adapter.maintenance.scan import tree_audit, tree_rules
from adapter.store import disk, layout, quarantine
from adapter.store.disk import Directories
from adapter.store.effects import CreateFolder
from adapter.store.queries import text_index as text_cache
from adapter.transport.apply import folders


def close(directories: Directories, finding: Finding) -> Outcome:
    """Remove the forbidden mode bits of an entry."""
    where = quarantine.parts(finding.place)
    if not finding.name:
        mode = stat.S_IMODE(os.fstat(directories.root_fd).st_mode) & ~tree_rules.READABLE
        disk.change_mode(directories.root_fd, ".", mode)
        return Outcome(finding, "repaired", f"mode {mode:04o}")
    expected = tree_rules.expected(where, finding.name)
    forbidden = expected.forbidden if expected is not None else tree_rules.READABLE
    try:
        with directories.open(where) as directory:
            about = os.stat(finding.name, dir_fd=directory, follow_symlinks=False)
            is_fixed = stat.S_ISREG(about.st_mode) and forbidden == tree_rules.READABLE  # the file is immutable
            mode = stat.S_IMODE(about.st_mode) & ~(forbidden | (0o222 if is_fixed else 0))
            if not stat.S_ISLNK(about.st_mode):
                disk.change_mode(directory, finding.name, mode)
    except FileNotFoundError:
        return Outcome(finding, "repaired", "already gone")
    except PermissionError:
        return Outcome(
            finding, "conflict", "only its owner can change the mode", _chmod(directories, finding, forbidden)
        )
    more = "; change the passwords if others use this machine" if finding.kind == "credentials-exposed" else ""
    return Outcome(finding, "repaired", f"mode {mode:04o}{more}")


def foreign_owner(directories: Directories, finding: Finding) -> Outcome:
    """Leave a foreign owner to a person: only root can change it."""
    owner = os.fstat(directories.root_fd).st_uid
    path = shlex.quote(layout.absolute(directories.root, finding.subject))
    return Outcome(finding, "conflict", "unchanged", f"chown -h {owner} {path}")


def stray(directories: Directories, finding: Finding) -> Outcome:
    where = quarantine.parts(finding.place)
    moved = quarantine.move(directories, where, tree_audit.name_of(finding), finding.detail)
    return Outcome(finding, "harmless", f"moved to {moved}" if moved else "already gone")


def text_index(directories: Directories, finding: Finding) -> Outcome:
    """Remove a damaged text index, which is a cache; quarantine an entry of that name that is not a file."""
    with contextlib.suppress(FileNotFoundError):
        about = os.stat(finding.name, dir_fd=directories.root_fd, follow_symlinks=False)
        if not stat.S_ISREG(about.st_mode):
            quarantine.move(directories, (), finding.name, finding.detail)
    text_cache.drop(directories.root)
    return Outcome(finding, "harmless", "removed; servers fill it again")


def full_name(repair: FolderRepair, finding: Finding) -> Outcome:
    """Rewrite the ``.name`` file of a folder with a shortened directory name."""
    directories = repair.target.directories
    where = (*layout.mailbox_directory(finding.mailbox), finding.entry)
    folder = repair.at(finding.mailbox, finding.entry)
    if folder is None or not repair.exists(where):
        return Outcome(finding, "repaired", "already gone")
    quarantine.move(directories, where, layout.FULL_NAME_FILE, "not the name of this folder")
    folders.identify(CreateFolder.of(folder), directories)
    return Outcome(finding, "repaired", "rewrote the full name")


def _chmod(directories: Directories, finding: Finding, forbidden: int) -> str:
    classes = "".join(letter for letter, bits in (("g", 0o070), ("o", 0o007)) if forbidden & bits)
    return f"chmod {classes}-w {shlex.quote(layout.absolute(directories.root, finding.subject))}"
