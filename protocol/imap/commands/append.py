"""Parser of APPEND (RFC 3501 6.3.11), MULTIAPPEND (RFC 3502), UTF8 (RFC 6855 4) and REPLACE (RFC 8508).

The messages are streamed, so these commands are parsed while they are received: :meth:`AppendParser.message` parses the
arguments before a message when its literal is announced, before any of its octets are accepted;
:meth:`AppendParser.finish` parses the rest when the command is complete.
"""

from __future__ import annotations

from typing import Final

from protocol.imap.commands.model import Append, AppendMessage, Replace
from protocol.imap.sequence_set import STAR
from protocol.imap.wire.events import CommandLine, LiteralStart
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect, Lexer

_REPLACE: Final = {"REPLACE": False, "UID REPLACE": True}


class AppendParser:
    """The state of one APPEND or REPLACE. ``mailbox`` is set once :meth:`message` has returned."""

    def __init__(self, name: str, dialect: Dialect = PLAIN) -> None:
        self.mailbox = ""
        self.messages: list[AppendMessage] = []
        self._name = name
        self._dialect = dialect
        self._number = STAR

    @property
    def replaces(self) -> tuple[int, bool] | None:
        """The number of the message to replace, and whether it is a UID; None for APPEND."""
        return (self._number, _REPLACE[self._name]) if self._name in _REPLACE else None

    def message(self, start: LiteralStart) -> AppendMessage:
        """Parse the arguments of an announced message. Raises CommandError, with which to refuse the literal."""
        lexer = Lexer(start.pieces, self._dialect)
        if not self.messages:
            self._destination(lexer)
        elif self._name in _REPLACE:
            raise CommandError("REPLACE takes one message")
        else:
            self._close_utf8(lexer)
        lexer.space()
        message = _append_data(lexer, start)
        self.messages.append(message)
        return message

    def finish(self, line: CommandLine) -> Append | Replace:
        """Parse the rest of the command, when all its messages are received. Raises CommandError."""
        lexer = Lexer(line.pieces, self._dialect)
        if not self.messages:
            raise CommandError("Expected a message literal")
        self._close_utf8(lexer)
        lexer.end()
        if self._name in _REPLACE:
            return Replace(_REPLACE[self._name], self._number, self.mailbox, self.messages[0])
        return Append(self.mailbox, tuple(self.messages))

    # RFC 3501 6.3.11 "APPEND" SP mailbox; RFC 8508 5 "REPLACE" SP seq-number SP mailbox
    def _destination(self, lexer: Lexer) -> None:
        lexer.space()
        if self._name in _REPLACE:
            self._number = STAR if lexer.skip(b"*") else lexer.nz_number()
            lexer.space()
        self.mailbox = lexer.mailbox()

    def _close_utf8(self, lexer: Lexer) -> None:
        if self.messages[-1].utf8:
            lexer.expect(b")")


# RFC 3502 7 append-message = append-opts SP append-data; RFC 6855 4 "UTF8" SP "(" literal8 ")"
def _append_data(lexer: Lexer, start: LiteralStart) -> AppendMessage:
    flags: tuple[str, ...] = ()
    date = None
    if lexer.next_is(b"("):
        flags = lexer.flag_list()
        lexer.space()
    if lexer.next_is(b'"'):
        date = lexer.date_time()
        lexer.space()
    utf8 = lexer.skip_keyword(b"UTF8")
    if utf8:
        lexer.space()
        lexer.expect(b"(")
        if not start.binary:
            raise CommandError("Expected a binary literal")
    if not lexer.at_end:
        raise CommandError("Expected flags, a date or a message literal")
    return AppendMessage(start.size, flags, date, start.binary, utf8)
