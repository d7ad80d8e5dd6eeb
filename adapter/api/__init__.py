"""The store for programs: send Markdown, list and read mail, change flags, wait for new mail.

::

    with Store.open("mail") as store:
        ada = store.mailbox("ada@example.test")
        ada.send("Hello **Bob**", to="bob@example.test", subject="Greetings")
        for new in ada.watch():
            print(ada.read(new).text)

Mail is read and changed through :mod:`adapter.read_model.interface`, as by the IMAP server. ``Store.transport`` offers
what this small interface leaves out. Calls are blocking: from asyncio use ``asyncio.to_thread``, and ``watch_async`` to
wait for mail. Errors are :class:`~protocol.errors.MailError`, with a reason.
"""

from __future__ import annotations

import os
from types import TracebackType

from adapter.api.mailbox import Mailbox, Sent, new_message_id
from adapter.api.messages import Attachment, FolderInfo, Mail, Summary
from adapter.api.watch import AsyncWatch, Watch
from adapter.read_model.blocking import BlockingCalls
from adapter.read_model.mailboxes import MailboxCache
from adapter.store import names
from adapter.store.effects import Actor
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
        cache = MailboxCache(transport)
        self._calls = BlockingCalls(cache, cache.close)

    @classmethod
    def open(cls, root: str | os.PathLike[str]) -> Store:
        return cls(Transport.open(root, actor=Actor("", "api")))

    @classmethod
    def create(cls, root: str | os.PathLike[str]) -> Store:
        """Create an empty store in a new or empty directory, and open it."""
        create_store(os.fspath(root))
        return cls.open(root)

    def close(self) -> None:
        self._calls.close()
        self.transport.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def addresses(self) -> list[str]:
        """Return every address with a mailbox in this store."""
        registrations = self._calls.run(self._calls.reader.registrations())
        return [each.address for each in registrations if each.status == "active"]

    def mailbox(self, address: str) -> Mailbox:
        """Open the account of an address. Raises ``NO_SUCH_ADDRESS`` or ``INACTIVE_ADDRESS``."""
        return Mailbox(self._calls, address)

    def add_mailbox(self, address: str) -> Mailbox:
        """Register an address without a password: programs that open the store need none."""
        self.transport.run(op.Register(names.normalise_address(address)))
        return self.mailbox(address)
