"""The table of commands: for each its name, its value, its parser, the states it is allowed in, and what its response
may announce.

A row here declares a command. Its value is in :mod:`protocol.imap.commands.model`; its handler in the adapter is
bound to the value, and a value without a handler fails at import. APPEND and REPLACE take their messages from the
stream (``wire.framer.MESSAGE_COMMANDS``) and are read by :class:`protocol.imap.commands.append.AppendParser`; the
parser in their rows only refuses a command that had no message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from protocol.imap.commands import model
from protocol.imap.commands.auth import parse_authenticate, parse_compress, parse_enable, parse_id, parse_login
from protocol.imap.commands.fetch import parse_fetch
from protocol.imap.commands.list import parse_list, parse_lsub
from protocol.imap.commands.mailbox import (
    parse_create,
    parse_delete,
    parse_getquota,
    parse_getquotaroot,
    parse_rename,
    parse_setquota,
    parse_status,
    parse_subscribe,
    parse_unsubscribe,
)
from protocol.imap.commands.model import Command
from protocol.imap.commands.search import parse_search, parse_sort, parse_thread
from protocol.imap.commands.select import parse_select
from protocol.imap.commands.store import parse_copy, parse_move, parse_store, parse_uid_expunge
from protocol.imap.states import ANY, AUTHENTICATED, NOT_AUTHENTICATED, SELECTED, State, StateMachine
from protocol.imap.wire.events import CommandLine
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect, Lexer

Parser = Callable[[Lexer], Command]


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """The declaration of one command."""

    name: str
    value: type[Command]
    states: frozenset[State]
    parser: Parser | None = None  #: None: the command has no arguments
    is_uid_form: bool = False
    allowed_under_uidonly: bool = True  #: RFC 9586 3: commands with message numbers are not
    announces_expunge: bool = True  #: RFC 3501 7.4.1, RFC 5256 3: message numbers must not change under some commands
    asks_for_news: bool = False  #: sent to learn of new mail (RFC 3501 6.1.2): clients notice an EXISTS within it
    adds_messages: bool = False  #: a destination that is missing is answered with TRYCREATE (RFC 3501 7.1)

    def parse(self, line: CommandLine, dialect: Dialect) -> Command:
        """Parse the arguments into the command's value. Raises CommandError."""
        lexer = Lexer(line.pieces, dialect)
        command = self.parser(lexer) if self.parser is not None else self.value()
        lexer.end()
        return command


def _both_forms(
    name: str,
    value: type[Command],
    parser: Callable[..., Command],
    *,
    announces_expunge: bool = True,
    adds_messages: bool = False,
) -> Iterator[CommandSpec]:
    """A command on messages, by number and by UID. The UID form announces everything: it names no message number."""
    yield CommandSpec(
        name,
        value,
        SELECTED,
        partial(parser, uid=False),
        allowed_under_uidonly=False,
        announces_expunge=announces_expunge,
        adds_messages=adds_messages,
    )
    yield CommandSpec(
        f"UID {name}", value, SELECTED, partial(parser, uid=True), is_uid_form=True, adds_messages=adds_messages
    )


def _no_message(_: Lexer, **_options: Any) -> NoReturn:
    raise CommandError("Expected a message literal")


