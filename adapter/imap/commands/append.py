"""APPEND (RFC 3501 6.3.11, RFC 3502) and REPLACE (RFC 8508): messages are received as a stream.

Everything that does not depend on the octets (mailbox, limits, quota) is checked when a literal is announced, before
the client sends it. The messages of one command are uploaded one by one and committed together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapter.imap.commands.copy import highest_modseq
from adapter.imap.commands.select import find_folder
from adapter.imap.commands.store import READ_ONLY, check_keywords, split_flags
from adapter.imap.handlers import TaggedResponse, failure, handles
from adapter.read_model.interface import Folder, NewMessage, Placed, Upload
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

#: The messages of one command may be so many times as large as one message.
_MAX_COMMAND_MESSAGES_SIZE = 4


class PendingAppend:
    """The messages of a command that is being received."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.parser = AppendParser(name, dialect)
        self.uploads: list[Upload] = []
        self.announced_octets = 0
        self.error: MailError | None = None  # reported when the command is complete

    def close(self) -> None:
        for upload in self.uploads:
            upload.close()


def discard_pending(session: Session) -> None:
    """Discard the messages of a command that was not carried out."""
    pending, session.pending_append = session.pending_append, None
    if pending is not None:
        pending.close()


def refusal(error: MailError) -> TaggedResponse:
    return failure(error, into=True)


# RFC 3501 6.3.11: an error before the literal is better than one after it
async def announce(session: Session, start: LiteralStart) -> None:
    """Prepare for the literal of a message. Raises CommandError or MailError to refuse it."""
    pending = session.pending_append
    if pending is None:
        pending = session.pending_append = PendingAppend(start.name, session.dialect)
    settings = session.server.settings
    if len(pending.uploads) >= min(settings.imap.append_messages, settings.imap.message_limit or 1 << 30):
        if settings.imap.message_limit:
            code = codes.messagelimit(settings.imap.message_limit).decode("ascii")
            raise CommandError("Too many messages in one command", "NO", code)
        raise MailError(Reason.LIMIT, "messages in one APPEND")
    message = pending.parser.message(start)
    if not start.size:
        # RFC 3502 6.3.11: how a client cancels the command
        raise CommandError("Append cancelled: the message is empty", "NO")
    split_flags(message.flags, settings.imap)
    pending.announced_octets += start.size
    if pending.announced_octets > _MAX_COMMAND_MESSAGES_SIZE * settings.limits.message_size:
        raise MailError(Reason.TOO_BIG, "all messages of one APPEND")
    if not pending.uploads:
        await find_folder(session, pending.parser.mailbox)
    replaced = [] if pending.parser.replaces is None else _replaced_uids(session, *pending.parser.replaces)
    # RFC 8508 3.4: replaced messages make room
    freed = sum(session.mailbox.folder.sizes(replaced)) if replaced else 0
    await session.writer.check_quota(pending.announced_octets - freed, len(pending.uploads) + 1 - len(replaced))
    pending.uploads.append(session.writer.upload())


async def receive_chunk(session: Session, chunk: LiteralChunk) -> None:
    pending = session.pending_append
    assert pending is not None  # noqa: S101 - a chunk follows an accepted announcement
    if pending.error is not None:
        return
    try:
        await pending.uploads[-1].write(chunk.data)
    except MailError as error:
        pending.error = error


# RFC 3501 6.3.11, RFC 3502 6.3.11, RFC 4315 3
@handles(model.Append)
async def append(session: Session, command: model.Append) -> TaggedResponse:
    folder = await find_folder(session, command.mailbox)
    placed = await _commit(session, folder, command.messages, None)
    return TaggedResponse("Append completed", codes.appenduid(placed[0].uidvalidity, [each.uid for each in placed]))


# RFC 8508 3.3: APPENDUID and EXISTS come before the expunge
@handles(model.Replace)
async def replace(session: Session, command: model.Replace) -> TaggedResponse:
    uids = _replaced_uids(session, command.number, command.uid)
    folder = await find_folder(session, command.mailbox)
    placed = await _commit(session, folder, [command.message], (session.mailbox.folder.id, uids))
    session.send(status.ok(None, "Replacement", codes.appenduid(placed[0].uidvalidity, [placed[0].uid])))
    return TaggedResponse("Replace completed", highest_modseq(session), exists_first=True)


def _replaced_uids(session: Session, number: int, uid: bool) -> Sequence[int]:
    """Return the UID of the message to replace. Raises CommandError or ProtocolError if it cannot be replaced."""
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
    replaced: tuple[int, Sequence[int]] | None,
) -> Sequence[Placed]:
    settings = session.server.settings.imap
    flags = [split_flags(message.flags, settings) for message in messages]
    if any(keywords for _, keywords in flags):
        table = (await session.reader.folder(folder.id)).flags
        check_keywords(table, [keyword for _, keywords in flags for keyword in keywords])
    pending = session.pending_append
    assert pending is not None  # noqa: S101 - the command had at least one message
    if pending.error is not None:
        raise pending.error
    session.pending_append = None  # the writer closes the uploads
    new = [
        NewMessage(upload, system, keywords, None if message.date is None else int(message.date.timestamp()))
        for upload, message, (system, keywords) in zip(pending.uploads, messages, flags, strict=True)
    ]
    return await session.writer.append(folder, new, replaced)
