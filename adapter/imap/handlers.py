"""The contract of command handlers: how a handler is bound to its command, and the tagged response it returns.

A handler takes the session and the command's value and returns the tagged response (RFC 3501 7.1), or None if it has
sent that itself or will do so later. It may raise CommandError, ProtocolError and MailError. A command's name, states
and parser are declared in :mod:`protocol.imap.commands.registry`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from protocol.errors import MailError, Reason
from protocol.imap.commands.model import Command
from protocol.imap.responses import codes

if TYPE_CHECKING:
    from adapter.imap.session import Session


class TaggedResponse(NamedTuple):
    text: str
    code: bytes = b""
    status: bytes = b"OK"
    modseq_sent: bool = False  # FETCH responses with MODSEQ were sent (RFC 7162 3.2)
    announces: bool = True  # preceded by the updates of the selected mailbox
    limited: bytes = b""  # the code that names the message at which a limit was reached (RFC 9738 3.1)
    exists_first: bool = False  # EXISTS before EXPUNGE (RFC 8508 3.3)
    uses_numbers: bool = False  # the search criteria contain message numbers (RFC 7162 3.2.10)


# RFC 5530 3; RFC 3501 6.3.11, 6.4.7 for TRYCREATE
def failure(error: MailError, *, into: bool = False) -> TaggedResponse:
    """Translate the error of an operation; ``into``: a missing mailbox was the destination of messages."""
    code = error.reason.imap.encode("ascii")
    if into and error.reason is Reason.NO_SUCH_FOLDER:
        code = codes.TRYCREATE
    return TaggedResponse(error.public, code, b"NO")


def no(text: str, code: bytes = b"") -> TaggedResponse:
    return TaggedResponse(text, code, b"NO")


# --- the table of handlers, filled by the modules of ``commands`` -------------------------------------------------

C = TypeVar("C", bound=Command)
Handler: TypeAlias = "Callable[[Session, C], Awaitable[TaggedResponse | None]]"

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
    """Return the handler of each command. Raises TypeError if one has none."""
    missing = sorted({value.__name__ for value in values} - {value.__name__ for value in _handlers})
    if missing:
        raise TypeError(f"no handler for {', '.join(missing)}: decorate it with @handles, in a module of commands/")
    return dict(_handlers)
