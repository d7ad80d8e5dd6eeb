"""Submission rules (RFC 6409): check the sender's addresses and complete the header.

Invariants: an account sends only under its own addresses, in the envelope, in From, in Sender and when resending; the
sender's fields keep their octets, but Bcc and Return-Path are removed.
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
    """RFC 6409 6.1. The null sender is allowed: clients use it for disposition notifications (RFC 8098 section 3)."""
    if path.local and not recipients.owns(account, path.address):
        raise SmtpError(replies.SENDER_DENIED)


def header_editor(recipients: Recipients, account: str, now: datetime) -> EditHeader:
    """RFC 6409 section 8: check From and Sender, add Date and Message-ID, remove Bcc."""

    def edit(header: bytes) -> bytes:
        authors = trace.authors(header)
        if authors is None or not all(recipients.owns(account, author) for author in authors):
            raise SmtpError(replies.FROM_DENIED)
        message_id = f"<{secrets.token_hex(16)}@{_message_id_domain(account)}>"
        return trace.add_missing_fields(trace.without_private_fields(header), date=now, message_id=message_id)

    return edit


def _message_id_domain(account: str) -> str:
    domain = account.rpartition("@")[2].strip("[]")
    # A non-ASCII domain would make the header international without SMTPUTF8.
    with suppress(UnicodeError):
        return to_ascii(domain)
    return domain
