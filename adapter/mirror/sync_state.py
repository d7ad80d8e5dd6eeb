"""Sync state of an upstream folder, stored as bookmarks: its mirrored messages, and its state after the last full sync.

The bookmarks belong to the registration of the account, so an account that was deleted and created again is mirrored
from the start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from adapter.mirror.replies import MailboxState
from adapter.store.queries import bookmarks, mailboxes
from adapter.transport.operations.mirror import Place
from adapter.transport.transport import Transport

STATE = "state"
FOLDER = "folder"
_PULL = "pull "


def owner(upstream: str, registration: str, mailbox: str = "") -> str:
    """Return the owner of a folder's bookmarks; without ``mailbox``, the prefix of all folders of an upstream."""
    return f"{_PULL}{upstream} {registration} {mailbox}"


def bookmark(uidvalidity: int, uid: int) -> str:
    return f"{uidvalidity}.{uid}"


@dataclass(slots=True)
class SyncState:
    """The bookmarks of one upstream folder."""

    owner: str
    mailbox: MailboxState = field(default_factory=MailboxState)
    folder: int = 0  # id in the store; 0: none yet
    places: dict[tuple[int, int], Place] = field(default_factory=dict)  # by UIDVALIDITY and UID

    def generation(self, uidvalidity: int) -> dict[int, Place]:
        """Return the mirrored messages of this UIDVALIDITY, by UID."""
        return {uid: place for (validity, uid), place in self.places.items() if validity == uidvalidity}

    def older(self, uidvalidity: int) -> dict[str, Place]:
        """Return the mirrored messages of other UIDVALIDITYs, by bookmark."""
        return {bookmark(*key): place for key, place in self.places.items() if key[0] != uidvalidity}


def load(transport: Transport, owner_: str) -> SyncState:
    """Load the sync state of a folder. Blocking."""
    with transport.reading() as connection:
        items = bookmarks.of_owner(connection, owner_)
    return _decode(owner_, items)


def _decode(owner_: str, items: dict[str, str]) -> SyncState:
    state = SyncState(owner_)
    for item, value in items.items():
        if item == STATE:
            state.mailbox = _decode_mailbox(value)
        elif item == FOLDER:
            state.folder = int(value, 16)
        else:
            uidvalidity, _, uid = item.partition(".")
            state.places[int(uidvalidity), int(uid)] = Place.decode(value)
    return state


def load_mailbox(transport: Transport, owner_: str) -> MailboxState:
    """Load the state of the mailbox only, without the messages. Blocking."""
    with transport.reading() as connection:
        value = bookmarks.value(connection, owner_, STATE)
    return _decode_mailbox(value) if value is not None else MailboxState()


def encode_mailbox(state: MailboxState) -> str:
    return " ".join(map(str, state))


def _decode_mailbox(value: str) -> MailboxState:
    return MailboxState(*map(int, value.split()))


class Unclaimed:
    """Messages of the store that match upstream messages by content; each is claimed once only."""

    def __init__(self) -> None:
        self._free: dict[str, list[tuple[int, str]]] = defaultdict(list)  # by digest: UID, bookmark
        self._sizes: set[int] = set()

    @classmethod
    def of_folder(cls, transport: Transport, folder: int, older: dict[str, Place]) -> Unclaimed:
        """Collect the messages of a folder without bookmark; those of ``older`` bookmarks are free again. Blocking."""
        unclaimed = cls()
        with transport.reading() as connection:
            owners = bookmarks.owners(connection, _PULL)
            digests = mailboxes.message_digests(connection, folder)
        states = (load(transport, owner_) for owner_ in owners)
        before = {place.uid: item for item, place in older.items() if place.folder == folder}
        taken = {place.uid for state in states for place in state.places.values() if place.folder == folder}
        for uid, digest, size in digests:
            if uid in before or uid not in taken:
                unclaimed._free[digest].append((uid, before.get(uid, "")))
                unclaimed._sizes.add(size)
        return unclaimed

    def __bool__(self) -> bool:
        return bool(self._free)

    def may_hold(self, size: int) -> bool:
        """Return whether a message of that size may be among them; 0: unknown size."""
        return bool(self._free) and (not size or size in self._sizes)

    def take(self, digest: str) -> tuple[int, str] | None:
        """Claim a message with this content: its UID in the store and its older bookmark (or ""), or None."""
        matches = self._free.get(digest)
        if not matches:
            return None
        uid, item = matches.pop(0)
        if not matches:
            del self._free[digest]
        return uid, item


def is_empty_leaf(folder: mailboxes.Folder, folders: Iterable[mailboxes.Folder]) -> bool:
    """Return whether a folder has neither messages nor subfolders among these folders."""
    return not folder.messages and not any(each.name.startswith(f"{folder.name}/") for each in folders)
