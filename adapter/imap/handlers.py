"""What a command handler is: how it is bound to its command, and the tagged response it ends with (RFC 3501 7.1).

A handler takes the session and the command's value and returns the answer, or None if it has sent the tagged response
itself or will do so later. It may raise CommandError, ProtocolError and MailError. A command's name, states and parser
are in :mod:`protocol.imap.commands.registry`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from protocol.errors import MailError, Reason
from protocol.imap.commands.model import Command
from protocol.imap.responses import codes

if TYPE_CHECKING:
    from adapter.imap.session import Session


class Answer(NamedTuple):
    text: str
    code: bytes = b""
    status: bytes = b"OK"
    modseq_sent: bool = False  # FETCH responses with MODSEQ were sent (RFC 7162 3.2)
    tells: bool = True  # of changes in the selected mailbox
    limited: bytes = b""  # the code that says where a limit has cut the messages off (RFC 9738 3.1)
    exists_first: bool = False  # EXISTS before EXPUNGE (RFC 8508 3.3)
    uses_numbers: bool = False  # the criteria of a search had message numbers (RFC 7162 3.2.10)


# RFC 5530 3; RFC 3501 6.3.11, 6.4.7 for TRYCREATE
def failed(error: MailError, *, into: bool = False) -> Answer:
    """The answer to an operation that failed; ``into``: a mailbox that is missing was a destination."""
    code = error.reason.imap.encode("ascii")
    if into and error.reason is Reason.NO_SUCH_FOLDER:
        code = codes.TRYCREATE
    return Answer(error.public, code, b"NO")


def no(text: str, code: bytes = b"") -> Answer:
    return Answer(text, code, b"NO")


# --- the table of handlers, filled by the modules of ``commands`` -------------------------------------------------

C = TypeVar("C", bound=Command)
Handler: TypeAlias = "Callable[[Session, C], Awaitable[Answer | None]]"

_handlers: Final[dict[type[Command], Handler[Any]]] = {}


def handles(value: type[C]) -> Callable[[Handler[C]], Handler[C]]:
    """Bind the decorated function to a command."""

    def bind(handler: Handler[C]) -> Handler[C]:
        if value in _handlers:
            raise TypeError(f"{value.__name__} has two handlers: {_handlers[value].__name__}, {handler.__name__}")
        _handlers[value] = handler
        return handler

    return bind


def bound_handlers(values: Iterable[type[Command]]) -> dict[type[Command], Handler[Any]]:
    """The handler of each of these commands. Raises TypeError if one has none."""
    missing = sorted({value.__name__ for value in values} - {value.__name__ for value in _handlers})
    if missing:
        raise TypeError(f"no handler for {', '.join(missing)}: decorate it with @handles, in a module of commands/")
    return dict(_handlers)
