"""Layout of the store: the only module that builds paths below the root.

Paths are tuples of names relative to the root; ``disk`` walks them one directory at a time without following symbolic
links, so no path can leave the store.
"""

from __future__ import annotations

import re
from importlib.resources import files

from adapter.store import names

Parts = tuple[str, ...]

VERSION_FILE = "protocol-version.txt"
VERSION = 1
STORE_ID_FILE = "store-id.txt"
README_FILE = "README.md"  # explains the tree to a person or an agent who finds it
BACKUP_FILE = "backup.json"  # in a backup, in place of VERSION_FILE

INDEX_FILE = "index.sqlite"
TEXT_INDEX_FILE = "cache-text.sqlite"  # may be removed at any time
RECENT_MARKS_FILE = "cache-recent.sqlite"  # may be removed at any time
MESSAGES: Parts = ("messages",)
ATTACHMENTS: Parts = ("attachments",)
MAILBOXES: Parts = ("mailboxes",)
JOURNAL: Parts = ("journal",)
SNAPSHOTS: Parts = ("snapshots",)
STAGING: Parts = ("staging",)
DROPPED: Parts = ("staging", "removing")
SET_ASIDE = "moving-"  # in staging: folders on their way to another place, while records are rolled forward
LOCKS: Parts = ("locks",)
ADDRESS_LOCKS: Parts = ("locks", "addresses")
MAINTENANCE: Parts = ("maintenance",)
INDEX_BACKUPS: Parts = ("maintenance", "index-backups")
QUARANTINE: Parts = ("maintenance", "quarantine")
DIRECTORIES: tuple[Parts, ...] = (
    MESSAGES, ATTACHMENTS, MAILBOXES, JOURNAL, SNAPSHOTS, STAGING, LOCKS, ADDRESS_LOCKS, MAINTENANCE, INDEX_BACKUPS,
)  # fmt: skip

CHECKPOINT_FILE = "checkpoint.json"
MANIFEST_FILE = "manifest.json"
INDEX_LOCK = "index.lock"
SERVICE_LOCK = "service.lock"
PUBLISHED_FILE = "published"  # in locks
OFFLINE_LOCK = "offline.lock"
OFFLINE_MARKER = "offline"
UNDECIDED_FILE = "undecided.json"  # in maintenance: conflicts that a repair left to a person
IDENTITY_FILE = ".mailbox"
FULL_NAME_FILE = ".name"
CREDENTIALS_FILE = "passwd"
SERVER_SECRET_FILE = "server-secret"  # noqa: S105 - a name
PROVEN_PEERS_FILE = "proven-peers"
CREDENTIAL_FILES = (CREDENTIALS_FILE, SERVER_SECRET_FILE, PROVEN_PEERS_FILE)
#: Credentials have their own directory, readable by the owner only.
CREDENTIALS: Parts = ("credentials",)

MESSAGE_ID = re.compile(r"msg-(\d{4})(\d{2})(\d{2})T\d{6}Z-[0-9a-f]{20}\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
PROJECTION = re.compile(r"([1-9][0-9]{0,9})-(msg-[0-9TZ]+-[0-9a-f]{20})\.md\Z")
JOURNAL_SEGMENT = re.compile(r"([0-9]{16})\.jsonl\Z")
_DUTY = re.compile(r"(compaction|relay|hooks|retention|pull-[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63})\Z")


def absolute(root: str, *parts: str) -> str:
    """A path from the root, for SQLite, which opens files by path, and for messages to people."""
    return "/".join((root, *parts))


def readme() -> bytes:
    """The page in the root of every store: where mail is, how to search it, and what not to touch."""
    return files(__package__).joinpath("store_readme.md").read_bytes()


def message_directory(message_id: str) -> Parts:
    match = MESSAGE_ID.match(message_id)
    if match is None:
        raise ValueError(f"not a message id: {message_id!r}")
    return ("messages", "-".join(match.groups()))


def message_name(message_id: str) -> str:
    return f"{message_id}.md"


def blob_directory(sha256: str) -> Parts:
    if not SHA256.match(sha256):
        raise ValueError(f"not a SHA-256: {sha256!r}")
    return ("attachments", sha256[:2])


def mailbox_directory(entry: str) -> Parts:
    """``entry`` is the registration's directory name: an escaped address, or a stash."""
    return ("mailboxes", entry)


def folder_directory(entry: str, folder_name: str) -> Parts:
    return ("mailboxes", entry, names.folder_entry(folder_name))


def projection_name(uid: int, message_id: str) -> str:
    return f"{uid}-{message_id}.md"


def projection_target(message_id: str) -> str:
    return "/".join(("..", "..", "..", *message_directory(message_id), message_name(message_id)))


def staging_directory(session: str) -> Parts:
    return ("staging", session)


def snapshot_directory(seq: int) -> Parts:
    return ("snapshots", f"{seq:016d}")


def journal_segment(first_seq: int) -> str:
    return f"{first_seq:016d}.jsonl"


def duty_lock(duty: str) -> str:
    """The lock of work that one process at a time does: ``compaction``, ``relay``, ``hooks`` or ``pull-<upstream>``."""
    if not _DUTY.match(duty):
        raise ValueError(f"not a duty: {duty!r}")
    return f"{duty}.lock"


def address_lock(address: str) -> str:
    return f"{names.address_entry(address)}.lock"
