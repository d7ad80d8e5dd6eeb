"""Parsers of commands on messages of the selected mailbox: STORE, COPY, MOVE, UID EXPUNGE."""

from __future__ import annotations

import re

from protocol.imap.commands.model import Copy, Expunge, Move, Store, StoreMode
from protocol.imap.sequence_set import SequenceSet
from protocol.imap.wire.lexer import CommandError, Lexer, settable

_STORE_ITEM = re.compile(rb"([+-]?FLAGS)(\.SILENT)?(?= )", re.IGNORECASE)


# RFC 3501 6.4.6 store = "STORE" SP sequence-set SP store-att-flags; RFC 7162 7 store-modifier
def parse_store(lexer: Lexer, *, uid: bool) -> Store:
    messages = lexer.sequence_set(spaced=True)
    unchanged_since: int | None = None

    def modifier() -> None:
        nonlocal unchanged_since
        if unchanged_since is not None or not lexer.skip_keyword(b"UNCHANGEDSINCE"):
            raise CommandError("Unknown or repeated STORE modifier")
        lexer.space()
        unchanged_since = lexer.modseq()

    if lexer.next_is(b"("):
        lexer.parenthesised(modifier)
        lexer.space()
    item = lexer.match(_STORE_ITEM, "FLAGS, +FLAGS or -FLAGS")
    lexer.space()
    return Store(
        uid,
        messages,
        StoreMode(item[1].upper().decode("ascii")),
        _flags(lexer),
        silent=item[2] is not None,
        unchanged_since=unchanged_since,
    )


# RFC 3501 9 flag-list / (flag *(SP flag))
def _flags(lexer: Lexer) -> tuple[str, ...]:
    if lexer.next_is(b"("):
        return lexer.flag_list()
    flags = [lexer.flag()]
    while not lexer.at_end:
        lexer.space()
        flags.append(lexer.flag())
    return settable(flags)


# RFC 3501 6.4.7 copy = "COPY" SP sequence-set SP mailbox
def parse_copy(lexer: Lexer, *, uid: bool) -> Copy:
    return Copy(uid, *_messages_and_mailbox(lexer))


# RFC 6851 5 move = "MOVE" SP sequence-set SP mailbox
def parse_move(lexer: Lexer, *, uid: bool) -> Move:
    return Move(uid, *_messages_and_mailbox(lexer))


def _messages_and_mailbox(lexer: Lexer) -> tuple[SequenceSet, str]:
    messages = lexer.sequence_set(spaced=True)
    return messages, lexer.mailbox()


# RFC 4315 2.1 uid-expunge = "UID" SP "EXPUNGE" SP sequence-set
def parse_uid_expunge(lexer: Lexer) -> Expunge:
    lexer.space()
    return Expunge(lexer.sequence_set())
