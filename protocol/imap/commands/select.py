"""Parser of SELECT and EXAMINE with the parameters of CONDSTORE and QRESYNC (RFC 7162)."""

from __future__ import annotations

from protocol.imap.commands.model import QResync, Select, SeqMatch
from protocol.imap.sequence_set import STAR, SequenceSet
from protocol.imap.wire.lexer import CommandError, Lexer


# RFC 3501 6.3.1 select = "SELECT" SP mailbox; RFC 4466 2.4 [SP "(" select-param *(SP select-param) ")"]
def parse_select(lexer: Lexer, *, read_only: bool) -> Select:
    lexer.space()
    mailbox = lexer.mailbox()
    condstore = False
    qresync: QResync | None = None

    # RFC 7162 7 select-param
    def parameter() -> None:
        nonlocal condstore, qresync
        name = lexer.keyword("a SELECT parameter")
        if name == "CONDSTORE":
            condstore = True
        elif name == "QRESYNC" and qresync is None:
            lexer.space()
            qresync = _qresync(lexer)
        else:
            raise CommandError("Unknown or repeated SELECT parameter")

    if not lexer.at_end:
        lexer.space()
        lexer.parenthesised(parameter)
    return Select(mailbox, read_only, condstore, qresync)


# RFC 7162 7 select-param =/ "QRESYNC" SP "(" uidvalidity SP mod-sequence-value [SP known-uids] [SP seq-match-data] ")"
def _qresync(lexer: Lexer) -> QResync:
    if not lexer.dialect.qresync:
        raise CommandError("QRESYNC is not enabled")
    lexer.expect(b"(")
    uid_validity = lexer.nz_number()
    lexer.space()
    modseq = lexer.modseq()
    known_uids: SequenceSet | None = None
    seq_match: SeqMatch | None = None
    while not lexer.skip(b")"):
        lexer.space()
        if lexer.next_is(b"(") and seq_match is None:
            seq_match = _seq_match(lexer)
        elif not lexer.next_is(b")"):
            if known_uids is not None or seq_match is not None:
                raise CommandError("Unexpected QRESYNC parameter")
            known_uids = _known_set(lexer)
    return QResync(uid_validity, modseq, known_uids, seq_match)


# RFC 7162 7 seq-match-data
def _seq_match(lexer: Lexer) -> SeqMatch:
    if lexer.dialect.uid_only:
        raise CommandError("Message numbers cannot be used", code="UIDREQUIRED")
    lexer.expect(b"(")
    numbers = _known_set(lexer)
    lexer.space()
    uids = _known_set(lexer)
    lexer.expect(b")")
    return SeqMatch(numbers, uids)


# RFC 7162 7 known-uids, known-sequence-set, known-uid-set: "*" is not allowed
def _known_set(lexer: Lexer) -> SequenceSet:
    uids = lexer.sequence_set()
    if uids.saved or any(STAR in ends for ends in uids.ranges):
        raise CommandError("Neither * nor $ can be used here")
    return uids
