"""Export the mail of accounts as Maildir (with Maildir++ folders) or mbox, one directory for each account.

The files have exact octets, flags, keywords and internal dates; :mod:`adapter.exchange.import_` restores them. All
files are durable before the export reports success.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from adapter.exchange import files, maildir, mbox
from adapter.read_model.interface import Account, Folder, Registration, Row
from adapter.read_model.stored_messages import StoredMessages
from adapter.read_model.thread_pool import ThreadPool
from adapter.store import names
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

Format = Literal["maildir", "mbox"]
Progress = Callable[[int], None]

_IDLE_THREAD_SECONDS = 60.0


@dataclass(slots=True)
class Exported:
    accounts: int = 0
    folders: int = 0
    messages: int = 0
    octets: int = 0
    notes: list[str] = field(default_factory=list)  # losses, because of the format or damage


class Exporter:
    """Exports accounts of an open store to a directory outside it."""

    def __init__(self, transport: Transport, target: str, form: Format, address: str | None = None) -> None:
        self._threads = ThreadPool("export", 1, lambda: None, _IDLE_THREAD_SECONDS)
        self._reader = StoredMessages(transport, self._threads)
        self._target = os.path.abspath(target)
        self._form = form
        root = os.path.realpath(transport.root)
        if os.path.commonpath([root, os.path.realpath(target)]) == root:
            raise MailError(Reason.NOT_ALLOWED, f"{target} is inside the store: export to a directory outside it")
        only = None if address is None else names.normalise_address(address)
        self._registrations, self.size = asyncio.run(self._select(only))
        if only is not None and not self._registrations:
            raise MailError(Reason.NO_SUCH_ADDRESS, only)
        self.done = Exported()

    async def _select(self, only: str | None) -> tuple[list[Registration], int]:
        """Return the registrations to export, and the size of their mail."""
        selected = [
            registration
            for registration in await self._reader.registrations()
            if registration.status in ("active", "inactive") and only in (None, registration.address)
        ]
        accounts = [await self._reader.account_of(registration) for registration in selected]
        return selected, sum(folder.size for account in accounts for folder in account.folders.values())

    def run(self, progress: Progress = lambda octets: None) -> Exported:
        """Export everything; ``progress`` is called with the number of octets written."""
        try:
            asyncio.run(self._export_all(progress))
        finally:
            self._threads.close()
        files.make_durable()
        return self.done

    async def _export_all(self, progress: Progress) -> None:
        """Write the files. They are written on the event loop, which has nothing else to do."""
        for registration in self._registrations:
            directory = self._new_directory(registration)
            account = await self._reader.account_of(registration)
            shortened: dict[str, str] = {}
            for folder in account.folders.values():
                rows = await self._reader.rows(folder.id)
                export = self._maildir if self._form == "maildir" else self._mbox
                await export(account, directory, folder, rows, shortened, progress)
                self.done.folders += 1
            files.write_full_names(directory, shortened)
            files.write_subscriptions(directory, sorted(account.subscriptions))
            self.done.accounts += 1

    async def _maildir(
        self,
        account: Account,
        directory: str,
        folder: Folder,
        rows: Sequence[Row],
        shortened: dict[str, str],
        progress: Progress,
    ) -> None:
        writer = maildir.FolderWriter.create(directory, folder, rows, shortened)
        for word in writer.lost_keywords:
            self.done.notes.append(
                f"{account.address}: {folder.name} has more keywords than a Maildir can store; omitted: {word}"
            )
        for row in rows:
            with self._counting(row, progress):
                writer.add(row, [await self._reader.octets(row.message_id)])
        writer.finish()

    async def _mbox(
        self,
        account: Account,
        directory: str,
        folder: Folder,
        rows: Sequence[Row],
        shortened: dict[str, str],
        progress: Progress,
    ) -> None:
        writer = mbox.FolderWriter(directory, folder, shortened)
        for row in rows:
            with self._counting(row, progress):
                sender = await self._sender(row.message_id)
                writer.add(row, sender, await self._reader.octets(row.message_id))
        writer.finish()

    @contextmanager
    def _counting(self, row: Row, progress: Progress) -> Iterator[None]:
        try:
            yield
        except MailError as error:
            # Expunged since the folder was listed, or damaged; export the others.
            self.done.notes.append(f"not exported: {error}")
        else:
            self.done.messages += 1
            self.done.octets += row.size
        progress(row.size)

    async def _sender(self, message_id: str) -> str:
        header = await self._reader.header(message_id)
        return (header.sender or header.header_from) if header else ""

    def _new_directory(self, registration: Registration) -> str:
        directory = os.path.join(self._target, names.address_entry(registration.address))
        files.empty_directory(directory)
        return directory
