"""The store every crash test starts from, made once, and the scenarios' way to name things in it.

Accounts: ada (much mail), bob (a little), carl (next to none, and files of his own in a folder), dora (deactivated,
with mail).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from adapter.store import layout
from adapter.store.flags import Flag
from adapter.store.queries import mailboxes, outbox
from adapter.transport import operations as op
from adapter.transport.operations.base import AnyOperation
from adapter.transport.staging import Staged
from adapter.transport.transport import Transport, create_store
from protocol.errors import MailError
from tests.system.crash.lab import letters

ADA, BOB, CARL, DORA = (f"{name}@example.test" for name in ("ada", "bob", "carl", "dora"))
NEW = "eve@example.test"
REMOTE = ("zoe@elsewhere.test", "yan@elsewhere.test")

#: Its directory's name is shortened, so it has a ``.name`` file.
LONG = "Long/" + "/".join(["x" * 99] * 3)
#: Where a person has put files of their own.
CLUTTERED = "Cluttered"
FOREIGN = {"notes.txt": b"not ours\n", "drawings/sketch.svg": b"<svg/>\n"}

#: One blob that two messages share, and one that only a collected message needs.
SHARED_BLOB = letters.noise(1, 3000)
LONELY_BLOB = letters.noise(2, 3000)


def folder_id(transport: Transport, address: str, name: str) -> int:
    with transport.reading() as connection:
        return mailboxes.folder(connection, mailboxes.active_registration(connection, address).id, name).id


def uids(transport: Transport, folder: int) -> list[int]:
    with transport.reading() as connection:
        return [row.uid for row in mailboxes.rows(connection, folder)]


def queue_ids(transport: Transport) -> list[str]:
    with transport.reading() as connection:
        return [row.queue_id for row in outbox.queued(connection)]


def append(transport: Transport, address: str, folder: str, *items: bytes, flags: int = 0) -> op.Append:
    staged: list[Staged] = []
    try:
        for octets in items:
            staged.append(transport.stage(octets))
    except MailError:
        for item in staged:
            transport.discard(item)
        raise
    return op.Append(address, folder, [op.AppendItem(item, flags) for item in staged])


def _run(transport: Transport, operations: Sequence[AnyOperation]) -> None:
    for operation in operations:
        transport.run(operation)


def make(root: str) -> None:
    """Make the store and close it cleanly: everything in it is checkpointed."""
    create_store(root)
    with Transport.open(root) as transport:
        _run(transport, [op.Register(address) for address in (ADA, BOB, CARL, DORA)])
        for name in ("Projects/2026/Q1", "Lists", "Red", "Blue", LONG, "Empty"):
            transport.run(op.CreateFolder(ADA, name))
        transport.run(op.CreateFolder(CARL, CLUTTERED))
        for number in range(1, 4):
            staged = transport.stage(letters.plain(number, reply_to=1 if number == 3 else None))
            transport.run(op.Deliver(staged, "bob@example.test", [ADA, BOB]))
        staged = transport.stage(letters.with_files(4, SHARED_BLOB))
        transport.run(op.Deliver(staged, "", [ADA]))
        _run(
            transport,
            [
                append(transport, ADA, "INBOX", letters.with_files(5, SHARED_BLOB, LONELY_BLOB), flags=Flag.DELETED),
                append(transport, ADA, "INBOX", letters.plain(6), flags=Flag.DELETED | Flag.READ),
                append(transport, ADA, "Projects/2026", letters.plain(7, reply_to=2)),
                append(transport, ADA, "Projects/2026/Q1", letters.plain(8)),
                append(transport, ADA, "Red", letters.plain(9), letters.plain(10)),
                append(transport, ADA, "Blue", letters.plain(11)),
                append(transport, ADA, LONG, letters.plain(12)),
                append(transport, CARL, CLUTTERED, letters.plain(13)),
                append(transport, DORA, "INBOX", letters.plain(14), letters.with_files(15, letters.noise(3, 900))),
                op.Deregister(DORA, "deactivate"),
                op.ChangeFlags(
                    ADA, folder_id(transport, ADA, "INBOX"), [1], "add", int(Flag.STARRED), ["$Forwarded", "blue"]
                ),
            ],
        )
        # Mail on its way to other hosts.
        relay = [op.RelayRecipient(address) for address in REMOTE]
        transport.run(op.Deliver(transport.stage(letters.plain(16)), ADA, [], relay=relay))
        # One message in no folder; its content waits for collection.
        inbox = folder_id(transport, ADA, "INBOX")
        transport.run(op.Expunge(ADA, inbox, [5]))
    for name, data in FOREIGN.items():
        path = f"{root}/mailboxes/{CARL}/{CLUTTERED}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


#: Files written once: a copy may share them.
_IMMUTABLE = ("messages", "attachments", "snapshots")
_IMMUTABLE_FILES = (layout.IDENTITY_FILE,)


def copy(source: str, target: str, *, linked: bool = False) -> str:
    """A fresh copy of a store that is not open."""
    os.mkdir(target, 0o700)
    for entry in os.scandir(source):
        path = f"{target}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)
        elif entry.is_dir():
            copy(entry.path, path, linked=linked or entry.name in _IMMUTABLE)
        elif linked or entry.name in _IMMUTABLE_FILES:
            os.link(entry.path, path)
        else:
            shutil.copy(entry.path, path)
    return target


def remove(root: str) -> None:
    shutil.rmtree(root, ignore_errors=True)
