"""Import: mail from Maildir, mbox or ``.eml`` files into the folders of an account.

Every message is one operation: it is there whole, with flags and date, or not at all, whenever the import stops. Many
operations wait at once, so that they share commits. A message that cannot be read is reported and passed over; trouble
with the store itself ends the import.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from adapter.exchange import eml, maildir, mbox
from adapter.exchange.model import Item, Source, SourceError
from adapter.store import names
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.staging import Staged
from adapter.transport.transport import Transport
from protocol.errors import MailError

_WAITING_MESSAGES = 256
_WAITING_OCTETS = 32 << 20
#: Years of four digits: IMAP knows no others.
_FIRST_DATE, _LAST_DATE = -30_610_224_000, 253_402_300_799

Progress = Callable[[int], None]


@dataclass(slots=True)
class Imported:
    """What an import did so far."""

    messages: int = 0
    octets: int = 0
    folders: set[str] = field(default_factory=set)
    failed: list[tuple[str, str]] = field(default_factory=list)  # label, why


def find_source(path: str, address: str) -> Source:
    """What lies at ``path``, by its looks. Raises :class:`SourceError`."""
    try:
        if not os.path.isdir(path):
            if os.path.exists(path) and not os.path.isfile(path):
                raise SourceError(f"{path} is neither a file nor a directory")
            path = os.path.realpath(path)  # whoever names a link means what it leads to
            return mbox.single(path) if mbox.is_mbox(path) else eml.single(path)
        if maildir.is_maildir(path):
            return maildir.source(path)
        exported = os.path.join(path, names.address_entry(address))
        if os.path.isdir(exported):
            return find_source(exported, address)
        if mbox.contains_folders(path):
            return mbox.directory(path)
        if eml.contains_messages(path):
            return eml.directory(path)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    raise SourceError(f"{path} is no Maildir, has no .mbox and no .eml file")


class Importer:
    """Imports one source into one account; ``done`` tells how far it is, also after an exception."""

    def __init__(self, transport: Transport, source: Source, address: str, below: str | None = None) -> None:
        self._transport = transport
        self._source = source
        self._address = names.normalise_address(address)
        self._below = names.normalise_folder(below) if below else None
        self._waiting: deque[tuple[Item, Staged, Future[list[op.Placed]]]] = deque()
        self._waiting_octets = 0
        self.done = Imported()

    def run(self, progress: Progress = lambda octets: None) -> Imported:
        """Import everything; ``progress`` hears how many octets of the source are dealt with."""
        self._make_folders()
        try:
            for item in self._source.items():
                self._submit(item)
                progress(item.octets)
                while len(self._waiting) > _WAITING_MESSAGES or self._waiting_octets > _WAITING_OCTETS:
                    self._settle()
        finally:
            while self._waiting:
                self._settle()
        return self.done

    def target(self, folder: str) -> str:
        """Where a folder of the source goes: its INBOX, and what has no folder, goes to ``below`` itself."""
        if self._below is None:
            return folder
        return self._below if folder == names.INBOX else names.normalise_folder(f"{self._below}/{folder}")

    def _make_folders(self) -> None:
        with self._transport.reading() as connection:
            registration = mailboxes.active_registration(connection, self._address)
            existing = {folder.name for folder in mailboxes.folders(connection, registration.id)}
        subscribed = self._source.subscriptions
        for name in self._source.folders:
            target = self.target(name)
            if target not in existing:
                self._transport.run(op.CreateFolder(self._address, target))
                existing.update([target, *names.parents(target)])
                if subscribed is None:
                    self._transport.run(op.Subscribe(self._address, target))
        for name in subscribed or ():
            self._transport.run(op.Subscribe(self._address, self.target(name)))

    def _submit(self, item: Item) -> None:
        date = item.date if item.date is not None and _FIRST_DATE <= item.date <= _LAST_DATE else None
        # Filed under the day it arrived, which the internal date tells better than the clock.
        arrived = date * 1_000_000 if date is not None and 0 <= date <= time.time() else None
        spool = self._transport.spool()
        with spool:
            try:
                for chunk in item.chunks():
                    spool.write(chunk)
            except SourceError as error:
                self.done.failed.append((item.label, str(error)))
                return
            staged = spool.stage(arrived)
        appended = op.AppendItem(staged, item.flags, item.keywords, date)
        future = self._transport.submit(op.Append(self._address, self.target(item.folder), [appended]))
        self._waiting.append((item, staged, future))
        self._waiting_octets += staged.content.size

    def _settle(self) -> None:
        item, staged, future = self._waiting.popleft()
        self._waiting_octets -= staged.content.size
        try:
            placed = future.result()
        except MailError as error:
            self.done.failed.append((item.label, str(error)))
            if error.temporary:
                raise
            return
        self.done.messages += 1
        self.done.octets += staged.content.size
        self.done.folders.add(placed[0].folder_name)
