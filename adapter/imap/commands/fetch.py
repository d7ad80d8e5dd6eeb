r"""FETCH (RFC 3501 6.4.5, RFC 7162 3.1.4, 3.2.6, RFC 9394 3.3).

``\Seen`` is set for all messages of a command in one commit, before their content is sent, so that the flags in the
responses are the current ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from adapter.imap.commands.select import send_vanished
from adapter.imap.handlers import TaggedResponse, handles, no
from adapter.read_model.interface import FetchResponses, Flag
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


_UID_ROW: Final = fetch_response.row_format([fetch_response.UID])
_UIDS_PER_CHUNK: Final = 4096


# RFC 3501 6.4.5; RFC 7162 3.1.4, 3.2.6; RFC 9394 3.3
@handles(model.Fetch)
async def fetch(session: Session, command: model.Fetch) -> TaggedResponse:
    box = session.mailbox
    # Announced before the responses: no change is announced twice or out of order.
    session.send_updates()
    if command.vanished and command.changed_since is not None:
        requested = command.messages.resolve(max(box.folder.uidnext - 1, 1))
        await send_vanished(session, box, command.changed_since, requested)
    if command.items == (Attribute.UID,) and not command.uid and command.changed_since is None:
        return await _numbers_to_uids(session, command)
    rows, limited = _rows(session, command)
    box.view.note_fetch(rows.uids)
    items = await _set_seen(session, box, rows, command) if command.sets_seen and not box.read_only else command.items
    if session.dialect.uid_only and len(items) > 1:
        # RFC 9586 3.3: the response begins with the UID
        items = tuple(item for item in items if item is not Attribute.UID)
    responses = session.reader.fetch(box.folder, rows, items, session.dialect, box.view)
    at_once = responses.at_once()
    if at_once is not None:
        session.send(at_once)
        return _response(rows, items, responses, limited)
    session.in_response = True
    try:
        async for chunk in responses.chunks():
            session.send(chunk)
            await session.connection.drain()
    except Exception as error:
        # Inside a literal no response is possible: the client would take it for content.
        session.report_error(error)
        session.connection.abort()
        return no("Fetch failed", codes.SERVERBUG)
    session.in_response = False
    response = _response(rows, items, responses, limited)
    if responses.failed and not responses.undecodable and await responses.failed_exist():
        # RFC 5530 3
        code = codes.CORRUPTION if responses.is_corrupt else codes.UNAVAILABLE
        return response._replace(text="Some messages are unreadable", code=code, status=b"NO")
    return response


# RFC 2180 4.1.2: the UID of an expunged message may be reported as long as its number is valid
async def _numbers_to_uids(session: Session, command: model.Fetch) -> TaggedResponse:
    """Handle a FETCH of UIDs alone: the view has them even for messages that another session has expunged."""
    rows = session.mailbox.view.by_number(command.messages, with_expunged=True)
    if command.partial is not None:
        rows = restrict(rows, partial_window(rows.uids, command.partial))
    rows, limited = apply_limit(session, rows)
    session.mailbox.view.note_fetch(rows.uids)
    for start in range(0, len(rows.uids), _UIDS_PER_CHUNK):
        part = slice(start, start + _UIDS_PER_CHUNK)
        session.send(fetch_response.fetch_rows(_UID_ROW, rows.numbers[part], [rows.uids[part]]))
        await session.connection.drain()
    return TaggedResponse("Fetch completed", limited=limited)


def _rows(session: Session, command: model.Fetch) -> tuple[Rows, bytes]:
    """Return the messages to send, and the code that names the limit if it cut them off."""
    box = session.mailbox
    rows = box.rows(command.messages, uid=command.uid)
    if command.partial is not None:
        # RFC 9394 3.4: the page is one of all messages named, not of the changed ones
        rows = restrict(rows, partial_window(rows.uids, command.partial))
    if command.changed_since is not None:
        # RFC 7162 3.1.4.1
        rows = restrict(rows, box.folder.changed_since(command.changed_since))
    return apply_limit(session, rows)


def restrict(rows: Rows, uids: Sequence[int]) -> Rows:
    """Return the rows with these UIDs."""
    if len(uids) == len(rows.uids) and list(uids) == list(rows.uids):
        return rows
    chosen = set(uids)
    kept = [(number, uid) for number, uid in zip(rows.numbers, rows.uids, strict=True) if uid in chosen]
    return Rows([number for number, _ in kept], [uid for _, uid in kept], rows.has_expunged)


# RFC 9738 3.1: the highest messages are processed, and the code names the lowest of them
def apply_limit(session: Session, rows: Rows) -> tuple[Rows, bytes]:
    limit = session.server.settings.imap.message_limit
    if not limit or len(rows.uids) <= limit:
        return rows, b""
    kept = Rows(rows.numbers[-limit:], rows.uids[-limit:], rows.has_expunged)
    return kept, codes.messagelimit(limit, kept.uids[0])


# RFC 3501 6.4.5: BODY[…] and BINARY[…] set \Seen, and the flags are sent along
async def _set_seen(session: Session, box: SelectedMailbox, rows: Rows, command: model.Fetch) -> tuple[FetchItem, ...]:
    unseen = [uid for uid, mask in zip(rows.uids, box.folder.masks(rows.uids), strict=True) if not mask & SEEN]
    if not unseen:
        return command.items
    await session.writer.change_flags(box.folder.id, unseen, "add", Flag.READ)
    # Their flags are in the responses. A later change is announced after them.
    box.view.mark_fetched_flags(unseen)
    added = [Attribute.FLAGS, Attribute.MODSEQ] if session.dialect.condstore else [Attribute.FLAGS]
    content = (BodyPart, BinaryPart, BinarySize)
    # Flags before content, for clients that read only what precedes the first literal.
    first = [item for item in command.items if not isinstance(item, content)]
    last = [item for item in command.items if isinstance(item, content)]
    return (*first, *[item for item in added if item not in first], *last)


def _response(rows: Rows, items: Sequence[FetchItem], responses: FetchResponses, limited: bytes) -> TaggedResponse:
    modseq_sent = Attribute.MODSEQ in items
    if responses.undecodable:
        # RFC 3516 4.3
        return TaggedResponse(
            "Some parts have an unknown encoding", codes.UNKNOWN_CTE, b"NO", modseq_sent, limited=limited
        )
    if rows.has_expunged or responses.failed:
        # RFC 2180 4.1, RFC 5530 3
        text = "Fetch completed; some messages no longer exist"
        return TaggedResponse(text, codes.EXPUNGEISSUED, modseq_sent=modseq_sent, limited=limited)
    return TaggedResponse("Fetch completed", modseq_sent=modseq_sent, limited=limited)
