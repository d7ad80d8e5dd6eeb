"""The one error that crosses layers.

A :class:`MailError` carries a :class:`Reason`; the reason alone decides the reply (SMTP code and enhanced code, IMAP
response code) and whether the error is temporary. The public text is deliberately generic: details (a path, an SQL
error) go to the log, never to the peer.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """The reason of a failed operation: (SMTP code, enhanced code, IMAP response code, public text)."""

    # Temporary: the same request may succeed later.
    UNKNOWN = (451, "4.3.0", "SERVERBUG", "Temporary internal error, try again later")
    LOCK_TIMEOUT = (451, "4.3.2", "INUSE", "Mailbox is busy, try again later")
    DISK_FULL = (452, "4.3.1", "UNAVAILABLE", "Insufficient storage, try again later")
    UNREADABLE = (451, "4.3.0", "UNAVAILABLE", "Message content cannot be read now, try again later")
    MAINTENANCE = (421, "4.3.2", "UNAVAILABLE", "System is down for maintenance, try again later")
    OVER_QUOTA_SOFT = (452, "4.2.2", "OVERQUOTA", "Mailbox is full, try again later")
    # Permanent: the same request will fail again.
    OVER_QUOTA = (552, "5.2.2", "OVERQUOTA", "Mailbox is full")
    TOO_BIG = (552, "5.3.4", "TOOBIG", "Message is too big")
    NO_SUCH_ADDRESS = (550, "5.1.1", "NONEXISTENT", "No such mailbox here")
    INACTIVE_ADDRESS = (550, "5.2.1", "NONEXISTENT", "Mailbox is deactivated")
    BAD_ADDRESS = (553, "5.1.3", "CANNOT", "Bad mailbox address")
    ADDRESS_EXISTS = (550, "5.1.0", "ALREADYEXISTS", "Address is already registered")
    NO_SUCH_FOLDER = (550, "5.1.1", "NONEXISTENT", "No such folder")
    FOLDER_EXISTS = (550, "5.1.0", "ALREADYEXISTS", "Folder already exists")
    BAD_FOLDER_NAME = (550, "5.1.3", "CANNOT", "Folder name is not allowed")
    NOT_ALLOWED = (550, "5.7.1", "CANNOT", "Not allowed")
    NO_SUCH_MESSAGE = (550, "5.1.1", "NONEXISTENT", "No such message")
    BAD_CONTENT = (554, "5.6.0", "CANNOT", "Message content is not acceptable")
    LIMIT = (552, "5.3.4", "LIMIT", "Limit exceeded")

    def __init__(self, smtp: int, enhanced: str, imap: str, public: str) -> None:
        self.smtp = smtp
        self.enhanced = enhanced
        self.imap = imap
        self.public = public

    @property
    def temporary(self) -> bool:
        return self.enhanced.startswith("4")


class MailError(Exception):
    """An operation failed for a known :class:`Reason`; ``detail`` is for logs and the operator only."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail or reason.public)
        self.reason = reason
        self.detail = detail

    @property
    def temporary(self) -> bool:
        return self.reason.temporary

    @property
    def public(self) -> str:
        return self.reason.public


class ProtocolError(Exception):
    """The peer broke a protocol's rules; the message is safe to send back."""
