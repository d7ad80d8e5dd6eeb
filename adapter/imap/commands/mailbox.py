"""Commands on mailboxes by name: CREATE, DELETE, RENAME, SUBSCRIBE, UNSUBSCRIBE, LIST, LSUB, NAMESPACE, STATUS.

All names are looked up among the folders of the account that is logged in, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from adapter.imap.commands.list import Hierarchy
from adapter.imap.commands.select import find_folder
from adapter.imap.handlers import TaggedResponse, handles, no
from adapter.store import names
from adapter.store.flags import Flag
from adapter.transport import ids
from adapter.transport import operations as op
from protocol.errors import MailError, Reason
from protocol.imap.commands import model
from protocol.imap.commands.model import StatusItem
from protocol.imap.responses import codes
from protocol.imap.responses import status as responses

if TYPE_CHECKING:
    from adapter.imap.session import Session
    from adapter.store.queries.mailboxes import Folder

#: Names that are compared with patterns without leaving the event loop.
_AT_ONCE: Final = 2000
#: RFC 6154 2, by the name a client may send
_USES: Final = {use.lower(): use for _, use in names.STANDARD_FOLDERS.values() if use}


# RFC 3501 6.3.3, RFC 6154 3, RFC 8474 4.1
@handles(model.Create)
async def create(session: Session, command: model.Create) -> TaggedResponse:
    if len(command.use) > 1 or any(use not in _USES for use in command.use):
        return no("Special use is not supported", codes.USEATTR)
    account = await session.mailboxes.account(session.account)
    if len(account.folders) >= session.server.settings.imap.folders:
        raise MailError(Reason.LIMIT, "folders")
    use = _USES[command.use[0]] if command.use else ""
    if use and any(folder.special_use == use for folder in account.folders.values()):
        return no("There is a mailbox of that use already", codes.USEATTR)
    folder = await session.mailboxes.commit(op.CreateFolder(session.account, command.mailbox, use))
    return TaggedResponse("Create completed", codes.mailboxid(ids.folder_label(folder.id)))


# RFC 3501 6.3.4
@handles(model.Delete)
async def delete(session: Session, command: model.Delete) -> TaggedResponse:
    await session.mailboxes.commit(op.DeleteFolder(session.account, command.mailbox))
    return TaggedResponse("Delete completed")


# RFC 3501 6.3.5; RFC 9051 6.3.6
@handles(model.Rename)
async def rename(session: Session, command: model.Rename) -> TaggedResponse:
    folder = await session.mailboxes.commit(op.RenameFolder(session.account, command.mailbox, command.new_name))
    if session.dialect.rev2 and command.mailbox != names.INBOX:
        session.send(responses.list_response(folder.name, (), session.dialect, old_name=command.mailbox))
    return TaggedResponse("Rename completed")


# RFC 3501 6.3.6: a server may refuse a mailbox that does not exist; clients expect it
@handles(model.Subscribe)
async def subscribe(session: Session, command: model.Subscribe) -> TaggedResponse:
    account = await session.mailboxes.account(session.account)
    name = names.normalise_folder(command.mailbox)
    if name not in account.folders and name not in Hierarchy(list(account.folders.values()), ()).parents:
        raise MailError(Reason.NO_SUCH_FOLDER)
    if len(account.subscriptions) >= session.server.settings.imap.folders:
        raise MailError(Reason.LIMIT, "subscriptions")
    await session.mailboxes.commit(op.Subscribe(session.account, command.mailbox, on=True))
    return TaggedResponse("Subscribe completed")


# RFC 3501 6.3.7
@handles(model.Unsubscribe)
async def unsubscribe(session: Session, command: model.Unsubscribe) -> TaggedResponse:
    await session.mailboxes.commit(op.Subscribe(session.account, command.mailbox, on=False))
    return TaggedResponse("Unsubscribe completed")


# RFC 3501 6.3.8, RFC 5258, RFC 5819, RFC 6154
@handles(model.List)
async def list_mailboxes(session: Session, command: model.List) -> TaggedResponse:
    if command.patterns == ("",) and not command.extended:
        # RFC 3501 6.3.8: the delimiter is asked for.
        session.send(responses.list_response("", [b"\\Noselect"], session.dialect))
        return TaggedResponse("List completed")
    hierarchy = await _hierarchy(session)
    counted = await session.mailboxes.status(session.account) if command.status else {}
    matching = partial(hierarchy.matching, command, plain=not session.dialect.rev2)
    if len(hierarchy.folders) * len(command.patterns) > _AT_ONCE:
        found = await session.backend.call(matching)
    else:
        found = matching()
    for shown in found:
        session.send(
            responses.list_response(shown.name, shown.attributes, session.dialect, child_info=shown.child_info)
        )
        if command.status and (folder := counted.get(shown.name)) is not None:
            await _send_status(session, folder, command.status)
        await session.connection.drain()
    return TaggedResponse("List completed")


# RFC 3501 6.3.9
@handles(model.Lsub)
async def lsub(session: Session, command: model.Lsub) -> TaggedResponse:
    if command.pattern is not None:
        for shown in (await _hierarchy(session)).lsub(command.reference, command.pattern):
            session.send(responses.lsub_response(shown.name, shown.attributes, session.dialect))
    return TaggedResponse("Lsub completed")


async def _hierarchy(session: Session) -> Hierarchy:
    account = await session.mailboxes.account(session.account)
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
    folder = (await session.mailboxes.status(session.account)).get(name)
    if folder is None:
        raise MailError(Reason.NO_SUCH_FOLDER)
    await _send_status(session, folder, command.items)
    return TaggedResponse("Status completed")


async def _send_status(session: Session, folder: Folder, wanted: Sequence[StatusItem]) -> None:
    items = [(item.value.encode("ascii"), await _value(session, folder, item)) for item in wanted]
    session.send(responses.status_response(folder.name, items, session.dialect))


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
            return b"(" + ids.folder_label(folder.id).encode("ascii") + b")"
        case StatusItem.APPENDLIMIT:
            return session.server.settings.limits.message_size


# RFC 3501 6.3.10; IMAP4rev2 has no \Recent
async def _recent(session: Session, folder: Folder) -> int:
    if session.dialect.rev2:
        return 0
    box = session.selected
    own = box.view.recent_count if box is not None and box.state.id == folder.id and not box.read_only else 0
    first = session.mailboxes.recent.peek(folder.id, folder.uidvalidity, folder.uidnext)
    return own + (await session.mailboxes.count_from(folder.id, first) if first < folder.uidnext else 0)


# RFC 9208 4.1.4: what an EXPUNGE would free
async def _deleted_octets(session: Session, folder: Folder) -> int:
    if not folder.deleted:
        return 0
    columns = (await session.mailboxes.folder(folder.id)).columns
    return sum(size for size, mask in zip(columns.sizes, columns.masks, strict=True) if mask & Flag.DELETED)
