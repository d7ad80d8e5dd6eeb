"""What is in a store, and how much of it is still readable after damage: nothing readable may be taken away."""

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
    """Of every active account."""
    found = Inventory()
    with Transport.open(root) as transport, transport.reading() as connection:
        marked = {row[0] for row in connection.execute("SELECT message_id FROM damaged_parts")}
        for registration in mailboxes.registrations(connection):
            if registration.status != "active":
                continue
            for folder in mailboxes.folders(connection, registration.id):
                for row in mailboxes.rows(connection, folder.id):
                    if row.message_id in marked:
                        continue
                    found.items.append(
                        Item(registration.address, folder.name, row.uid, row.flags, row.keywords, row.message_id)
                    )
                    if row.message_id not in found.octets:
                        file = transport.content.file(row.message_id)
                        found.octets[row.message_id] = transport.content.octets(row.message_id)
                        found.files[row.message_id] = hashlib.sha256(file).hexdigest()
                        found.blobs[row.message_id] = front_matter.recipe_of(file).blobs
    return found


def readable_digests(root: Path) -> set[str]:
    """SHA-256 of all content that is still there: files wherever they are, and what the journal carries.

    Files that cannot be read now count: they can be read later (``open`` is not the lab's failing ``os.open``).
    """
    found = set()
    for top in (layout.MESSAGES, layout.ATTACHMENTS):
        for path in Path(root, *top).rglob("*"):
            if path.is_file() and not path.is_symlink():
                found.add(hashlib.sha256(path.read_bytes()).hexdigest())
    for segment in sorted(Path(root, *layout.JOURNAL).glob("*.jsonl")):
        for line in records(segment):
            found |= _carried(line)
    return found


def _carried(line: bytes) -> set[str]:
    """Digests of the content in a record; a torn one carries nothing that counts."""
    try:
        contents = [effect for effect in journal.decode(line).effects if isinstance(effect, AddContent)]
    except JournalDamaged:
        return set()
    files = [content.file.encode() for content in contents if content.file is not None]
    blobs = [blob.data.raw for content in contents for blob in content.blobs if blob.data is not None]
    return {hashlib.sha256(each).hexdigest() for each in (*files, *blobs)}


def taken_away(before: Inventory, readable: set[str], root: Path, *, moved: bool) -> list[str]:
    """What was still readable after the damage and is not served any more as it was.

    ``moved``: UIDs and flags may have changed, since index and journal were damaged with the rest.
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
            found = shown.get((item.owner, item.folder, item.message if moved else item.uid))
            if found is None or found.message_id != item.message:
                if file:
                    wrong.append(f"{item} is not in its folder")
                continue
            if not moved and (found.flags, found.keywords) != (item.flags, item.keywords):
                wrong.append(f"{item} has other flags: {found}")
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
