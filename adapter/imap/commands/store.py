"""STORE (RFC 3501 6.4.6, RFC 7162 3.1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from adapter.imap.commands.fetch import apply_limit
from adapter.imap.handlers import TaggedResponse, handles, no
from adapter.read_model.interface import Flag, FlagChange
from protocol.errors import MailError, Reason
from protocol.imap.commands import model
from protocol.imap.commands.model import StoreMode
from protocol.imap.flags import KEYWORD_LIMIT, SYSTEM_FLAGS, FlagTable
from protocol.imap.responses import codes

if TYPE_CHECKING:
    from adapter.config.schema import ImapSettings
    from adapter.imap.session import Session

_CHANGES: Final[dict[StoreMode, FlagChange]] = {
    StoreMode.ADD: "add",
    StoreMode.REMOVE: "remove",
    StoreMode.REPLACE: "set",
}
_SYSTEM: Final = {
    "\\Seen": Flag.READ,
    "\\Answered": Flag.ANSWERED,
    "\\Flagged": Flag.STARRED,
    "\\Deleted": Flag.DELETED,
    "\\Draft": Flag.DRAFT,
}
READ_ONLY: Final = no("Mailbox is selected read-only", codes.READ_ONLY)


def split_flags(flags: Sequence[str], settings: ImapSettings) -> tuple[int, list[str]]:
    """Split flags into the flags of the store and keywords. Raises ``LIMIT``."""
    keywords = [flag for flag in flags if not flag.startswith("\\")]
    if len(keywords) > settings.keywords or any(len(keyword) > settings.keyword_length for keyword in keywords):
        raise MailError(Reason.LIMIT, "keywords")
    system = 0
    for flag in flags:
        system |= _SYSTEM.get(flag, 0)
    return int(system), keywords


def check_keywords(table: FlagTable, keywords: Sequence[str]) -> None:
    """Raise ``LIMIT`` if these keywords exceed what the folder may have."""
    new = {keyword.lower() for keyword in keywords if not table.bit(keyword)}
    if new and len(table) - len(SYSTEM_FLAGS) + len(new) > KEYWORD_LIMIT:
        raise MailError(Reason.LIMIT, "keywords of the folder")


# RFC 3501 6.4.6; RFC 7162 3.1.3
@handles(model.Store)
async def store(session: Session, command: model.Store) -> TaggedResponse:
    box = session.mailbox
    if box.read_only:
        return READ_ONLY
    flags, keywords = split_flags(command.flags, session.server.settings.imap)
    if command.mode is not StoreMode.REMOVE:
        check_keywords(box.folder.flags, keywords)
    rows, limited = apply_limit(session, box.rows(command.messages, uid=command.uid))
    modified: list[int] = []
    gone = rows.has_expunged
    if rows.uids:
        change = session.writer.change_flags(
            box.folder.id, rows.uids, _CHANGES[command.mode], flags, keywords, command.unchanged_since
        )
        if command.silent:
            result = await box.commit_silently(change, lambda result: result.modseq if result.changed else None)
        else:
            result = await change
            refused = set(result.modified)
            box.touch(uid for uid in rows.uids if uid not in refused)
        modified = result.modified
        existing = {uid for uid, _, _ in (*result.changed, *result.unchanged)}.union(modified)
        gone = gone or box.view.has_expunged(rows.uids) or not existing.issuperset(rows.uids)
    if modified:
        # RFC 7162 3.1.3
        named = modified if command.uid else box.view.numbers(modified)
        return TaggedResponse("Some messages were changed by another session", codes.modified(named), limited=limited)
    if gone and not command.silent:
        # RFC 2180 4.2.1, RFC 5530 3: the client expects the flags of each message it named. A UID that does not
        # exist is ignored (RFC 3501 6.4.8), and the expunge is in the same response.
        status = b"OK" if command.uid else b"NO"
        return TaggedResponse(
            "Some messages no longer exist; the others were changed", codes.EXPUNGEISSUED, status, limited=limited
        )
    return TaggedResponse("Store completed", limited=limited)
