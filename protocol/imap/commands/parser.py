"""From a framed command to its value: the one table of parsers.

A new command is a row here, a row in ``states`` and a value in ``commands``. APPEND and REPLACE take their messages
from the stream and are read by :class:`protocol.imap.commands.append.AppendParser`; when they come to
:func:`parse_command` they had no message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NoReturn

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
from protocol.imap.wire.events import CommandLine
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect, Lexer

Parser = Callable[[Lexer], Command]


def _bare(command: Command) -> Parser:
    """A command without arguments."""
    return lambda _: command


def _no_message(_: Lexer) -> NoReturn:
    raise CommandError("Expected a message literal")


PARSERS: Final[Mapping[str, Parser]] = {
    "APPEND": _no_message,
    "AUTHENTICATE": parse_authenticate,
    "CAPABILITY": _bare(model.Capability()),
    "CHECK": _bare(model.Check()),
    "CLOSE": _bare(model.Close()),
    "COMPRESS": parse_compress,
    "COPY": partial(parse_copy, uid=False),
    "CREATE": parse_create,
    "DELETE": parse_delete,
    "ENABLE": parse_enable,
    "EXAMINE": partial(parse_select, read_only=True),
    "EXPUNGE": _bare(model.Expunge()),
    "FETCH": partial(parse_fetch, uid=False),
    "GETQUOTA": parse_getquota,
    "GETQUOTAROOT": parse_getquotaroot,
    "ID": parse_id,
    "IDLE": _bare(model.Idle()),
    "LIST": parse_list,
    "LOGIN": parse_login,
    "LOGOUT": _bare(model.Logout()),
    "LSUB": parse_lsub,
    "MOVE": partial(parse_move, uid=False),
    "NAMESPACE": _bare(model.Namespace()),
    "NOOP": _bare(model.Noop()),
    "RENAME": parse_rename,
    "REPLACE": _no_message,
    "SEARCH": partial(parse_search, uid=False),
    "SELECT": partial(parse_select, read_only=False),
    "SETQUOTA": parse_setquota,
    "SORT": partial(parse_sort, uid=False),
    "STARTTLS": _bare(model.StartTls()),
    "STATUS": parse_status,
    "STORE": partial(parse_store, uid=False),
    "SUBSCRIBE": parse_subscribe,
    "THREAD": partial(parse_thread, uid=False),
    "UID COPY": partial(parse_copy, uid=True),
    "UID EXPUNGE": parse_uid_expunge,
    "UID FETCH": partial(parse_fetch, uid=True),
    "UID MOVE": partial(parse_move, uid=True),
    "UID REPLACE": _no_message,
    "UID SEARCH": partial(parse_search, uid=True),
    "UID SORT": partial(parse_sort, uid=True),
    "UID STORE": partial(parse_store, uid=True),
    "UID THREAD": partial(parse_thread, uid=True),
    "UNAUTHENTICATE": _bare(model.Unauthenticate()),
    "UNSELECT": _bare(model.Unselect()),
    "UNSUBSCRIBE": parse_unsubscribe,
}


def parse_command(line: CommandLine, dialect: Dialect = PLAIN) -> Command:
    """The command as a value; CommandError (a ProtocolError) says how to answer if it is none."""
    parser = PARSERS.get(line.name)
    if parser is None:
        raise CommandError("Unknown command")
    lexer = Lexer(line.pieces, dialect)
    command = parser(lexer)
    lexer.end()
    return command
