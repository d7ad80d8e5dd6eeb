"""Opening and leaving a mailbox: SELECT, EXAMINE, CLOSE, UNSELECT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from adapter.imap.handlers import TaggedResponse, handles
from adapter.read_model.interface import Folder, mailbox_id, normalise_folder
from protocol.errors import MailError, Reason
from protocol.imap.commands import model
from protocol.imap.commands.fetch_items import Attribute
from protocol.imap.commands.model import QResync
from protocol.imap.responses import codes, status
from protocol.imap.responses.status import SelectedFolder
from protocol.imap.sequence_set import LARGEST, Spans, contains, intersect, missing
from protocol.imap.session_view import Rows
from protocol.imap.states import StateEvent

if TYPE_CHECKING:
    from adapter.imap.selected_mailbox import SelectedMailbox
    from adapter.imap.session import Session

_RESYNC_ITEMS: Final = (Attribute.UID, Attribute.FLAGS, Attribute.MODSEQ)


async def find_folder(session: Session, name: str) -> Folder:
    """Return a folder of the authenticated account. Raises ``NO_SUCH_FOLDER``, ``BAD_FOLDER_NAME``."""
    name = normalise_folder(name)
    account = await session.reader.account(session.account)
    folder = account.folders.get(name)
    if folder is None:
        raise MailError(Reason.NO_SUCH_FOLDER)
    return folder


# RFC 3501 6.3.1, 6.3.2; RFC 9051 6.3.2, 6.3.3; RFC 7162 3.2.5, 3.2.11
@handles(model.Select)
async def select(session: Session, command: model.Select) -> TaggedResponse:
    had_mailbox = session.state.has_mailbox
    session.apply(StateEvent.SELECT_STARTED)
    if had_mailbox:
        session.send(status.ok(None, "Previous mailbox closed", codes.CLOSED))
    try:
        return await _open(session, command)
    except Exception:
        session.apply(StateEvent.SELECT_FAILED)
        raise


async def _open(session: Session, command: model.Select) -> TaggedResponse:
    folder = await find_folder(session, command.mailbox)
    opened = await session.reader.folder(folder.id)
    box = session.open_mailbox(opened, read_only=command.read_only)
    session.send(
        status.selected(
            SelectedFolder(
                folder.name,
                len(box.view),
                opened.flags,
                opened.uidvalidity,
                opened.uidnext,
                opened.modseq,
                mailbox_id(folder.id),
                opened.first_unseen() or None,
                command.read_only,
                box.view.announce_recent(),
            ),
            session.dialect,
        )
    )
    if command.qresync is not None and command.qresync.uid_validity == opened.uidvalidity:
        await _resynchronise(session, box, command.qresync)
    what = "Examine" if command.read_only else "Select"
    # Later changes are announced with the next command.
    return TaggedResponse(
        f"{what} completed", codes.READ_ONLY if command.read_only else codes.READ_WRITE, announces=False
    )


# RFC 7162 3.2.5.1: the message numbers that the client matched with UIDs (3.2.5.2) are not needed, because every
# expunge is recorded
async def _resynchronise(session: Session, box: SelectedMailbox, client: QResync) -> None:
    requested: Spans = [(1, LARGEST)] if client.known_uids is None else client.known_uids.resolve(LARGEST)
    changed = [uid for uid in box.folder.changed_since(client.modseq) if contains(requested, uid)]
    await send_vanished(session, box, client.modseq, requested)
    rows = Rows(box.view.numbers(changed), changed, False)
    if changed:
        # RFC 9586 3.3: the response begins with the UID
        items = _RESYNC_ITEMS[1:] if session.dialect.uid_only else _RESYNC_ITEMS
        async for chunk in session.reader.fetch(box.folder, rows, items, session.dialect, box.view).chunks():
            session.send(chunk)
            await session.connection.drain()


# RFC 7162 3.2.10.1
async def send_vanished(session: Session, box: SelectedMailbox, modseq: int, requested: Spans) -> None:
    """Send ``VANISHED (EARLIER)`` for the requested UIDs that were expunged after a mod-sequence."""
    if modseq >= box.folder.modseq:
        return
    expunged = await session.reader.vanished(box.folder.id, modseq)
    # Announced messages still exist for the client, even if they were expunged since.
    vanished = list(_numbers(missing(intersect(expunged, requested), box.view.uids)))
    if vanished:
        session.send(status.vanished(vanished, earlier=True))


def _numbers(spans: Spans) -> Iterable[int]:
    for low, high in spans:
        yield from range(low, high + 1)


# RFC 3501 6.4.2
@handles(model.Close)
async def close(session: Session, command: model.Close) -> TaggedResponse:
    box = session.mailbox
    session.apply(StateEvent.DESELECTED)  # first, so that the expunges are not announced
    if not box.read_only:
        try:
            await session.writer.expunge(box.folder.id)
        except MailError as error:
            if error.reason is not Reason.NO_SUCH_FOLDER:  # deleted by another session: it is closed anyway
                raise
    return TaggedResponse("Close completed")


# RFC 3691 2
@handles(model.Unselect)
async def unselect(session: Session, command: model.Unselect) -> TaggedResponse:
    session.apply(StateEvent.DESELECTED)
    return TaggedResponse("Unselect completed")
