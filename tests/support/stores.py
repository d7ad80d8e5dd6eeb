"""Open stores, and read their contents."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from adapter.store import layout, store_id
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder, Row
from adapter.transport import operations as op
from adapter.transport.operations.delivery import Placed
from adapter.transport.transport import Transport, create_store
from tests.support.messages import message

ADA = "ada@example.test"
BOB = "bob@example.test"
STORE = "0123456789abcdef" * 2  # the id of stores that no operation makes


@contextlib.contextmanager
def new_store(root: str | os.PathLike[str], *accounts: str) -> Iterator[Transport]:
    """A fresh store with these accounts, open for the length of the block."""
    create_store(os.fspath(root))
    with Transport.open(root) as transport:
        for address in accounts:
            transport.run(op.Register(address))
        yield transport


def deliver(
    transport: Transport, *recipients: str, octets: bytes | None = None, sender: str = "x@y.test"
) -> op.Delivery:
    staged = transport.stage(message() if octets is None else octets)
    return transport.run(op.Deliver(staged, sender, list(recipients)))


def placed(delivery: op.Delivery, address: str = ADA) -> Placed:
    """Return the place of a successful delivery."""
    outcome = delivery.recipients[address]
    assert isinstance(outcome, Placed), outcome
    return outcome


def append(
    transport: Transport,
    folder: str,
    *octets: bytes,
    address: str = ADA,
    flags: int = 0,
    keywords: tuple[str, ...] = (),
) -> list[Placed]:
    items = [op.AppendItem(transport.stage(item), flags, keywords) for item in octets]
    return transport.run(op.Append(address, folder, items))


def folder(transport: Transport, name: str = "INBOX", address: str = ADA) -> Folder:
    with transport.reading() as connection:
        return mailboxes.folder(connection, mailboxes.active_registration(connection, address).id, name)


def folder_names(transport: Transport, address: str = ADA) -> list[str]:
    with transport.reading() as connection:
        registration = mailboxes.active_registration(connection, address)
        return [each.name for each in mailboxes.folders(connection, registration.id)]


def rows(transport: Transport, name: str = "INBOX", address: str = ADA) -> list[Row]:
    row = folder(transport, name, address)
    with transport.reading() as connection:
        return mailboxes.rows(connection, row.id)


def subscriptions(transport: Transport, address: str = ADA) -> list[str]:
    with transport.reading() as connection:
        return mailboxes.subscriptions(connection, mailboxes.active_registration(connection, address).id)


def id_of(root: str | os.PathLike[str]) -> str:
    """The id of a store."""
    identity = store_id.decode(Path(root, layout.STORE_ID_FILE).read_bytes())
    assert identity is not None
    return identity


def snapshot_seqs(root: str | os.PathLike[str]) -> list[int]:
    """The last record of each snapshot of a store."""
    return sorted(int(path.name) for path in Path(root, *layout.SNAPSHOTS).iterdir())


def tree(root: str | os.PathLike[str]) -> dict[str, tuple[int, bytes]]:
    """Everything below a directory: path -> (mode, content or link target)."""
    files: dict[str, tuple[int, bytes]] = {}
    for path in sorted(Path(root).rglob("*")):
        content = b""
        if path.is_symlink():
            content = os.readlink(path).encode()
        elif path.is_file():
            content = path.read_bytes()
        files[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return files
