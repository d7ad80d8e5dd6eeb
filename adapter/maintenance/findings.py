"""What can be wrong with a store: every kind of finding, who decides it, and what repair does about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Severity = Literal["harmless", "repaired", "conflict", "loss", "unreadable"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class Kind(NamedTuple):
    severity: Severity  # once repair has acted; ``conflict`` and ``loss`` may also come out of an action
    authority: str
    action: str


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    subject: str
    place: str = ""  # directory below the root, where there is one
    name: str = ""
    id: str = ""
    mailbox: str = ""
    entry: str = ""
    folder: int = 0
    uid: int = 0
    detail: str = ""


_INDEX = "journal"
_FILE = "canonical file"
_PROGRAM = "what the program makes"
#: Kinds that a report names first.
URGENT = ("credentials-exposed",)
KINDS: dict[str, Kind] = {
    # the index as a whole
    "index-missing": Kind("harmless", _INDEX, "build the index anew"),
    "index-unreadable": Kind("harmless", _INDEX, "build the index anew; salvage what only it knows"),
    "index-schema-wrong": Kind(
        "harmless", "schema of the program", "build the index again from its rows or the journal"
    ),
    "index-meta-wrong": Kind("repaired", _INDEX, "correct the row"),
    "index-foreign": Kind("repaired", "store id", "move to quarantine, build the index anew"),
    "index-diverged": Kind("repaired", "journal, if it is complete", "build the index anew, or seal what it says"),
    "index-outdated": Kind("harmless", _INDEX, "build the index anew"),
    "store-id-damaged": Kind("repaired", "the files that carry the id", "write the file again"),
    "cache-stale": Kind("harmless", _FILE, "compute the row again"),
    # rows of the index
    "registration-missing": Kind("repaired", _INDEX, "add the registration"),
    "registration-orphan": Kind("repaired", _INDEX, "remove the row"),
    "registration-mismatched": Kind("repaired", _INDEX, "correct the row"),
    "folder-path-without-row": Kind("repaired", "journal, else the path", "add the row with the identity of the path"),
    "folder-row-orphan": Kind("repaired", _INDEX, "remove the row"),
    "folder-mismatched": Kind("repaired", _INDEX, "correct the row"),
    "uidnext-too-low": Kind("repaired", _INDEX, "raise UIDNEXT"),
    "counters-stale": Kind("harmless", "the rows counted", "count again"),
    "subscription-wrong": Kind("repaired", _INDEX, "correct the subscription"),
    "message-not-indexed": Kind("repaired", _FILE, "index the message, show it where its links or recipients say"),
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
    "threads-stale": Kind("harmless", "the rows counted", "count again"),
    "outbox-wrong": Kind("repaired", _INDEX, "correct the row"),
    "bookmark-wrong": Kind("repaired", _INDEX, "correct the row"),
    "dsn-request-wrong": Kind("repaired", _INDEX, "correct the row"),
    "loss-record-wrong": Kind("repaired", _INDEX, "correct the row"),
    # mailbox objects on disk
    "registration-directory-missing": Kind("repaired", _INDEX, "make the directory"),
    "registration-directory-orphan": Kind("repaired", _INDEX, "move the directory to quarantine"),
    "credentials-orphan": Kind("repaired", _INDEX, "register the address, or set aside the password of one removed"),
    "folder-row-without-path": Kind("repaired", _INDEX, "make the directory, its identity and its links"),
    "folder-two-ids": Kind("repaired", "journal, else the one with mail", "merge into one, keep every message"),
    "folder-id-at-two-paths": Kind("repaired", "journal", "fold the other path in, or give it its own identity"),
    "folder-identity-damaged": Kind("repaired", _INDEX, "write the identity again"),
    "folder-identity-foreign": Kind("repaired", "store id", "move to quarantine, write the folder's own"),
    "folder-identity-outdated": Kind("repaired", _INDEX, "raise the UID mark"),
    "folder-unidentified": Kind("repaired", "the path", "give the directory an identity"),
    # content
    "message-lost": Kind("repaired", "journal", "restore from the journal; else a loss that leaves its folders"),
    "message-corrupt": Kind("repaired", "checksum", "restore from the journal; else mark the message as damaged"),
    "message-misfiled": Kind("repaired", _FILE, "move it where it belongs"),
    "message-duplicate": Kind("repaired", _FILE, "move the copy to quarantine"),
    "message-dropped": Kind("repaired", "journal", "move to quarantine what was removed"),
    "message-returned": Kind("repaired", _FILE, "show it where it was, with its flags and a new UID"),
    "part-returned": Kind("repaired", "checksum", "take the placeholder away, give the message a new UID"),
    "message-stray": Kind("harmless", "none", "move to quarantine"),
    "blob-missing": Kind("repaired", "journal", "restore from the journal; else a placeholder stands for it"),
    "blob-corrupt": Kind("repaired", "checksum", "quarantine, restore from the journal; else a placeholder"),
    "blob-misfiled": Kind("repaired", "checksum", "move it where it belongs"),
    "blob-duplicate": Kind("repaired", "checksum", "move the copy to quarantine"),
    "blob-orphan": Kind("harmless", "canonical files", "move to quarantine"),
    # links
    "projection-missing": Kind("repaired", _INDEX, "make the link"),
    "projection-wrong-target": Kind("repaired", _INDEX, "make the link again"),
    "projection-dangling": Kind("repaired", _INDEX, "move the link to quarantine"),
    "projection-orphan": Kind("repaired", "journal, else the link", "move the link to quarantine, else add the row"),
    "projection-duplicate-uid": Kind("repaired", "journal, else the link", "keep the row's; the other as an orphan"),
    # the tree
    "credentials-exposed": Kind("repaired", _PROGRAM, "close it to other users"),
    "mode-too-wide": Kind("repaired", _PROGRAM, "set the mode back"),
    "owner-foreign": Kind("conflict", "the owner of the store", "left to a person"),
    "stray-entry": Kind("harmless", "none", "move to quarantine"),
    "folder-name-wrong": Kind("repaired", _INDEX, "write the full name again"),
    "text-index-damaged": Kind("harmless", "none", "remove the cache; it is filled again"),
    # the rest
    "unreadable": Kind("unreadable", "none", "left as it is until it can be read"),
    "staging-leftover": Kind("harmless", "none", "move to quarantine"),
    "journal-torn": Kind("harmless", "checksum", "cut what was never acknowledged"),
    "journal-damaged": Kind("repaired", "index and files", "seal what is known with a snapshot"),
    "journal-foreign": Kind("repaired", "store id", "move to quarantine"),
    "snapshot-damaged": Kind("harmless", "journal", "move to quarantine"),
    "snapshot-foreign": Kind("harmless", "store id", "move to quarantine"),
}


@dataclass(slots=True)
class Outcome:
    """What became of a finding."""

    finding: Finding
    severity: Severity
    done: str
    decide: str = ""  # the option that decides a conflict

    @classmethod
    def expected(cls, finding: Finding) -> Outcome:
        kind = KINDS[finding.kind]
        return cls(finding, kind.severity, kind.action)