_SPECS: Final = (
    # RFC 3501 6.1
    CommandSpec("CAPABILITY", model.Capability, ANY),
    CommandSpec("NOOP", model.Noop, ANY, asks_for_news=True),
    CommandSpec("LOGOUT", model.Logout, ANY),
    # RFC 2971 3.1
    CommandSpec("ID", model.Id, ANY, parse_id),
    # RFC 3501 6.2
    CommandSpec("STARTTLS", model.StartTls, NOT_AUTHENTICATED),
    CommandSpec("AUTHENTICATE", model.Authenticate, NOT_AUTHENTICATED, parse_authenticate),
    CommandSpec("LOGIN", model.Login, NOT_AUTHENTICATED, parse_login),
    # RFC 5161 3.1; RFC 9051 6.3.1: a server need not insist that no mailbox is selected
    CommandSpec("ENABLE", model.Enable, AUTHENTICATED, parse_enable),
    # RFC 3501 6.3
    CommandSpec("SELECT", model.Select, AUTHENTICATED, partial(parse_select, read_only=False)),
    CommandSpec("EXAMINE", model.Select, AUTHENTICATED, partial(parse_select, read_only=True)),
    CommandSpec("CREATE", model.Create, AUTHENTICATED, parse_create),
    CommandSpec("DELETE", model.Delete, AUTHENTICATED, parse_delete),
    CommandSpec("RENAME", model.Rename, AUTHENTICATED, parse_rename),
    CommandSpec("SUBSCRIBE", model.Subscribe, AUTHENTICATED, parse_subscribe),
    CommandSpec("UNSUBSCRIBE", model.Unsubscribe, AUTHENTICATED, parse_unsubscribe),
    CommandSpec("LIST", model.List, AUTHENTICATED, parse_list),
    CommandSpec("LSUB", model.Lsub, AUTHENTICATED, parse_lsub),
    CommandSpec("STATUS", model.Status, AUTHENTICATED, parse_status),
    CommandSpec("APPEND", model.Append, AUTHENTICATED, _no_message, adds_messages=True),
    # RFC 2342 5
    CommandSpec("NAMESPACE", model.Namespace, AUTHENTICATED),
    # RFC 2177 3
    CommandSpec("IDLE", model.Idle, AUTHENTICATED, asks_for_news=True),
    # RFC 9208 4.1
    CommandSpec("GETQUOTA", model.GetQuota, AUTHENTICATED, parse_getquota),
    CommandSpec("GETQUOTAROOT", model.GetQuotaRoot, AUTHENTICATED, parse_getquotaroot),
    CommandSpec("SETQUOTA", model.SetQuota, AUTHENTICATED, parse_setquota),
    # RFC 4978 3
    CommandSpec("COMPRESS", model.Compress, AUTHENTICATED, parse_compress),
    # RFC 8437 3
    CommandSpec("UNAUTHENTICATE", model.Unauthenticate, AUTHENTICATED),
    # RFC 3501 6.4
    CommandSpec("CHECK", model.Check, SELECTED, asks_for_news=True),
    CommandSpec("CLOSE", model.Close, SELECTED),
    CommandSpec("EXPUNGE", model.Expunge, SELECTED),
    *_both_forms("SEARCH", model.Search, parse_search, announces_expunge=False),
    *_both_forms("FETCH", model.Fetch, parse_fetch, announces_expunge=False),
    *_both_forms("STORE", model.Store, parse_store, announces_expunge=False),
    *_both_forms("COPY", model.Copy, parse_copy, adds_messages=True),
    # RFC 3691 2
    CommandSpec("UNSELECT", model.Unselect, SELECTED),
    # RFC 4315 2.1
    CommandSpec("UID EXPUNGE", model.Expunge, SELECTED, parse_uid_expunge, is_uid_form=True),
    # RFC 5256 3
    *_both_forms("SORT", model.Sort, parse_sort, announces_expunge=False),
    *_both_forms("THREAD", model.Thread, parse_thread, announces_expunge=False),
    # RFC 6851 3
    *_both_forms("MOVE", model.Move, parse_move, adds_messages=True),
    # RFC 8508 3
    *_both_forms("REPLACE", model.Replace, _no_message, adds_messages=True),
)

COMMANDS: Final[Mapping[str, CommandSpec]] = {spec.name: spec for spec in _SPECS}


def find_command(name: str) -> CommandSpec:
    """Return the declaration of a command. Raises CommandError if there is none of that name."""
    spec = COMMANDS.get(name)
    if spec is None:
        raise CommandError("Unknown command")
    return spec


def permit(name: str, machine: StateMachine) -> CommandSpec:
    """Return the declaration of a command. Raises CommandError if it does not exist or is not allowed now."""
    spec = find_command(name)
    machine.require(spec.states)
    if machine.dialect.uid_only and not spec.allowed_under_uidonly:
        raise CommandError("Message numbers cannot be used", code="UIDREQUIRED")
    return spec


def parse_command(line: CommandLine, dialect: Dialect = PLAIN) -> Command:
    """Parse a command, whatever the state. Raises CommandError."""
    return find_command(line.name).parse(line, dialect)
