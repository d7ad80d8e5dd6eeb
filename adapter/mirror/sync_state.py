"""What is remembered of an upstream folder, in bookmarks: which messages were brought, where they lie, and how it was
when it was last looked at from end to end.

The bookmarks belong to the registration of the account: an account that is made anew is filled anew.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field

from adapter.mirror.replies import Examined
from adapter.store.queries import bookmarks, mailboxes
from adapter.transport.operations.mirror import Place
from adapter.transport.transport import Transport

STATE = "state"
FOLDER = "folder"
_PULL = "pull "

_DIGESTS = """
SELECT p.uid, m.wire_sha256, m.size FROM mailbox_projections p JOIN messages m USING (message_id) WHERE p.folder_id = ?
ORDER BY p.uid
"""


def owner(upstream: str, registration: str, spelling: str = "") -> str:
    """Whose bookmarks these are; without ``spelling``, how the names of all folders of an upstream begin."""
    return f"{_PULL}{upstream} {registration} {spelling}"


def bookmark(uidvalidity: int, uid: int) -> str:
    return f"{uidvalidity}.{uid}"


@dataclass(slots=True)
class Ledger:
    owner: str
    state: Examined = field(default_factory=Examined)
    folder: int = 0  # here; 0: none yet
    places: dict[tuple[int, int], Place] = field(default_factory=dict)  # by UIDVALIDITY and UID

    def generation(self, uidvalidity: int) -> dict[int, Place]:
        """The messages brought, by UID."""
        return {uid: place for (known, uid), place in self.places.items() if known == uidvalidity}

    def older(self, uidvalidity: int) -> dict[str, Place]:
        """Those of other UIDVALIDITYs, by bookmark."""
        return {bookmark(*key): place for key, place in self.places.items() if key[0] != uidvalidity}


def load(transport: Transport, owner_: str) -> Ledger:
    """Blocks, the store only for the query itself."""
    with transport.reading() as connection:
        items = bookmarks.of_owner(connection, owner_)
    return _decode(owner_, items)


def _decode(owner_: str, items: dict[str, str]) -> Ledger:
    ledger = Ledger(owner_)
    for item, value in items.items():
        if item == STATE:
            ledger.state = _decode_state(value)
        elif item == FOLDER:
            ledger.folder = int(value, 16)
        else:
            uidvalidity, _, uid = item.partition(".")
            ledger.places[int(uidvalidity), int(uid)] = Place.decode(value)
    return ledger


def load_state(transport: Transport, owner_: str) -> Examined:
    """The same as ``load(…).state``, without the messages."""
    with transport.reading() as connection:
        value = bookmarks.value(connection, owner_, STATE)
    return _decode_state(value) if value is not None else Examined()


def encode_state(state: Examined) -> str:
    return " ".join(map(str, state))


def _decode_state(value: str) -> Examined:
    return Examined(*map(int, value.split()))


class Unclaimed:
    """Messages that lie in a folder here and may be those of upstream: by content, each for one of them only."""

    def __init__(self) -> None:
        self._free: dict[str, list[tuple[int, str]]] = defaultdict(list)  # by digest: UID, bookmark
        self._sizes: set[int] = set()

    @classmethod
    def of_folder(cls, transport: Transport, folder: int, older: dict[str, Place]) -> Unclaimed:
        """``older`` are bookmarks that no longer hold: what they name is free again. Blocks."""
        found = cls()
        with transport.reading() as connection:
            owners = bookmarks.owners(connection, _PULL)
        ledgers = (load(transport, owner_) for owner_ in owners)
        before = {place.uid: item for item, place in older.items() if place.folder == folder}
        taken = {place.uid for known in ledgers for place in known.places.values() if place.folder == folder}
        for uid, digest, size in transport.index.query(_DIGESTS, (folder,)):
            if uid in before or uid not in taken:
                found._free[digest].append((uid, before.get(uid, "")))
                found._sizes.add(size)
        return found

    def __bool__(self) -> bool:
        return bool(self._free)

    def may_hold(self, size: int) -> bool:
        """Whether a message of that size could be among them; 0: it is not known."""
        return bool(self._free) and (not size or size in self._sizes)

    def take(self, digest: str) -> tuple[int, str] | None:
        """A message with this content: its UID here, and the bookmark it had before (or nothing)."""
        found = self._free.get(digest)
        if not found:
            return None
        uid, item = found.pop(0)
        if not found:
            del self._free[digest]
        return uid, item


def is_empty_leaf(connection: sqlite3.Connection, folder: mailboxes.Folder) -> bool:
    """Whether a folder holds neither messages nor other folders."""
    names = [each.name for each in mailboxes.folders(connection, folder.registration)]
    return not folder.messages and not any(name.startswith(f"{folder.name}/") for name in names)
