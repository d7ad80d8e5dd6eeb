"""The store for programs: send Markdown, list and read mail, change flags, wait for new mail.

::

    with Store.open("mail") as store:
        ada = store.mailbox("ada@example.test")
        ada.send("Hello **Bob**", to="bob@example.test", subject="Greetings")
        for new in ada.watch():
            print(ada.read(new).text)

Everything goes through :class:`~adapter.transport.transport.Transport`, which is there as ``Store.transport`` for what
this small interface leaves out. Calls block: from asyncio use ``asyncio.to_thread``, and ``watch_async`` to wait for
mail. Trouble is a :class:`~protocol.errors.MailError`, whose reason tells what kind.
"""

from __future__ import annotations

import os
from types import TracebackType

from adapter.api.mailbox import Mailbox, Sent, new_message_id
from adapter.api.messages import Attachment, FolderInfo, Mail, Summary
from adapter.api.watch import AsyncWatch, Watch
from adapter.store import names
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from protocol.mime.addresses import Mailbox as Person

__all__ = [
    "AsyncWatch",
    "Attachment",
    "FolderInfo",
    "Mail",
    "Mailbox",
    "Person",
    "Sent",
    "Store",
    "Summary",
    "Watch",
    "new_message_id",
]


class Store:
    """An open store. Use it as a context manager, or call :meth:`close`."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @classmethod
    def open(cls, root: str | os.PathLike[str]) -> Store:
        return cls(Transport.open(root))

    @classmethod
    def create(cls, root: str | os.PathLike[str]) -> Store:
        """Make an empty store in a new or empty directory, and open it."""
        create_store(os.fspath(root))
        return cls.open(root)

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def addresses(self) -> list[str]:
        """Every address that has a mailbox here."""
        with self.transport.reading() as connection:
            return [each.address for each in mailboxes.registrations(connection) if each.status == "active"]

    def mailbox(self, address: str) -> Mailbox:
        """The account of an address. Raises ``NO_SUCH_ADDRESS`` or ``INACTIVE_ADDRESS``."""
        return Mailbox(self.transport, address)

    def add_mailbox(self, address: str) -> Mailbox:
        """Register an address, without a password: programs that open the store need none."""
        self.transport.run(op.Register(names.normalise_address(address)))
        return self.mailbox(address)
