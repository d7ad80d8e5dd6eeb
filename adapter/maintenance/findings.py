"""Kinds of findings: the severity of each, the authority that decides it, and the action of repair.

Unreadable is not lost: content may be intact behind a wrong permission, a failing cable or an exhausted file table.
Repair changes nothing because of an unreadable file.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from adapter.store import disk, layout

Severity = Literal["harmless", "repaired", "conflict", "loss", "unreadable"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class Kind(NamedTuple):
    severity: Severity  # after the repair; an action can also end in ``conflict`` or ``loss``
    authority: str
    action: str


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    subject: str
    place: str = ""  # directory below the root, if any
    name: str = ""
    id: str = ""
    mailbox: str = ""
    entry: str = ""
    folder: int = 0
    uid: int = 0
    detail: str = ""


_INDEX = "journal"
_FILE = "canonical file"
_PROGRAM = "Markpost's own modes"
#: Kinds listed first in a report.
URGENT = ("credentials-exposed",)
KINDS: dict[str, Kind] = {
    # the index as a whole
    "index-missing": Kind("harmless", _INDEX, "rebuild the index"),
    "index-unreadable": Kind("harmless", _INDEX, "rebuild the index; salvage rows that only the old one has"),
    "index-schema-wrong": Kind("harmless", "schema of the program", "rebuild the index from its rows or the journal"),
    "index-meta-wrong": Kind("repaired", _INDEX, "correct the row"),
    "index-foreign": Kind("repaired", "store id", "move to quarantine, rebuild the index"),
    "index-diverged": Kind("repaired", "journal, if it is complete", "rebuild the index, or seal its rows"),
    "index-outdated": Kind("harmless", _INDEX, "rebuild the index"),
    "store-id-damaged": Kind("repaired", "the files that carry the id", "rewrite the file"),
    "cache-stale": Kind("harmless", _FILE, "recompute the row"),
    # rows of the index
    "registration-missing": Kind("repaired", _INDEX, "add the registration"),
    "registration-orphan": Kind("repaired", _INDEX, "remove the row"),
    "registration-mismatched": Kind("repaired", _INDEX, "correct the row"),
    "folder-path-without-row": Kind("repaired", "journal, else the path", "add the row with the identity of the path"),
    "folder-row-orphan": Kind("repaired", _INDEX, "remove the row"),
    "folder-mismatched": Kind("repaired", _INDEX, "correct the row"),
    "uidnext-too-low": Kind("repaired", _INDEX, "raise UIDNEXT"),
    "counters-stale": Kind("harmless", "the counted rows", "recount"),
    "subscription-wrong": Kind("repaired", _INDEX, "correct the subscription"),
    "message-not-indexed": Kind("repaired", _FILE, "index the message, show it by its links or to its recipients"),
    "message-row-orphan": Kind("repaired", _INDEX, "remove the row"),
    "message-row-wrong": Kind("repaired", _INDEX, "correct the row"),
    "recipients-wrong": Kind("repaired", _INDEX, "correct the rows"),
    "attachments-wrong": Kind("repaired", _INDEX, "correct the rows"),
    "projection-row-missing": Kind("repaired", _INDEX, "add the row"),
    "projection-row-orphan": Kind("repaired", _INDEX, "remove the row"),
    "projection-row-wrong": Kind("repaired", _INDEX, "correct the row"),
    "state-missing": Kind("repaired", _INDEX, "add the row"),
    "state-orphan": Kind("repaired", _INDEX, "remove the row"),
    "state-wrong": Kind("repaired", _INDEX, "correct flags, keywords and mod-sequence"),
    "expunged-wrong": Kind("repaired", _INDEX, "correct the rows"),
    "threads-stale": Kind("harmless", "the counted rows", "recount"),
    "outbox-wrong": Kind("repaired", _INDEX, "correct the row"),
    "bookmark-wrong": Kind("repaired", _INDEX, "correct the row"),
    "dsn-request-wrong": Kind("repaired", _INDEX, "correct the row"),
    "loss-record-wrong": Kind("repaired", _INDEX, "correct the row"),
    # mailbox objects on disk
    "registration-directory-missing": Kind("repaired", _INDEX, "create the directory"),
    "registration-directory-orphan": Kind("repaired", _INDEX, "move the directory to quarantine"),
    "credentials-orphan": Kind("repaired", _INDEX, "register the address, or quarantine the password of a removed one"),
    "folder-row-without-path": Kind("repaired", _INDEX, "create the directory, its identity and its links"),
    "folder-two-ids": Kind("repaired", "journal, else the folder with mail", "merge the two, keep every message"),
    "folder-id-at-two-paths": Kind("repaired", "journal", "merge the other path, or give it a new identity"),
    "folder-identity-damaged": Kind("repaired", _INDEX, "rewrite the identity"),
    "folder-identity-foreign": Kind("repaired", "store id", "move to quarantine, write the folder's own identity"),
    "folder-identity-outdated": Kind("repaired", _INDEX, "raise the UID mark"),
    "folder-unidentified": Kind("repaired", "the path", "write an identity for the directory"),
    # content
    "message-lost": Kind("repaired", "journal", "restore from the journal; else record the loss, remove from folders"),
    "message-corrupt": Kind("repaired", "checksum", "restore from the journal; else mark the message as damaged"),
    "message-misfiled": Kind("repaired", _FILE, "move to the right directory"),
    "message-duplicate": Kind("repaired", _FILE, "move the copy to quarantine"),
    "message-dropped": Kind("repaired", "journal", "move the removed message to quarantine"),
    "message-returned": Kind("repaired", _FILE, "show it in its former folders, with its flags and a new UID"),
    "part-returned": Kind("repaired", "checksum", "remove the placeholder, give the message a new UID"),
    "message-stray": Kind("harmless", "none", "move to quarantine"),
    "blob-missing": Kind("repaired", "journal", "restore from the journal; else serve a placeholder"),
    "blob-corrupt": Kind("repaired", "checksum", "quarantine, restore from the journal; else serve a placeholder"),
    "blob-misfiled": Kind("repaired", "checksum", "move to the right directory"),
    "blob-duplicate": Kind("repaired", "checksum", "move the copy to quarantine"),
    "blob-orphan": Kind("harmless", "canonical files", "move to quarantine"),
    # links
    "projection-missing": Kind("repaired", _INDEX, "create the link"),
    "projection-wrong-target": Kind("repaired", _INDEX, "replace the link"),
    "projection-dangling": Kind("repaired", _INDEX, "move the link to quarantine"),
    "projection-orphan": Kind("repaired", "journal, else the link", "move the link to quarantine, else add the row"),
    "projection-duplicate-uid": Kind(
        "repaired", "journal, else the link", "keep the row's link; the other is an orphan"
    ),
    # the tree
    "credentials-exposed": Kind("repaired", _PROGRAM, "remove access for other users"),
    "mode-too-wide": Kind("repaired", _PROGRAM, "restore the mode"),
    "owner-foreign": Kind("conflict", "the owner of the store", "left to a person"),
    "stray-entry": Kind("harmless", "none", "move to quarantine"),
    "folder-name-wrong": Kind("repaired", _INDEX, "rewrite the full name"),
    "text-index-damaged": Kind("harmless", "none", "remove the cache; servers fill it again"),
    # history and staging
    "unreadable": Kind("unreadable", "none", "unchanged until it can be read"),
    "staging-leftover": Kind("harmless", "none", "move to quarantine"),
    "journal-torn": Kind("harmless", "checksum", "truncate the unacknowledged append"),
    "journal-damaged": Kind("repaired", "index and files", "seal the repaired tables with a snapshot"),
    "journal-foreign": Kind("repaired", "store id", "move to quarantine"),
    "snapshot-damaged": Kind("harmless", "journal", "move to quarantine"),
    "snapshot-foreign": Kind("harmless", "store id", "move to quarantine"),
}


@dataclass(slots=True)
class Outcome:
    """The outcome of a finding: the action taken, or the one that repair would take."""

    finding: Finding
    severity: Severity
    done: str
    decide: str = ""  # the option that decides a conflict

    @classmethod
    def expected(cls, finding: Finding) -> Outcome:
        """The normal outcome of the finding's kind."""
        kind = KINDS[finding.kind]
        return cls(finding, kind.severity, kind.action)


# --- files and directories that cannot be read now -------------------------------------------------------------------

_PERMISSION = "grant the store's user read access (chown, chmod), then run check again"
_DISK = "disk error: see the kernel log, then restore the file from a backup or run check again"
_RESOURCES = "close other programs or raise the limit, then run check again"
_REMEDIES = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EIO: _DISK,
    errno.ESTALE: "stale network file handle: remount the file system, then run check again",
    errno.ENOMEM: _RESOURCES,
    errno.EMFILE: _RESOURCES,
    errno.ENFILE: _RESOURCES,
}


def unreadable_cause(error: OSError) -> str:
    """Cause and remedy of a read error; "" if the error does not mean that the file is unreadable."""
    if not disk.is_unreadable(error):
        return ""
    number = error.errno or 0
    return f"{os.strerror(number)}: {_REMEDIES.get(number, 'run check again')}"


def unreadable_finding(where: layout.Parts, why: str) -> Finding:
    return Finding("unreadable", layout.absolute(*where), detail=why)
