"""What submission asks of a message and does to it (RFC 6409): whose it is, and that it is complete.

Invariants: nobody speaks under an address that is not theirs, in the envelope, in From, in Sender or when resending;
fields the sender wrote keep their octets, but Bcc and Return-Path leave.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from datetime import datetime

from adapter.accounts.recipients import Recipients
from adapter.smtp.message import EditHeader
from protocol.idna import to_ascii
from protocol.smtp import replies, trace
from protocol.smtp.paths import Path
from protocol.smtp.replies import SmtpError


def check_sender(recipients: Recipients, account: str, path: Path) -> None:
    """RFC 6409 6.1. The null sender is for notes about mail, which clients send as well (RFC 8098 section 3)."""
    if path.local and not recipients.owns(account, path.address):
        raise SmtpError(replies.SENDER_DENIED)


def header_editor(recipients: Recipients, account: str, now: datetime) -> EditHeader:
    """RFC 6409 section 8: From and Sender must be the account's; Date and Message-ID are added; Bcc is removed."""

    def edit(header: bytes) -> bytes:
        authors = trace.authors(header)
        if authors is None or not all(recipients.owns(account, author) for author in authors):
            raise SmtpError(replies.FROM_DENIED)
        message_id = f"<{secrets.token_hex(16)}@{_right_side(account)}>"
        return trace.complete(trace.without_private_fields(header), date=now, message_id=message_id)

    return edit


def _right_side(account: str) -> str:
    domain = account.rpartition("@")[2].strip("[]")
    # A domain that is not ASCII would make the header international, which the client did not ask for.
    with suppress(UnicodeError):
        return to_ascii(domain)
    return domain
