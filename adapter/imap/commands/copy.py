"""Commands that copy and remove messages: COPY, MOVE, EXPUNGE; each is one commit, whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from adapter.imap.commands.fetch import limit
from adapter.imap.commands.store import READ_ONLY
from adapter.imap.handlers import TaggedResponse, handles, no
from adapter.transport import operations as op
from protocol.imap.commands import model
from protocol.imap.responses import codes, status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapter.imap.session import Session

# RFC 2180 4.4.1: all or nothing, and some are not there. A UID that does not exist is ignored (RFC 3501 6.4.8).
_GONE: Final = no("Some messages are gone", codes.EXPUNGEISSUED)


# RFC 3501 6.4.7, RFC 4315 3; RFC 9738 3.1: all or none of them
@handles(model.Copy)
async def copy(session: Session, command: model.Copy) -> TaggedResponse:
    rows = session.mailbox.rows(command.messages, uid=command.uid)
    if rows.has_expunged and not command.uid:
        return _GONE
    rows, limited = limit(session, rows)
    if limited:
        return no("Too many messages in one command", limited)
    if not rows.uids:
        return TaggedResponse("No messages to copy")
    quota = session.server.quotas.of(session.account)
    copied = await session.mailboxes.commit(
        op.Copy(session.account, session.mailbox.state.id, rows.uids, command.mailbox, quota if quota.limited else None)
    )
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
    rows, limited = limit(session, rows)
    if not rows.uids:
        return TaggedResponse("No messages to move")
    moved = await session.mailboxes.commit(op.Move(session.account, box.state.id, rows.uids, command.mailbox))
    if not moved.uids:
        return TaggedResponse("No message is left to move")
    session.send(status.ok(None, "Moved", _copyuid(moved)))
    return TaggedResponse("Move completed", highest(session), limited=limited)


def _copyuid(copied: op.Copied) -> bytes:
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
        rows, limited = limit(session, box.view.by_uid(command.uids))
        uids = rows.uids
    done = await session.mailboxes.commit(op.Expunge(session.account, box.state.id, uids))
    return TaggedResponse("Expunge completed", highest(session) if done.uids else b"", limited=limited)


# RFC 7162 3.2.7, 3.2.9; RFC 6851 4.4
def highest(session: Session) -> bytes:
    """What a client that resynchronises learns when it has removed messages: the answer tells all up to there."""
    return codes.highestmodseq(session.mailbox.state.modseq) if session.dialect.qresync else b""
