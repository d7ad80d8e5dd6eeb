r"""FETCH (RFC 3501 6.4.5, RFC 7162 3.1.4, 3.2.6, RFC 9394 3.3).

``\Seen`` is set for all messages of a command in one commit, before their content is sent: the flags that go with it
are those that hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from adapter.imap.commands.select import send_vanished
from adapter.imap.handlers import TaggedResponse, handles, no
from adapter.store.flags import Flag
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from protocol.imap.commands import model
from protocol.imap.commands.fetch_items import Attribute, BinaryPart, BinarySize, BodyPart, FetchItem
from protocol.imap.flags import SEEN
from protocol.imap.responses import codes
from protocol.imap.responses import fetch as fetch_response
from protocol.imap.responses.search import partial_window
from protocol.imap.session_view import Rows

if TYPE_CHECKING:
    from adapter.imap.selected_mailbox import SelectedMailbox
    from adapter.imap.session import Session
    from adapter.read_model.fetch_stream import Fetch
    from adapter.transport.transport import Transport


_UID_ROW: Final = fetch_response.row_format([fetch_response.UID])
_UIDS_AT_ONCE: Final = 4096


# RFC 3501 6.4.5; RFC 7162 3.1.4, 3.2.6; RFC 9394 3.3
@handles(model.Fetch)
async def fetch(session: Session, command: model.Fetch) -> TaggedResponse:
    box = session.mailbox
    # What is known to have changed is told before, so that nothing is told twice or in the wrong order.
    session.send_updates()
    if command.vanished and command.changed_since is not None:
        wanted = command.messages.resolve(max(box.state.uidnext - 1, 1))
        await send_vanished(session, box, command.changed_since, wanted)
    if command.items == (Attribute.UID,) and not command.uid and command.changed_since is None:
        return await _numbers_to_uids(session, command)
    rows, limited = _rows(session, command)
    box.view.note_fetch(rows.uids)
    items = await _set_seen(session, box, rows, command) if command.sets_seen and not box.read_only else command.items
    if session.dialect.uid_only and len(items) > 1:
        # RFC 9586 3.3: the response begins with the UID
        items = tuple(item for item in items if item is not Attribute.UID)
    fetching = session.mailboxes.fetch(box.state, rows, items, session.dialect, box.view)
    at_once = fetching.at_once()
    if at_once is not None:
        session.send(at_once)
        return _answer(rows, items, fetching, limited)
    session.in_response = True
    try:
        async for chunk in fetching.chunks():
            session.send(chunk)
            await session.connection.drain()
    except Exception as error:
        # In the middle of a literal no word can be said any more: the client would take it for content.
        session.report_error(error)
        session.connection.abort()
        return no("Fetch failed", codes.SERVERBUG)
    session.in_response = False
    answer = _answer(rows, items, fetching, limited)
    if fetching.failed and not fetching.undecodable:
        backend = session.backend
        if await backend.call(_exist, backend.transport, box.state.id, fetching.failed):
            # RFC 5530 3
            code = codes.CORRUPTION if fetching.is_corrupt else codes.UNAVAILABLE
            return answer._replace(text="Some messages can not be read", code=code, status=b"NO")
    return answer


# RFC 2180 4.1.2: what is known of an expunged message may be told as long as its number is valid
async def _numbers_to_uids(session: Session, command: model.Fetch) -> TaggedResponse:
    """FETCH of UIDs alone, which the view knows also of messages that another session has expunged."""
    rows = session.mailbox.view.by_number(command.messages, with_expunged=True)
    if command.partial is not None:
        rows = restrict(rows, partial_window(rows.uids, command.partial))
    rows, limited = limit(session, rows)
    session.mailbox.view.note_fetch(rows.uids)
    for start in range(0, len(rows.uids), _UIDS_AT_ONCE):
        part = slice(start, start + _UIDS_AT_ONCE)
        session.send(fetch_response.fetch_rows(_UID_ROW, rows.numbers[part], [rows.uids[part]]))
        await session.connection.drain()
    return TaggedResponse("Fetch completed", limited=limited)


def _rows(session: Session, command: model.Fetch) -> tuple[Rows, bytes]:
    """The messages to be sent; and the code that says where a limit has cut them off."""
    box = session.mailbox
    rows = box.rows(command.messages, uid=command.uid)
    if command.partial is not None:
        # RFC 9394 3.4: the page is one of all messages named, not of those that have changed
        rows = restrict(rows, partial_window(rows.uids, command.partial))
    if command.changed_since is not None:
        # RFC 7162 3.1.4.1
        rows = restrict(rows, box.state.flagged_since(command.changed_since))
    return limit(session, rows)


def restrict(rows: Rows, uids: Sequence[int]) -> Rows:
    """The rows whose UIDs are among these."""
    if len(uids) == len(rows.uids) and list(uids) == list(rows.uids):
        return rows
    chosen = set(uids)
    kept = [(number, uid) for number, uid in zip(rows.numbers, rows.uids, strict=True) if uid in chosen]
    return Rows([number for number, _ in kept], [uid for _, uid in kept], rows.has_expunged)


# RFC 9738 3.1: the highest are taken, and the lowest of them is told
def limit(session: Session, rows: Rows) -> tuple[Rows, bytes]:
    most = session.server.settings.imap.message_limit
    if not most or len(rows.uids) <= most:
        return rows, b""
    kept = Rows(rows.numbers[-most:], rows.uids[-most:], rows.has_expunged)
    return kept, codes.messagelimit(most, kept.uids[0])


# RFC 3501 6.4.5: BODY[…] and BINARY[…] set \Seen, and the flags are sent along
async def _set_seen(session: Session, box: SelectedMailbox, rows: Rows, command: model.Fetch) -> tuple[FetchItem, ...]:
    unseen = [uid for uid, mask in zip(rows.uids, box.state.masks(rows.uids), strict=True) if not mask & SEEN]
    if not unseen:
        return command.items
    await session.mailboxes.commit(op.ChangeFlags(session.account, box.state.id, unseen, "add", flags=int(Flag.READ)))
    # Their flags are sent below. What changes after this moment is told once more, at the end.
    box.view.mark_fetched_flags(unseen)
    added = [Attribute.FLAGS, Attribute.MODSEQ] if session.dialect.condstore else [Attribute.FLAGS]
    content = (BodyPart, BinaryPart, BinarySize)
    # Flags before content: clients that read the first parenthesis only find them there.
    first = [item for item in command.items if not isinstance(item, content)]
    last = [item for item in command.items if isinstance(item, content)]
    return (*first, *[item for item in added if item not in first], *last)


def _answer(rows: Rows, items: Sequence[FetchItem], fetching: Fetch, limited: bytes) -> TaggedResponse:
    modseq_sent = Attribute.MODSEQ in items
    if fetching.undecodable:
        # RFC 3516 4.3
        return TaggedResponse("Some parts can not be decoded", codes.UNKNOWN_CTE, b"NO", modseq_sent, limited=limited)
    if rows.has_expunged or fetching.failed:
        # RFC 2180 4.1, RFC 5530 3
        text = "Fetch completed, some messages are gone"
        return TaggedResponse(text, codes.EXPUNGEISSUED, modseq_sent=modseq_sent, limited=limited)
    return TaggedResponse("Fetch completed", modseq_sent=modseq_sent, limited=limited)


def _exist(transport: Transport, folder: int, uids: Sequence[int]) -> bool:
    """Whether any of these messages is there; the folder's state may not know of an expunge yet. Blocks."""
    with transport.reading() as connection:
        return bool(mailboxes.rows_of(connection, folder, uids))
