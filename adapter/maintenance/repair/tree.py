"""Mending the tree: modes are set back, strays go to quarantine, the text index is removed to be filled again."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat

from adapter.maintenance import quarantine
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair.folders import Mender
from adapter.maintenance.scan import tree_audit
from adapter.store import disk, layout, tree
from adapter.store.disk import Directories
from adapter.store.effects import CreateFolder
from adapter.store.queries import text_index as text_cache
from adapter.transport.apply import folders


def close(directories: Directories, finding: Finding) -> Outcome:
    """Take from an entry the mode bits that ours never have."""
    where = quarantine.parts(finding.place)
    if not finding.name:
        mode = stat.S_IMODE(os.fstat(directories.root_fd).st_mode) & ~tree.READABLE
        disk.change_mode(directories.root_fd, ".", mode)
        return Outcome(finding, "repaired", f"mode {mode:04o}")
    known = tree.expected(where, finding.name)
    forbidden = known.forbidden if known is not None else tree.READABLE
    try:
        with directories.open(where) as directory:
            about = os.stat(finding.name, dir_fd=directory, follow_symlinks=False)
            is_fixed = stat.S_ISREG(about.st_mode) and forbidden == tree.READABLE  # such a file is never written again
            mode = stat.S_IMODE(about.st_mode) & ~(forbidden | (0o222 if is_fixed else 0))
            if not stat.S_ISLNK(about.st_mode):
                disk.change_mode(directory, finding.name, mode)
    except FileNotFoundError:
        return Outcome(finding, "repaired", "gone already")
    except PermissionError:
        return Outcome(
            finding, "conflict", "only its owner can change the mode", _chmod(directories, finding, forbidden)
        )
    more = "; change the passwords if others use this machine" if finding.kind == "credentials-exposed" else ""
    return Outcome(finding, "repaired", f"mode {mode:04o}{more}")


def foreign_owner(directories: Directories, finding: Finding) -> Outcome:
    """An owner is for a person to change: only the superuser can."""
    owner = os.fstat(directories.root_fd).st_uid
    path = shlex.quote(layout.absolute(directories.root, finding.subject))
    return Outcome(finding, "conflict", "left as it is", f"chown -h {owner} {path}")


def stray(directories: Directories, finding: Finding) -> Outcome:
    where = quarantine.parts(finding.place)
    moved = quarantine.move(directories, where, tree_audit.name_of(finding), finding.detail)
    return Outcome(finding, "harmless", f"moved to {moved}" if moved else "gone already")


def text_index(directories: Directories, finding: Finding) -> Outcome:
    """It is a cache: what is no file goes to quarantine, a file is removed."""
    with contextlib.suppress(FileNotFoundError):
        about = os.stat(finding.name, dir_fd=directories.root_fd, follow_symlinks=False)
        if not stat.S_ISREG(about.st_mode):
            quarantine.move(directories, (), finding.name, finding.detail)
    text_cache.drop(directories.root)
    return Outcome(finding, "harmless", "removed; it is filled again")


def full_name(mender: Mender, finding: Finding) -> Outcome:
    """Write the ``.name`` file of a folder with a shortened directory name again."""
    directories = mender.state.directories
    where = (*layout.mailbox_directory(finding.mailbox), finding.entry)
    folder = mender.at(finding.mailbox, finding.entry)
    if folder is None or not mender.exists(where):
        return Outcome(finding, "repaired", "gone already")
    quarantine.move(directories, where, layout.FULL_NAME_FILE, "not the name of this folder")
    folders.identify(CreateFolder.of(folder), directories)
    return Outcome(finding, "repaired", "wrote the full name again")


def _chmod(directories: Directories, finding: Finding, forbidden: int) -> str:
    classes = "".join(letter for letter, bits in (("g", 0o070), ("o", 0o007)) if forbidden & bits)
    return f"chmod {classes}-w {shlex.quote(layout.absolute(directories.root, finding.subject))}"
