"""One account: its folders and messages, sending from it, waiting for its mail."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson

from adapter.api.messages import FolderInfo, Mail, Summary, flag_names, mail, moment, split_flags
from adapter.api.watch import AsyncWatch, Watch
from adapter.content import front_matter
from adapter.content.compose import compose
from adapter.store import names
from adapter.store.effects import FlagChange
from adapter.store.flags import Flag
from adapter.store.queries import mailboxes as queries
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.idna import to_ascii
from protocol.mime.addresses import Mailbox as Person
from protocol.mime.addresses import mailboxes

#: "ada@example.test", "Ada <ada@example.test>, bob@example.test", or several of these.
To = str | Person | Iterable[str | Person]
#: A path, or a name and the octets.
File = str | os.PathLike[str] | tuple[str, bytes]

_SUMMARY = """
SELECT p.message_id, f.name, p.folder_id, p.uid, p.internal_date, m.header_from, m.subject, m.size,
       s.flags, s.keywords, m.thread_id, coalesce(c.preview, '')
FROM mailbox_projections p JOIN folders f USING (folder_id) JOIN mailbox_state s USING (folder_id, uid)
JOIN messages m USING (message_id) LEFT JOIN cache_messages c USING (message_id)
"""


@dataclass(frozen=True, slots=True)
class Sent:
    id: str  # of the message in the store
    message_id: str  # what its Message-ID says
    recipients: tuple[str, ...]


class Mailbox:
    """Made by :meth:`adapter.api.Store.mailbox`."""

    def __init__(self, transport: Transport, address: str) -> None:
        self._transport = transport
        self.address = names.normalise_address(address)
        self._registration()  # an address that is not here is better told now

    # --- looking ---------------------------------------------------------------------------------------------------

    def folders(self) -> list[FolderInfo]:
        registration = self._registration()
        with self._transport.reading() as connection:
            found = queries.folders(connection, registration)
        return [FolderInfo(each.name, each.special_use, each.messages, each.unseen, each.size) for each in found]

    def messages(self, folder: str = names.INBOX, *, unread: bool = False, limit: int | None = None) -> list[Summary]:
        """The messages of a folder, the latest first; with ``unread`` only those nobody has read."""
        condition = " AND s.flags & 1 = 0" if unread else ""
        return self._summaries(
            f"WHERE p.folder_id = ?{condition} ORDER BY p.uid DESC LIMIT ?",
            (self._folder(folder).id, -1 if limit is None else limit),
        )

    def read(self, message: Summary | str) -> Mail:
        """A message of this account, by what a list showed or by its id. Reading does not set the flag ``read``."""
        summary = self._find(message)
        file = self._transport.content.file(summary.id)
        return mail(summary, file, front_matter.read(file), self._transport.content)

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
        """Send Markdown from this account; a copy is kept in its Sent folder. It is sent when this returns.

        Without a subject the first heading is taken. A reply goes to whoever is to be answered unless ``to`` says
        otherwise, joins the thread, and marks the message as answered. Every recipient must have a mailbox in this
        store: with one that has not, nothing is sent and ``NO_SUCH_ADDRESS`` is raised.
        """
        named, copied, hidden = _people(to), _people(cc), _people(bcc)
        if reply_to is not None and not named:
            named = list(reply_to.reply_to) or [reply_to.sender or Person("", "")]
        addresses = self._local(person.address for person in (*named, *copied, *hidden))
        values: dict[str, Any] = {"subject": subject, "to": _plain(named), "cc": _plain(copied)}
        if reply_to is not None:
            values |= _answering(reply_to, subject)
        message_id = new_message_id(self.address)
        octets = compose(
            b"---\n%b\n---\n\n%b" % (orjson.dumps(values), text.encode("utf-8", "replace")),
            sender=self.address,
            recipients=(),
            now=datetime.now(UTC),
            message_id=message_id,
            attachments=[_attachment(file) for file in attachments],
        )
        delivery = self._transport.run(
            op.Deliver(self._transport.stage(octets), self.address, addresses, keep_sent=True)
        )
        for outcome in delivery.recipients.values():
            if isinstance(outcome, MailError):
                raise outcome
        if reply_to is not None:
            self.set_flags(reply_to, "answered")
        return Sent(delivery.message_id, message_id, tuple(addresses))

    # --- changing --------------------------------------------------------------------------------------------------

    def set_flags(self, message: Summary | Mail, *flags: str) -> Summary:
        """Set flags by name: read, answered, starred, deleted, draft; any other name is a keyword."""
        return self._change_flags(message, "add", flags)

    def clear_flags(self, message: Summary | Mail, *flags: str) -> Summary:
        return self._change_flags(message, "remove", flags)

    def move(self, message: Summary | Mail, folder: str) -> Summary:
        """Move a message to another folder of this account; returns it as it is there."""
        current = self._find(_summary(message))
        moved = self._transport.run(op.Move(self.address, current.folder_id, [current.uid], folder))
        if not moved.uids:
            raise MailError(Reason.NO_SUCH_MESSAGE, current.id)
        return self._at(moved.folder, moved.uids[0][1])

    def archive(self, message: Summary | Mail) -> Summary:
        """Move a message to the folder for archived mail."""
        return self.move(message, self._special("\\Archive"))

    def trash(self, message: Summary | Mail) -> Summary:
        """Move a message to the folder for deleted mail."""
        return self.move(message, self._special("\\Trash"))

    def create_folder(self, name: str) -> None:
        folder = self._transport.run(op.CreateFolder(self.address, name))
        self._transport.run(op.Subscribe(self.address, folder.name))

    # --- waiting ---------------------------------------------------------------------------------------------------

    def watch(self, folder: str = names.INBOX, *, timeout: float | None = None) -> Watch:
        """New mail in a folder, from now on. With ``timeout``, iterating ends after so many seconds without any."""
        found = self._folder(folder)
        look, uids = partial(self._look, found.id), partial(self._uids, found.id)
        return Watch(self._transport.changes, found, look, uids, timeout)

    def watch_async(self, folder: str = names.INBOX, *, timeout: float | None = None) -> AsyncWatch:
        """The same for ``async for``; to be called on the event loop."""
        found = self._folder(folder)
        look, uids = partial(self._look, found.id), partial(self._uids, found.id)
        return AsyncWatch(self._transport.changes, found, look, uids, timeout)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _uids(self, folder_id: int, first: int) -> list[int]:
        with self._transport.reading() as connection:
            return [row.uid for row in queries.rows(connection, folder_id, first)]

    def _registration(self) -> str:
        with self._transport.reading() as connection:
            return queries.active_registration(connection, self.address).id

    def _folder(self, name: str) -> queries.Folder:
        registration = self._registration()
        with self._transport.reading() as connection:
            return queries.folder(connection, registration, names.normalise_folder(name))

    def _special(self, use: str) -> str:
        for folder in self.folders():
            if folder.special_use == use:
                return folder.name
        raise MailError(Reason.NO_SUCH_FOLDER, f"{self.address} has no {use} folder")

    def _summaries(self, rest: str, values: tuple[object, ...]) -> list[Summary]:
        with self._transport.reading() as connection:
            rows = connection.execute(_SUMMARY + rest, values).fetchall()
        return list(map(_from_row, rows))

    def _look(self, folder_id: int, uid: int) -> Summary | None:
        found = self._summaries("WHERE p.folder_id = ? AND p.uid = ?", (folder_id, uid))
        return found[0] if found else None

    def _at(self, folder_id: int, uid: int) -> Summary:
        found = self._look(folder_id, uid)
        if found is None:
            raise MailError(Reason.NO_SUCH_MESSAGE, f"UID {uid} is gone")
        return found

    def _find(self, message: Summary | str) -> Summary:
        """The message as it is now: where it was seen, or wherever in this account it lies since."""
        message_id = message if isinstance(message, str) else message.id
        found = self._summaries(
            "WHERE p.message_id = ? AND f.registration_id = ? ORDER BY p.folder_id, p.uid",
            (message_id, self._registration()),
        )
        if not isinstance(message, str):
            seen = [each for each in found if (each.folder_id, each.uid) == (message.folder_id, message.uid)]
            found = seen or found
        if not found:
            raise MailError(Reason.NO_SUCH_MESSAGE, f"{message_id} is not in a folder of {self.address}")
        return found[0]

    def _change_flags(self, message: Summary | Mail, how: FlagChange, flags: Iterable[str]) -> Summary:
        bits, keywords = split_flags(flags)
        current = self._find(_summary(message))
        self._transport.run(op.ChangeFlags(self.address, current.folder_id, [current.uid], how, Flag(bits), keywords))
        return self._at(current.folder_id, current.uid)

    def _local(self, addresses: Iterable[str]) -> list[str]:
        """Each address once, normalised; all have mailboxes here."""
        wanted = list(dict.fromkeys(map(names.normalise_address, addresses)))
        if not wanted:
            raise MailError(Reason.BAD_ADDRESS, "no recipient")
        with self._transport.reading() as connection:
            for address in wanted:
                try:
                    queries.active_registration(connection, address)
                except MailError as error:
                    raise MailError(error.reason, f"{address} has no mailbox in this store; nothing was sent") from None
        return wanted


def new_message_id(address: str) -> str:
    """A fresh Message-ID in the domain of an address."""
    domain = address.rpartition("@")[2]
    if not domain.isascii():
        try:
            domain = to_ascii(domain)
        except UnicodeError as error:
            raise MailError(Reason.BAD_ADDRESS, f"bad domain in {address!r}") from error
    return f"<{os.urandom(12).hex()}.{int(datetime.now(UTC).timestamp())}@{domain}>"


def _from_row(row: tuple[Any, ...]) -> Summary:
    message_id, folder, folder_id, uid, date, sender, subject, size, flags, keywords, thread, preview = row
    return Summary(
        id=message_id,
        folder=folder,
        folder_id=folder_id,
        uid=uid,
        date=moment(date),
        sender=sender,
        subject=subject,
        octets=size,
        flags=flag_names(flags, keywords),
        thread=thread,
        preview=preview,
    )


def _summary(message: Summary | Mail) -> Summary:
    return message.summary if isinstance(message, Mail) else message


def _people(value: To) -> list[Person]:
    if isinstance(value, Person):
        return [value]
    if isinstance(value, str):
        found = mailboxes(value.encode("utf-8", "replace"))
        if value.strip() and not found:
            raise MailError(Reason.BAD_ADDRESS, f"not an address: {value!r}")
        return found
    return [person for each in value for person in _people(each)]


def _plain(people: Iterable[Person]) -> list[dict[str, str]]:
    return [{"name": person.name, "address": person.address} for person in people]


def _answering(message: Mail, subject: str) -> dict[str, Any]:
    again = message.subject if message.subject[:3].lower() == "re:" else f"Re: {message.subject}"
    return {
        "subject": subject or again,
        "in_reply_to": message.message_id,
        "references": [*message.references, message.message_id],
    }


def _attachment(file: File) -> tuple[str, str, bytes]:
    if isinstance(file, tuple):
        name, data = file
    else:
        name = os.path.basename(os.fspath(file))
        with open(file, "rb") as opened:
            data = opened.read()
    return name, mimetypes.guess_type(name)[0] or "application/octet-stream", data
