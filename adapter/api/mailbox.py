"""One account: its folders and messages, sending from it, and waiting for its mail."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from adapter.api.messages import FolderInfo, Mail, Summary, mail, split_flags, summary_of
from adapter.api.watch import AsyncWatch, Watch
from adapter.content.compose import Headers, compose_message
from adapter.read_model.blocking import BlockingCalls
from adapter.read_model.interface import INBOX, Account, FlagChange, Folder, normalise_address, normalise_folder
from adapter.read_model.mailbox_writer import AccountWriter
from adapter.read_model.mailboxes import MailboxCache
from protocol.errors import MailError, Reason
from protocol.idna import to_ascii
from protocol.mime.addresses import Mailbox as Person
from protocol.mime.addresses import mailboxes

#: "ada@example.test", "Ada <ada@example.test>, bob@example.test", or several of these.
To = str | Person | Iterable[str | Person]
#: A path, or a name and the octets.
File = str | os.PathLike[str] | tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Sent:
    id: str  # of the message in the store
    message_id: str  # the Message-ID header field
    recipients: tuple[str, ...]


class Mailbox:
    """An account, opened by :meth:`adapter.api.Store.mailbox`."""

    def __init__(self, calls: BlockingCalls[MailboxCache], address: str) -> None:
        self._calls = calls
        self._reader = calls.reader
        self.address = normalise_address(address)
        self._writer = AccountWriter(calls.reader, self.address, "api")
        self._account()  # fail early if the address is unknown

    # --- reading ---------------------------------------------------------------------------------------------------

    def folders(self) -> list[FolderInfo]:
        return [
            FolderInfo(folder.name, folder.special_use, folder.messages, folder.unseen, folder.size)
            for folder in self._folders().values()
        ]

    def messages(self, folder: str = INBOX, *, unread: bool = False, limit: int | None = None) -> list[Summary]:
        """Return the messages of a folder, the latest first; with ``unread`` only unread ones."""
        rows = self._calls.run(self._reader.listing(self._folder(folder).id, unread=unread, limit=limit))
        return list(map(summary_of, rows))

    def read(self, message: Summary | str) -> Mail:
        """Return a message of this account, given as a summary or by id. This does not set the flag ``read``."""
        summary = self._find(message)
        return mail(summary, self._calls.run(self._reader.markdown(summary.id)), self._calls)

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(
        self,
        text: str,
        *,
        to: To = (),
        subject: str = "",
        cc: To = (),
        bcc: To = (),
        attachments: Iterable[File] = (),
        reply_to: Mail | None = None,
    ) -> Sent:
        """Send Markdown from this account and keep a copy in its Sent folder. The mail is delivered on return.

        Without a subject the first heading is used. A reply goes to the reply address of the message unless ``to`` is
        given, joins the thread, and marks the message as answered. Every recipient must have a mailbox in this store:
        if one has not, nothing is sent and ``NO_SUCH_ADDRESS`` is raised.
        """
        primary, copied, hidden = _people(to), _people(cc), _people(bcc)
        if reply_to is not None and not primary:
            primary = list(reply_to.reply_to) or [reply_to.sender or Person("", "")]
        addresses = self._local_addresses(person.address for person in (*primary, *copied, *hidden))
        headers = Headers(to=primary, cc=copied, subject=subject)
        if reply_to is not None:
            headers = _as_reply(headers, reply_to)
        message_id = new_message_id(self.address)
        octets = compose_message(
            headers,
            text,
            sender=self.address,
            now=datetime.now(UTC),
            message_id=message_id,
            attachments=[_attachment(file) for file in attachments],
        )
        delivery = self._calls.run(self._writer.send(octets, addresses))
        for outcome in delivery.recipients.values():
            if isinstance(outcome, MailError):
                raise outcome
        if reply_to is not None:
            self.set_flags(reply_to, "answered")
        return Sent(delivery.message_id, message_id, tuple(addresses))

    # --- changing --------------------------------------------------------------------------------------------------

    def set_flags(self, message: Summary | Mail, *flags: str) -> Summary:
        """Set flags by name: read, answered, starred, deleted, draft; any other name becomes a keyword."""
        return self._change_flags(message, "add", flags)

    def clear_flags(self, message: Summary | Mail, *flags: str) -> Summary:
        return self._change_flags(message, "remove", flags)

    def move(self, message: Summary | Mail, folder: str) -> Summary:
        """Move a message to another folder of this account; return its summary there."""
        current = self._find(_summary(message))
        moved = self._calls.run(self._writer.move(current.folder_id, [current.uid], folder))
        if not moved.uids:
            raise MailError(Reason.NO_SUCH_MESSAGE, current.id)
        return self._at(moved.folder, moved.uids[0][1])

    def archive(self, message: Summary | Mail) -> Summary:
        """Move a message to the folder for archived mail."""
        return self.move(message, self._special_folder("\\Archive"))

    def trash(self, message: Summary | Mail) -> Summary:
        """Move a message to the folder for deleted mail."""
        return self.move(message, self._special_folder("\\Trash"))

    def create_folder(self, name: str) -> None:
        folder = self._calls.run(self._writer.create_folder(name))
        self._calls.run(self._writer.subscribe(folder.name))

    # --- waiting ---------------------------------------------------------------------------------------------------

    def watch(self, folder: str = INBOX, *, timeout: float | None = None) -> Watch:
        """Watch for new mail in a folder. Iterating ends after ``timeout`` seconds without any."""
        watched = self._folder(folder)
        return Watch(self._reader.transport.changes, watched, *self._lookups(watched), timeout)

    def watch_async(self, folder: str = INBOX, *, timeout: float | None = None) -> AsyncWatch:
        """The same for ``async for``; call it on the event loop."""
        watched = self._folder(folder)
        return AsyncWatch(self._reader.transport.changes, watched, *self._lookups(watched), timeout)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _lookups(self, folder: Folder) -> tuple[partial[Summary | None], partial[list[int]]]:
        return partial(self._look_up, folder.id), partial(self._uids_from, folder.id)

    def _uids_from(self, folder_id: int, first: int) -> list[int]:
        return [row.uid for row in self._calls.run(self._reader.rows(folder_id, first))]

    def _account(self) -> Account:
        return self._calls.run(self._reader.account(self.address))

    def _folders(self) -> dict[str, Folder]:
        return dict(self._calls.run(self._reader.status(self.address)))

    def _folder(self, name: str) -> Folder:
        normalised = normalise_folder(name)
        folder = self._folders().get(normalised)
        if folder is None:
            raise MailError(Reason.NO_SUCH_FOLDER, normalised)
        return folder

    def _special_folder(self, use: str) -> str:
        for folder in self._folders().values():
            if folder.special_use == use:
                return folder.name
        raise MailError(Reason.NO_SUCH_FOLDER, f"{self.address} has no {use} folder")

    def _look_up(self, folder_id: int, uid: int) -> Summary | None:
        rows = self._calls.run(self._reader.listing(folder_id, uid=uid))
        return summary_of(rows[0]) if rows else None

    def _at(self, folder_id: int, uid: int) -> Summary:
        summary = self._look_up(folder_id, uid)
        if summary is None:
            raise MailError(Reason.NO_SUCH_MESSAGE, f"UID {uid} no longer exists")
        return summary

    def _find(self, message: Summary | str) -> Summary:
        """Return the current summary of a message: in the same folder, or in any folder it was moved to."""
        message_id = message if isinstance(message, str) else message.id
        rows = self._calls.run(self._reader.find(self._account().registration, message_id))
        places = list(map(summary_of, rows))
        if not isinstance(message, str):
            same = [each for each in places if (each.folder_id, each.uid) == (message.folder_id, message.uid)]
            places = same or places
        if not places:
            raise MailError(Reason.NO_SUCH_MESSAGE, f"{message_id} is not in a folder of {self.address}")
        return places[0]

    def _change_flags(self, message: Summary | Mail, how: FlagChange, flags: Iterable[str]) -> Summary:
        bits, keywords = split_flags(flags)
        current = self._find(_summary(message))
        self._calls.run(self._writer.change_flags(current.folder_id, [current.uid], how, bits, keywords))
        return self._at(current.folder_id, current.uid)

    def _local_addresses(self, addresses: Iterable[str]) -> list[str]:
        """Return each address once, normalised. Raises MailError if one has no mailbox here."""
        normalised = list(dict.fromkeys(map(normalise_address, addresses)))
        if not normalised:
            raise MailError(Reason.BAD_ADDRESS, "no recipient")
        for address in normalised:
            try:
                self._calls.run(self._reader.account(address))
            except MailError as error:
                raise MailError(error.reason, f"{address} has no mailbox in this store; nothing was sent") from None
        return normalised


def new_message_id(address: str) -> str:
    """Generate a Message-ID in the domain of an address."""
    domain = address.rpartition("@")[2]
    if not domain.isascii():
        try:
            domain = to_ascii(domain)
        except UnicodeError as error:
            raise MailError(Reason.BAD_ADDRESS, f"bad domain in {address!r}") from error
    return f"<{os.urandom(12).hex()}.{int(datetime.now(UTC).timestamp())}@{domain}>"


def _summary(message: Summary | Mail) -> Summary:
    return message.summary if isinstance(message, Mail) else message


def _people(value: To) -> list[Person]:
    if isinstance(value, Person):
        return [value]
    if isinstance(value, str):
        people = mailboxes(value.encode("utf-8", "replace"))
        if value.strip() and not people:
            raise MailError(Reason.BAD_ADDRESS, f"not an address: {value!r}")
        return people
    return [person for each in value for person in _people(each)]


def _as_reply(headers: Headers, message: Mail) -> Headers:
    subject = message.subject if message.subject[:3].lower() == "re:" else f"Re: {message.subject}"
    return headers._replace(
        subject=headers.subject or subject,
        in_reply_to=message.message_id,
        references=[*message.references, message.message_id],
    )


def _attachment(file: File) -> tuple[str, str, bytes]:
    if isinstance(file, tuple):
        name, data = file
    else:
        name = os.path.basename(os.fspath(file))
        with open(file, "rb") as opened:
            data = opened.read()
    return name, mimetypes.guess_type(name)[0] or "application/octet-stream", data
