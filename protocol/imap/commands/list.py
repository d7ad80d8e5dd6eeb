"""Parsers of LIST with its extensions (RFC 5258, RFC 5819, RFC 6154) and of LSUB."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.imap.commands.mailbox import status_items
from protocol.imap.commands.model import List, ListReturn, ListSelect, Lsub, StatusItem
from protocol.imap.wire.lexer import CommandError, Lexer


# RFC 5258 6 list = "LIST" [SP list-select-opts] SP mailbox SP mbox-or-pat [SP list-return-opts]
def parse_list(lexer: Lexer) -> List:
    lexer.space()
    extended = lexer.next_is(b"(")
    select: frozenset[ListSelect] = frozenset()
    if extended:
        select = _select_options(lexer)
        lexer.space()
    reference = lexer.list_reference()
    lexer.space()
    sent: Sequence[str | None]
    if lexer.next_is(b"("):
        extended = True
        sent = lexer.parenthesised(lexer.list_mailbox)
    else:
        sent = (lexer.list_mailbox(),)
    # A pattern that is not a valid name matches nothing (RFC 3501 6.3.8).
    patterns = tuple(pattern for pattern in sent if pattern is not None) if reference is not None else ()
    reference = reference or ""
    if lexer.at_end:
        return List(reference, patterns, select, extended=extended)
    lexer.space()
    if not lexer.skip_keyword(b"RETURN"):
        raise CommandError("Expected RETURN")
    lexer.space()
    returns, status = _return_options(lexer)
    return List(reference, patterns, select, returns, status, extended=True)


# RFC 5258 6 list-select-opts; RFC 6154 6
def _select_options(lexer: Lexer) -> frozenset[ListSelect]:
    def option() -> ListSelect:
        try:
            return ListSelect(lexer.keyword("a selection option"))
        except ValueError:
            raise CommandError("Unknown LIST selection option") from None

    options = frozenset(lexer.parenthesised(option, empty=True))
    # RFC 5258 3.1: RECURSIVEMATCH needs an option that it can modify, which REMOTE is not.
    if ListSelect.RECURSIVEMATCH in options and not options - {ListSelect.RECURSIVEMATCH, ListSelect.REMOTE}:
        raise CommandError("RECURSIVEMATCH needs another selection option")
    return options


# RFC 5258 6 list-return-opts; RFC 5819 4; RFC 6154 6
def _return_options(lexer: Lexer) -> tuple[frozenset[ListReturn], tuple[StatusItem, ...]]:
    returns: set[ListReturn] = set()
    status: list[StatusItem] = []

    def option() -> None:
        name = lexer.keyword("a return option")
        if name == "STATUS":
            lexer.space()
            status.extend(status_items(lexer))
            return
        try:
            returns.add(ListReturn(name))
        except ValueError:
            raise CommandError("Unknown LIST return option") from None

    lexer.parenthesised(option, empty=True)
    return frozenset(returns), tuple(dict.fromkeys(status))


# RFC 3501 6.3.9 lsub = "LSUB" SP mailbox SP list-mailbox
def parse_lsub(lexer: Lexer) -> Lsub:
    lexer.space()
    reference = lexer.list_reference()
    lexer.space()
    pattern = lexer.list_mailbox()
    if reference is None or pattern is None:
        return Lsub("", None)
    return Lsub(reference, pattern)
