"""COPY, MOVE and EXPUNGE. Each is one commit: it applies to all its messages or to none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from adapter.imap.commands.fetch import apply_limit
from adapter.imap.commands.store import READ_ONLY
from adapter.imap.handlers import TaggedResponse, handles, no
from adapter.read_model.interface import Copied
from protocol.imap.commands import model
from protocol.imap.responses import codes, status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapter.imap.session import Session

# RFC 2180 4.4.1: the command applies to all messages or none. A missing UID is ignored (RFC 3501 6.4.8).
_GONE: Final = no("Some messages no longer exist", codes.EXPUNGEISSUED)


# RFC 3501 6.4.7, RFC 4315 3; RFC 9738 3.1: all or none of them
@handles(model.Copy)
async def copy(session: Session, command: model.Copy) -> TaggedResponse:
    rows = session.mailbox.rows(command.messages, uid=command.uid)
    if rows.has_expunged and not command.uid:
        return _GONE
    rows, limited = apply_limit(session, rows)
    if limited:
        return no("Too many messages in one command", limited)
    if not rows.uids:
        return TaggedResponse("No messages to copy")
    copied = await session.writer.copy(session.mailbox.folder.id, rows.uids, command.mailbox)
    return TaggedResponse("Copy completed", _copyuid(copied))


# RFC 6851 3, 4.3: COPYUID comes first, in an untagged response, then the expunges
@handles(model.Move)
async def move(session: Session, command: model.Move) -> TaggedResponse:
    box = session.mailbox
    if box.read_only:
        return READ_ONLY
    rows = box.rows(command.messages, uid=command.uid)
    if rows.has_expunged and not command.uid:
        return _GONE
    rows, limited = apply_limit(session, rows)
    if not rows.uids:
        return TaggedResponse("No messages to move")
    moved = await session.writer.move(box.folder.id, rows.uids, command.mailbox)
    if not moved.uids:
        return TaggedResponse("No messages to move")
    session.send(status.ok(None, "Moved", _copyuid(moved)))
    return TaggedResponse("Move completed", highest_modseq(session), limited=limited)


def _copyuid(copied: Copied) -> bytes:
    if not copied.uids:
        return b""
    source, destination = zip(*copied.uids, strict=True)
    return codes.copyuid(copied.uidvalidity, source, destination)


# RFC 3501 6.4.3; RFC 4315 2.1
@handles(model.Expunge)
async def expunge(session: Session, command: model.Expunge) -> TaggedResponse:
    box = session.mailbox
    if box.read_only:
        return READ_ONLY
    uids: Sequence[int] | None = None
    limited = b""
    if command.uids is not None:
        rows, limited = apply_limit(session, box.view.by_uid(command.uids))
        uids = rows.uids
    expunged = await session.writer.expunge(box.folder.id, uids)
    return TaggedResponse("Expunge completed", highest_modseq(session) if expunged.uids else b"", limited=limited)


# RFC 7162 3.2.7, 3.2.9; RFC 6851 4.4
def highest_modseq(session: Session) -> bytes:
    """Return HIGHESTMODSEQ for clients that resynchronise: the response announces every change up to there."""
    return codes.highestmodseq(session.mailbox.folder.modseq) if session.dialect.qresync else b""
