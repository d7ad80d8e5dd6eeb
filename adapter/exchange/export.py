"""Export the mail of accounts as Maildir (with Maildir++ folders) or mbox, one directory for each account.

The files have exact octets, flags, keywords and internal dates; :mod:`adapter.exchange.import_` restores them. All
files are durable before the export reports success.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from adapter.exchange import files, maildir, mbox
from adapter.store import names
from adapter.store.queries import mailboxes, messages
from adapter.store.queries.mailboxes import Folder, Registration, Row
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

Format = Literal["maildir", "mbox"]
Progress = Callable[[int], None]


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
        self._transport = transport
        self._target = os.path.abspath(target)
        self._form = form
        root = os.path.realpath(transport.root)
        if os.path.commonpath([root, os.path.realpath(target)]) == root:
            raise MailError(Reason.NOT_ALLOWED, f"{target} is inside the store: export to a directory outside it")
        with transport.reading() as connection:
            only = None if address is None else names.normalise_address(address)
            self._accounts = [
                registration
                for registration in mailboxes.registrations(connection)
                if registration.status in ("active", "inactive") and only in (None, registration.address)
            ]
            self.size = sum(
                folder.size for account in self._accounts for folder in mailboxes.folders(connection, account.id)
            )
        if only is not None and not self._accounts:
            raise MailError(Reason.NO_SUCH_ADDRESS, only)
        self.done = Exported()

    def run(self, progress: Progress = lambda octets: None) -> Exported:
        """Export everything; ``progress`` is called with the number of octets written."""
        for account in self._accounts:
            directory = self._new_directory(account)
            with self._transport.reading() as connection:
                folders = mailboxes.folders(connection, account.id)
                subscribed = mailboxes.subscriptions(connection, account.id)
            shortened: dict[str, str] = {}
            for folder in folders:
                with self._transport.reading() as connection:
                    rows = mailboxes.rows(connection, folder.id)
                export = self._maildir if self._form == "maildir" else self._mbox
                export(account, directory, folder, rows, shortened, progress)
                self.done.folders += 1
            files.write_full_names(directory, shortened)
            files.write_subscriptions(directory, subscribed)
            self.done.accounts += 1
        files.make_durable()
        return self.done

    def _maildir(
        self,
        account: Registration,
        directory: str,
        folder: Folder,
        rows: list[Row],
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
                writer.add(row, self._transport.content.stream(row.message_id))
        writer.finish()

    def _mbox(
        self,
        account: Registration,
        directory: str,
        folder: Folder,
        rows: list[Row],
        shortened: dict[str, str],
        progress: Progress,
    ) -> None:
        writer = mbox.FolderWriter(directory, folder, shortened)
        for row in rows:
            with self._counting(row, progress):
                writer.add(row, self._sender(row.message_id), self._transport.content.octets(row.message_id))
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

    def _sender(self, message_id: str) -> str:
        with self._transport.reading() as connection:
            header = messages.header(connection, message_id)
        return (header.sender or header.header_from) if header else ""

    def _new_directory(self, account: Registration) -> str:
        directory = os.path.join(self._target, names.address_entry(account.address))
        files.empty_directory(directory)
        return directory
