"""Parsers of commands on mailboxes by name: CREATE, DELETE, RENAME, SUBSCRIBE, STATUS, and quotas."""

from __future__ import annotations

import re

from protocol.imap.commands.model import (
    Create,
    Delete,
    GetQuota,
    GetQuotaRoot,
    Rename,
    SetQuota,
    Status,
    StatusItem,
    Subscribe,
    Unsubscribe,
)
from protocol.imap.wire.lexer import CommandError, Lexer

_USE = re.compile(rb"\\[A-Za-z]+")


# RFC 3501 6.3.3 create = "CREATE" SP mailbox; RFC 6154 6 [SP "(" "USE" SP "(" [use-attr *(SP use-attr)] ")" ")"]
def parse_create(lexer: Lexer) -> Create:
    lexer.space()
    # A trailing delimiter announces child mailboxes, which needs no preparation here (RFC 3501 6.3.3).
    mailbox = lexer.mailbox().removesuffix("/")
    if not mailbox:
        raise CommandError("Mailbox name is empty")
    use: list[str] = []

    def parameter() -> None:
        if not lexer.skip_keyword(b"USE"):
            raise CommandError("Unknown CREATE parameter")
        lexer.space()
        use.extend(lexer.parenthesised(lambda: use_attribute(lexer), empty=True))

    if not lexer.at_end:
        lexer.space()
        lexer.parenthesised(parameter)
    return Create(mailbox, tuple(dict.fromkeys(use)))


# RFC 6154 6 use-attr
def use_attribute(lexer: Lexer) -> str:
    return lexer.match(_USE, "a special use")[0].decode("ascii").lower()


# RFC 3501 6.3.4 delete = "DELETE" SP mailbox
def parse_delete(lexer: Lexer) -> Delete:
    lexer.space()
    return Delete(lexer.mailbox())


# RFC 3501 6.3.5 rename = "RENAME" SP mailbox SP mailbox
def parse_rename(lexer: Lexer) -> Rename:
    lexer.space()
    mailbox = lexer.mailbox()
    lexer.space()
    return Rename(mailbox, lexer.mailbox())


# RFC 3501 6.3.6 subscribe = "SUBSCRIBE" SP mailbox
def parse_subscribe(lexer: Lexer) -> Subscribe:
    lexer.space()
    return Subscribe(lexer.mailbox())


# RFC 3501 6.3.7 unsubscribe = "UNSUBSCRIBE" SP mailbox
def parse_unsubscribe(lexer: Lexer) -> Unsubscribe:
    lexer.space()
    return Unsubscribe(lexer.mailbox())


# RFC 3501 6.3.10 status = "STATUS" SP mailbox SP "(" status-att *(SP status-att) ")"
def parse_status(lexer: Lexer) -> Status:
    lexer.space()
    mailbox = lexer.mailbox()
    lexer.space()
    return Status(mailbox, status_items(lexer))


# RFC 3501 9 status-att; RFC 9051 9, RFC 7162 7, RFC 8474 7, RFC 7889 5, RFC 9208 7
def status_items(lexer: Lexer) -> tuple[StatusItem, ...]:
    def item() -> StatusItem:
        try:
            return StatusItem(lexer.keyword("a status item"))
        except ValueError:
            raise CommandError("Unknown STATUS item") from None

    return tuple(dict.fromkeys(lexer.parenthesised(item)))


# RFC 9208 7 getquota = "GETQUOTA" SP quota-root-name
def parse_getquota(lexer: Lexer) -> GetQuota:
    lexer.space()
    return GetQuota(lexer.text(lexer.astring("a quota root")))


# RFC 9208 7 getquotaroot = "GETQUOTAROOT" SP mailbox
def parse_getquotaroot(lexer: Lexer) -> GetQuotaRoot:
    lexer.space()
    return GetQuotaRoot(lexer.mailbox())


# RFC 9208 7 setquota = "SETQUOTA" SP quota-root-name SP setquota-list
def parse_setquota(lexer: Lexer) -> SetQuota:
    lexer.space()
    root = lexer.text(lexer.astring("a quota root"))
    lexer.space()

    def limit() -> tuple[str, int]:
        resource = lexer.keyword("a resource")
        lexer.space()
        return resource, lexer.number64()

    return SetQuota(root, tuple(lexer.parenthesised(limit, empty=True)))
