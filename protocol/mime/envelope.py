"""The values of IMAP's ENVELOPE (RFC 3501 and RFC 9051, sections 7.4.2 and 7.5.2), raw as they are served."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from protocol.mime.addresses import Address, parse_addresses

if TYPE_CHECKING:
    from protocol.mime.headers import HeaderBlock


class Envelope(NamedTuple):
    """None is a field that is absent, ``b""`` one that is present but empty; absent addresses are ``[]``."""

    date: bytes | None
    subject: bytes | None
    from_: list[Address]
    sender: list[Address]
    reply_to: list[Address]
    to: list[Address]
    cc: list[Address]
    bcc: list[Address]
    in_reply_to: bytes | None
    message_id: bytes | None


EMPTY_ENVELOPE = Envelope(None, None, [], [], [], [], [], [], None, None)


def envelope(headers: HeaderBlock) -> Envelope:
    """The envelope of a message; Sender and Reply-To that are absent or empty are those of From."""
    first = headers.first
    from_ = _addresses(first("from"))
    return Envelope(
        first("date"),
        first("subject"),
        from_,
        _addresses(first("sender")) or from_,
        _addresses(first("reply-to")) or from_,
        _addresses(first("to")),
        _addresses(first("cc")),
        _addresses(first("bcc")),
        first("in-reply-to"),
        first("message-id"),
    )


def _addresses(raw: bytes | None) -> list[Address]:
    return parse_addresses(raw) if raw else []
