"""APPEND (RFC 3501 6.3.11, RFC 3502) and REPLACE (RFC 8508): messages come in as a stream.

What can be known before a message is taken (the mailbox, limits, quota) is checked when its literal is announced, so
that nobody sends fifty megabytes in vain. Octets go to a spool, which is in memory while small; the messages of one
command are staged together on a thread and committed together.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from adapter.imap.commands.copy import highest
from adapter.imap.commands.select import find_folder
from adapter.imap.commands.store import READ_ONLY, check_keywords, split_flags
from adapter.imap.handlers import TaggedResponse, failure, handles
from adapter.store import names
from adapter.transport import operations as op
from adapter.transport.sent_copy import Fingerprint, fingerprint_of
from adapter.transport.staging import SPOOL_MEMORY, Spool, Staged
from protocol.errors import MailError, Reason
from protocol.imap.commands import model
from protocol.imap.commands.append import AppendParser
from protocol.imap.commands.model import AppendMessage
from protocol.imap.responses import codes, status
from protocol.imap.sequence_set import SequenceSet
from protocol.imap.wire.events import LiteralChunk, LiteralStart
from protocol.imap.wire.lexer import CommandError, Dialect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapter.imap.session import Session
    from adapter.store.queries.mailboxes import Folder
    from adapter.transport.transport import Transport

_SENT_NAME = "Sent"
_, _SENT_USE = names.STANDARD_FOLDERS[_SENT_NAME]


class Upload:
    """The messages of one command, as far as they have come in.

    A spool on disk is written by a thread; it is never closed under its hands, whenever the connection breaks.
    """

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.parser = AppendParser(name, dialect)
        self.spools: list[Spool] = []
        self.size = 0
        self.trouble: MailError | None = None  # what kept octets from being taken; told when the command is whole
        self.on_thread = False
        self._lock = threading.Lock()
        self._closed = False

    def write(self, data: bytes) -> None:
        with self._lock:
            if not self._closed:
                self.spools[-1].write(data)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for spool in self.spools:
                spool.close()


def give_up(session: Session) -> None:
    upload, session.upload = session.upload, None
    if upload is None:
        return
    if upload.on_thread:
        session.backend.store.pool.submit(upload.close)
    else:
        upload.close()


def refusal(error: MailError) -> TaggedResponse:
    return failure(error, into=True)


# RFC 3501 6.3.11: an error before the literal is better than one after it
async def announce(session: Session, start: LiteralStart) -> None:
    """A message is about to come. Raises CommandError or MailError if it is not wanted."""
    upload = session.upload
    if upload is None:
        upload = session.upload = Upload(start.name, session.dialect)
    settings = session.server.settings
    if len(upload.spools) >= min(settings.imap.append_messages, settings.imap.message_limit or 1 << 30):
        if settings.imap.message_limit:
            code = codes.messagelimit(settings.imap.message_limit).decode("ascii")
            raise CommandError("Too many messages in one command", "NO", code)
        raise MailError(Reason.LIMIT, "messages in one APPEND")
    message = upload.parser.message(start)
    if not start.size:
        # RFC 3502 6.3.11: how a client that has begun to send messages gives up
        raise CommandError("Append cancelled, there is no message", "NO")
    split_flags(message.flags, settings.imap)
    upload.size += start.size
    if upload.size > 4 * settings.limits.message_size:
        raise MailError(Reason.TOO_BIG, "all messages of one APPEND")
    if not upload.spools:
        await find_folder(session, upload.parser.mailbox)
    replaced = [] if upload.parser.replaces is None else _to_replace(session, *upload.parser.replaces)
    quota = session.server.quotas.of(session.account)
    if quota.limited:
        folders = (await session.mailboxes.status(session.account)).values()
        # RFC 8508 3.4: what goes makes room for what comes
        freed = sum(session.mailbox.state.sizes(replaced)) if replaced else 0
        quota.check(list(folders), upload.size - freed, len(upload.spools) + 1 - len(replaced))
    upload.spools.append(session.backend.transport.spool())


async def take_chunk(session: Session, chunk: LiteralChunk) -> None:
    upload = session.upload
    assert upload is not None  # noqa: S101 - a chunk follows an announcement that was accepted
    if upload.trouble is not None:
        return
    try:
        if upload.spools[-1].size + len(chunk.data) <= SPOOL_MEMORY:
            upload.write(chunk.data)
        else:
            upload.on_thread = True
            await session.backend.call(upload.write, chunk.data)
            upload.on_thread = False
    except MailError as error:
        upload.trouble, upload.on_thread = error, False


# RFC 3501 6.3.11, RFC 3502 6.3.11, RFC 4315 3
@handles(model.Append)
async def append(session: Session, command: model.Append) -> TaggedResponse:
    folder = await find_folder(session, command.mailbox)
    placed = await _commit(session, folder, command.messages, None)
    return TaggedResponse("Append completed", codes.appenduid(placed[0].uidvalidity, [each.uid for each in placed]))


# RFC 8508 3.3: APPENDUID and EXISTS come before the expunge
@handles(model.Replace)
async def replace(session: Session, command: model.Replace) -> TaggedResponse:
    uids = _to_replace(session, command.number, command.uid)
    folder = await find_folder(session, command.mailbox)
    placed = await _commit(session, folder, [command.message], (session.mailbox.state.id, uids))
    session.send(status.ok(None, "Replacement", codes.appenduid(placed[0].uidvalidity, [placed[0].uid])))
    return TaggedResponse("Replace completed", highest(session), exists_first=True)


def _to_replace(session: Session, number: int, uid: bool) -> Sequence[int]:
    """The UID of the message that is to go. Raises CommandError or ProtocolError if that can not be."""
    box = session.mailbox
    if box.read_only:
        raise CommandError(READ_ONLY.text, "NO", "READ-ONLY")
    rows = box.rows(SequenceSet(((number, number),)), uid=uid)
    if not rows.uids:
        raise CommandError("No such message", "NO", "EXPUNGEISSUED" if rows.has_expunged else "NONEXISTENT")
    return rows.uids


async def _commit(
    session: Session,
    folder: Folder,
    messages: Sequence[AppendMessage],
    replaces: tuple[int, Sequence[int]] | None,
) -> list[op.Placed]:
    settings = session.server.settings.imap
    flags = [split_flags(message.flags, settings) for message in messages]
    if any(keywords for _, keywords in flags):
        state = await session.mailboxes.folder(folder.id)
        check_keywords(state.flags, [keyword for _, keywords in flags for keyword in keywords])
    transport = session.backend.transport
    assert session.upload is not None  # noqa: S101 - the command had at least one message
    if session.upload.trouble is not None:
        raise session.upload.trouble
    upload, session.upload = session.upload, None  # the thread closes the spools
    quota = session.server.quotas.of(session.account)

    # Submission may have put the same message there, or be about to.
    is_sent_folder = folder.special_use == _SENT_USE or folder.name == _SENT_NAME
    may_have_twin = is_sent_folder and len(messages) == 1 and replaces is None

    def prepare() -> op.Append:
        fingerprint = _fingerprint(upload) if may_have_twin else None
        staged = _stage(transport, upload.spools)
        find_twin = session.backend.store.sent_copies.finder(staged[0].content.id, fingerprint)
        items = [
            op.AppendItem(each, system, keywords, None if message.date is None else int(message.date.timestamp()))
            for each, message, (system, keywords) in zip(staged, messages, flags, strict=True)
        ]
        limited = quota if quota.limited else None
        return op.Append(session.account, folder.name, items, replaces, limited, find_twin)

    return await session.mailboxes.commit_staged(prepare, upload.size)


def _fingerprint(upload: Upload) -> Fingerprint:
    try:
        with upload.spools[0].reading() as octets:
            return fingerprint_of(octets)
    except BaseException:
        upload.close()
        raise


def _stage(transport: Transport, spools: Sequence[Spool]) -> list[Staged]:
    """All or none: what is staged when one fails is given back."""
    staged: list[Staged] = []
    try:
        for spool in spools:
            staged.append(spool.stage())
    except BaseException:
        for each in staged:
            transport.discard(each)
        for spool in spools:
            spool.close()
        raise
    return staged
