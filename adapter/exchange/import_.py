"""Import mail from Maildir, mbox, ``.eml`` or ``.md`` files into the folders of an account.

Each message is one operation: whenever the import stops, the message is complete, with flags and date, or absent. Many
operations are in flight at once, so that they share commits. An unreadable message is reported and skipped. An error
of the store itself ends the import, after the results of all operations in flight were counted.

An import is idempotent: a message that the target folder has already, with the same octets, is skipped. Copies are
counted, so that a folder ends with as many equal messages as the source has.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from adapter.exchange import eml, maildir, markdown, mbox
from adapter.exchange.model import Item, Source, SourceError
from adapter.store import names
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.staging import Staged
from adapter.transport.transport import Transport
from protocol.errors import MailError

_MAX_PENDING_MESSAGES = 256
_MAX_PENDING_OCTETS = 32 << 20
#: The years 1000 to 9999: IMAP dates have four digits.
_FIRST_DATE, _LAST_DATE = -30_610_224_000, 253_402_300_799

Progress = Callable[[int], None]


@dataclass(slots=True)
class Imported:
    """Progress of an import."""

    messages: int = 0
    octets: int = 0
    skipped: int = 0  # in the target folder already, with the same octets
    folders: set[str] = field(default_factory=set)
    failed: list[tuple[str, str]] = field(default_factory=list)  # label, reason


def find_source(path: str, address: str) -> Source:
    """Detect the format of the source at ``path``. Raises :class:`SourceError`."""
    try:
        if not os.path.isdir(path):
            if os.path.exists(path) and not os.path.isfile(path):
                raise SourceError(f"{path} is neither a file nor a directory")
            path = os.path.realpath(path)  # the user may name a link; links inside a source are refused
            if markdown.is_markdown(path):
                return markdown.source(path, [path], address)
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
        if files := markdown.find(path):
            return markdown.source(path, files, address)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    raise SourceError(f"{path} has no mail: it is not a Maildir and contains no .mbox, .eml or .md files")


class Importer:
    """Imports one source into one account; ``done`` is the progress, also after an exception."""

    def __init__(self, transport: Transport, source: Source, address: str, below: str | None = None) -> None:
        self._transport = transport
        self._source = source
        self._address = names.normalise_address(address)
        self._below = names.normalise_folder(below) if below else None
        self._pending: deque[tuple[Item, Staged, Future[list[op.Placed]]]] = deque()
        self._pending_octets = 0
        self._existing: dict[str, Counter[str]] = {}  # SHA-256 of the octets of the messages of each target folder
        self.done = Imported()

    def run(self, progress: Progress = lambda octets: None) -> Imported:
        """Import everything; ``progress`` is called with the number of source octets processed."""
        self._make_folders()
        try:
            for item in self._source.items():
                self._submit(item)
                progress(item.octets)
                while len(self._pending) > _MAX_PENDING_MESSAGES or self._pending_octets > _MAX_PENDING_OCTETS:
                    self._collect_result()
        finally:
            self._collect_all()
        return self.done

    def _collect_all(self) -> None:
        """Wait for everything in flight, so that ``done`` is exact; then raise the first error of the store."""
        error: MailError | None = None
        while self._pending:
            try:
                self._collect_result()
            except MailError as failure:
                error = error or failure
        if error is not None:
            raise error

    def target(self, folder: str) -> str:
        """Map a folder of the source to a folder here: INBOX becomes ``below`` itself, other folders go below it."""
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
        # Store the message under the day of its internal date, not under today.
        arrived = date * 1_000_000 if date is not None and 0 <= date <= time.time() else None
        folder = self.target(item.folder)
        spool = self._transport.spool()
        digest = hashlib.sha256()
        with spool:
            try:
                for chunk in item.chunks():
                    digest.update(chunk)
                    spool.write(chunk)
            except SourceError as error:
                self.done.failed.append((item.label, str(error)))
                return
            if self._is_there(folder, digest.hexdigest()):
                self.done.skipped += 1
                return
            staged = spool.stage(arrived)
        appended = op.AppendItem(staged, item.flags, item.keywords, date)
        future = self._transport.submit(op.Append(self._address, folder, [appended]))
        self._pending.append((item, staged, future))
        self._pending_octets += staged.content.size

    def _is_there(self, folder: str, sha256: str) -> bool:
        """True if the folder had one more message with these octets when the import began."""
        existing = self._existing.get(folder)
        if existing is None:
            with self._transport.reading() as connection:
                row = mailboxes.active_folder(connection, self._address, folder)
                existing = Counter(mailboxes.octets_digests(connection, row.id) if row is not None else {})
            self._existing[folder] = existing
        if not existing[sha256]:
            return False
        existing[sha256] -= 1
        return True

    def _collect_result(self) -> None:
        item, staged, future = self._pending.popleft()
        self._pending_octets -= staged.content.size
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
