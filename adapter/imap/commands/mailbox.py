"""Commands on mailboxes by name: CREATE, DELETE, RENAME, SUBSCRIBE, UNSUBSCRIBE, LIST, LSUB, NAMESPACE, STATUS.

All names are looked up among the folders of the authenticated account, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from adapter.imap.commands.list import Hierarchy
from adapter.imap.commands.select import find_folder
from adapter.imap.handlers import TaggedResponse, handles, no
from adapter.read_model.interface import INBOX, STANDARD_FOLDERS, Flag, Folder, mailbox_id, normalise_folder
from protocol.errors import MailError, Reason
from protocol.imap.commands import model
from protocol.imap.commands.model import StatusItem
from protocol.imap.responses import codes
from protocol.imap.responses import status as responses

if TYPE_CHECKING:
    from adapter.imap.session import Session

#: More comparisons of names with patterns run on a thread.
_MAX_COMPARISONS: Final = 2000
#: RFC 6154 2, by the name a client may send
_USES: Final = {use.lower(): use for _, use in STANDARD_FOLDERS.values() if use}


# RFC 3501 6.3.3, RFC 6154 3, RFC 8474 4.1
@handles(model.Create)
async def create(session: Session, command: model.Create) -> TaggedResponse:
    if len(command.use) > 1 or any(use not in _USES for use in command.use):
        return no("Special use is not supported", codes.USEATTR)
    account = await session.reader.account(session.account)
    if len(account.folders) >= session.server.settings.imap.folders:
        raise MailError(Reason.LIMIT, "folders")
    use = _USES[command.use[0]] if command.use else ""
    if use and any(folder.special_use == use for folder in account.folders.values()):
        return no("There is a mailbox of that use already", codes.USEATTR)
    folder = await session.writer.create_folder(command.mailbox, use)
    return TaggedResponse("Create completed", codes.mailboxid(mailbox_id(folder.id)))


# RFC 3501 6.3.4
@handles(model.Delete)
async def delete(session: Session, command: model.Delete) -> TaggedResponse:
    await session.writer.delete_folder(command.mailbox)
    return TaggedResponse("Delete completed")


# RFC 3501 6.3.5; RFC 9051 6.3.6
@handles(model.Rename)
async def rename(session: Session, command: model.Rename) -> TaggedResponse:
    folder = await session.writer.rename_folder(command.mailbox, command.new_name)
    if session.dialect.rev2 and command.mailbox != INBOX:
        session.send(responses.list_response(folder.name, (), session.dialect, old_name=command.mailbox))
    return TaggedResponse("Rename completed")


# RFC 3501 6.3.6: a server may refuse a missing mailbox, and clients expect that
@handles(model.Subscribe)
async def subscribe(session: Session, command: model.Subscribe) -> TaggedResponse:
    account = await session.reader.account(session.account)
    name = normalise_folder(command.mailbox)
    if name not in account.folders and name not in Hierarchy(list(account.folders.values()), ()).parents:
        raise MailError(Reason.NO_SUCH_FOLDER)
    if len(account.subscriptions) >= session.server.settings.imap.folders:
        raise MailError(Reason.LIMIT, "subscriptions")
    await session.writer.subscribe(command.mailbox)
    return TaggedResponse("Subscribe completed")


# RFC 3501 6.3.7
@handles(model.Unsubscribe)
async def unsubscribe(session: Session, command: model.Unsubscribe) -> TaggedResponse:
    await session.writer.unsubscribe(command.mailbox)
    return TaggedResponse("Unsubscribe completed")


# RFC 3501 6.3.8, RFC 5258, RFC 5819, RFC 6154
@handles(model.List)
async def list_mailboxes(session: Session, command: model.List) -> TaggedResponse:
    if command.patterns == ("",) and not command.extended:
        # RFC 3501 6.3.8: a request for the delimiter.
        session.send(responses.list_response("", [b"\\Noselect"], session.dialect))
        return TaggedResponse("List completed")
    hierarchy = await _hierarchy(session)
    counted = await session.reader.status(session.account) if command.status else {}
    matching = partial(hierarchy.matching, command, plain=not session.dialect.rev2)
    if len(hierarchy.folders) * len(command.patterns) > _MAX_COMPARISONS:
        mailboxes = await asyncio.to_thread(matching)
    else:
        mailboxes = matching()
    for listed in mailboxes:
        session.send(
            responses.list_response(listed.name, listed.attributes, session.dialect, child_info=listed.child_info)
        )
        if command.status and (folder := counted.get(listed.name)) is not None:
            await _send_status(session, folder, command.status)
        await session.connection.drain()
    return TaggedResponse("List completed")


# RFC 3501 6.3.9
@handles(model.Lsub)
async def lsub(session: Session, command: model.Lsub) -> TaggedResponse:
    if command.pattern is not None:
        for listed in (await _hierarchy(session)).lsub(command.reference, command.pattern):
            session.send(responses.lsub_response(listed.name, listed.attributes, session.dialect))
    return TaggedResponse("Lsub completed")


async def _hierarchy(session: Session) -> Hierarchy:
    account = await session.reader.account(session.account)
    return Hierarchy(list(account.folders.values()), account.subscriptions)


# RFC 2342 5
@handles(model.Namespace)
async def namespace(session: Session, command: model.Namespace) -> TaggedResponse:
    session.send(responses.namespace([""], dialect=session.dialect))
    return TaggedResponse("Namespace completed")


# RFC 3501 6.3.10; RFC 9051 6.3.11
@handles(model.Status)
async def status(session: Session, command: model.Status) -> TaggedResponse:
    name = (await find_folder(session, command.mailbox)).name
    folder = (await session.reader.status(session.account)).get(name)
    if folder is None:
        raise MailError(Reason.NO_SUCH_FOLDER)
    await _send_status(session, folder, command.items)
    return TaggedResponse("Status completed")


async def _send_status(session: Session, folder: Folder, items: Sequence[StatusItem]) -> None:
    values = [(item.value.encode("ascii"), await _value(session, folder, item)) for item in items]
    session.send(responses.status_response(folder.name, values, session.dialect))


async def _value(session: Session, folder: Folder, item: StatusItem) -> int | bytes:
    match item:
        case StatusItem.MESSAGES:
            return folder.messages
        case StatusItem.RECENT:
            return await _recent(session, folder)
        case StatusItem.UIDNEXT:
            return folder.uidnext
        case StatusItem.UIDVALIDITY:
            return folder.uidvalidity
        case StatusItem.UNSEEN:
            return folder.unseen
        case StatusItem.DELETED:
            return folder.deleted
        case StatusItem.DELETED_STORAGE:
            return await _deleted_octets(session, folder)
        case StatusItem.SIZE:
            return folder.size
        case StatusItem.HIGHESTMODSEQ:
            return folder.highestmodseq
        case StatusItem.MAILBOXID:
            return b"(" + mailbox_id(folder.id).encode("ascii") + b")"
        case StatusItem.APPENDLIMIT:
            return session.server.settings.limits.message_size


# RFC 3501 6.3.10; IMAP4rev2 has no \Recent
async def _recent(session: Session, folder: Folder) -> int:
    if session.dialect.rev2:
        return 0
    box = session.selected
    own = box.view.recent_count if box is not None and box.folder.id == folder.id and not box.read_only else 0
    return own + await session.reader.recent_count(folder)


# RFC 9208 4.1.4: octets that EXPUNGE would free
async def _deleted_octets(session: Session, folder: Folder) -> int:
    if not folder.deleted:
        return 0
    opened = await session.reader.folder(folder.id)
    uids = opened.uids
    return sum(size for size, mask in zip(opened.sizes(uids), opened.masks(uids), strict=True) if mask & Flag.DELETED)
