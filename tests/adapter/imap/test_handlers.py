"""The binding of handlers to commands: complete, unique, and checked when the package is imported."""

from __future__ import annotations

import pytest

from adapter.imap.commands import HANDLERS
from adapter.imap.handlers import TaggedResponse, bound_handlers, handles
from adapter.imap.session import Session
from protocol.imap.commands import model
from protocol.imap.commands.registry import COMMANDS


class Unbound(model.Command):
    """A command without a handler."""


def test_every_declared_command_has_a_handler() -> None:
    assert HANDLERS.keys() == {spec.value for spec in COMMANDS.values()}


def test_command_without_a_handler_is_an_error() -> None:
    with pytest.raises(TypeError, match="no handler for Unbound: decorate it with @handles"):
        bound_handlers([model.Noop, Unbound])


def test_second_handler_of_a_command_is_an_error() -> None:
    async def another_noop(session: Session, command: model.Noop) -> TaggedResponse:
        return TaggedResponse("done")

    with pytest.raises(TypeError, match="Noop has two handlers: noop, another_noop"):
        handles(model.Noop)(another_noop)
    assert HANDLERS[model.Noop] is not another_noop
