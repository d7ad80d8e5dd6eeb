"""Inventory of a store, and how much of it is readable after damage: repair must not lose readable content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from adapter.content import front_matter
from adapter.store import journal, layout
from adapter.store.effects import AddContent
from adapter.store.journal import JournalDamaged
from adapter.store.queries import mailboxes
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.system.maintenance.lab.victims import records


@dataclass(frozen=True)
class Item:
    """A message in a folder."""

    owner: str
    folder: str
    uid: int
    flags: int
    keywords: str
    message: str


@dataclass
class Inventory:
    """Messages by folder, their octets, and the digests of the file and the blobs that give them."""

    items: list[Item] = field(default_factory=list)
    octets: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # message -> SHA-256 of its canonical file
    blobs: dict[str, tuple[str, ...]] = field(default_factory=dict)


def take(root: Path) -> Inventory:
    """Take the inventory of all active accounts."""
    inventory = Inventory()
    with Transport.open(root) as transport, transport.reading() as connection:
        marked = {row[0] for row in connection.execute("SELECT message_id FROM damaged_parts")}
        for registration in mailboxes.registrations(connection):
            if registration.status != "active":
                continue
            for folder in mailboxes.folders(connection, registration.id):
                for row in mailboxes.rows(connection, folder.id):
                    if row.message_id in marked:
                        continue
                    inventory.items.append(
                        Item(registration.address, folder.name, row.uid, row.flags, row.keywords, row.message_id)
                    )
                    if row.message_id not in inventory.octets:
                        file = transport.content.file(row.message_id)
                        inventory.octets[row.message_id] = transport.content.octets(row.message_id)
                        inventory.files[row.message_id] = hashlib.sha256(file).hexdigest()
                        inventory.blobs[row.message_id] = front_matter.recipe_of(file).blobs
    return inventory


def readable_digests(root: Path) -> set[str]:
    """SHA-256 of all content that still exists: files in any directory, and content in the journal.

    Unreadable files count, because they can be read later (``open`` is not the lab's failing ``os.open``).
    """
    digests = set()
    for top in (layout.MESSAGES, layout.ATTACHMENTS):
        for path in Path(root, *top).rglob("*"):
            if path.is_file() and not path.is_symlink():
                digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    for segment in sorted(Path(root, *layout.JOURNAL).glob("*.jsonl")):
        for line in records(segment):
            digests |= _content_of(line)
    return digests


def _content_of(line: bytes) -> set[str]:
    """Digests of the content in a record; a torn record counts as empty."""
    try:
        contents = [effect for effect in journal.decode(line).effects if isinstance(effect, AddContent)]
    except JournalDamaged:
        return set()
    files = [content.file.encode() for content in contents if content.file is not None]
    blobs = [blob.data.raw for content in contents for blob in content.blobs if blob.data is not None]
    return {hashlib.sha256(each).hexdigest() for each in (*files, *blobs)}


def lost_content(before: Inventory, readable: set[str], root: Path, *, moved: bool) -> list[str]:
    """The content that was readable after the damage and is no longer served unchanged.

    ``moved``: UIDs and flags may have changed, because index and journal were damaged too.
    """
    wrong = []
    with Transport.open(root) as transport, transport.reading() as connection:
        shown = {}
        for item in before.items:
            folder = mailboxes.active_folder(connection, item.owner, item.folder)
            for row in mailboxes.rows(connection, folder.id) if folder is not None else ():
                shown[item.owner, item.folder, row.message_id if moved else row.uid] = row
        for item in before.items:
            file, blobs = before.files[item.message] in readable, set(before.blobs[item.message])
            current = shown.get((item.owner, item.folder, item.message if moved else item.uid))
            if current is None or current.message_id != item.message:
                if file:
                    wrong.append(f"{item} is not in its folder")
                continue
            if not moved and (current.flags, current.keywords) != (item.flags, item.keywords):
                wrong.append(f"{item} has other flags: {current}")
            octets = before.octets[item.message]
            try:
                served = transport.content.octets(item.message)
            except MailError as error:
                wrong.append(f"{item} cannot be served: {error}")
                continue
            if len(served) != len(octets):
                wrong.append(f"{item} has another size")
            elif file and blobs <= readable and served != octets:
                wrong.append(f"{item} has other octets")
            elif file and octets.partition(b"\r\n\r\n")[0] != served.partition(b"\r\n\r\n")[0]:
                wrong.append(f"{item} has another header")
    return wrong
