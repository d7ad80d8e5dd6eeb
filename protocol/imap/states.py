"""The state machine of an IMAP connection (RFC 3501 3): one table of transitions, and the check of a command's states.

The table of commands (:mod:`protocol.imap.commands.registry`) names the states each command is allowed in;
:data:`TRANSITIONS` says which state follows an event. The adapter applies events and never assigns a state.

Invariants: a refused command changes nothing; the state changes through :meth:`StateMachine.apply` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from protocol.errors import ProtocolError
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect


class State(Enum):
    """The four states of RFC 3501 3, and two for IDLE (RFC 2177), in which only ``DONE`` is allowed."""

    NOT_AUTHENTICATED = "not authenticated"
    AUTHENTICATED = "authenticated"
    SELECTED = "selected"
    IDLE = "idle, no mailbox selected"
    IDLE_SELECTED = "idle, mailbox selected"
    LOGOUT = "logout"

    @property
    def is_idle(self) -> bool:
        return self is State.IDLE or self is State.IDLE_SELECTED

    @property
    def has_mailbox(self) -> bool:
        return self is State.SELECTED or self is State.IDLE_SELECTED


class StateEvent(Enum):
    """Everything that can change the state."""

    TLS_STARTED = auto()  # the handshake is complete, after STARTTLS or at once
    LOGGED_IN = auto()  # LOGIN or AUTHENTICATE succeeded
    SELECT_STARTED = auto()  # SELECT or EXAMINE begins
    SELECTED = auto()  # SELECT or EXAMINE succeeded
    SELECT_FAILED = auto()  # SELECT or EXAMINE failed
    DESELECTED = auto()  # CLOSE or UNSELECT
    MAILBOX_DELETED = auto()  # another session has deleted the selected mailbox
    IDLE_STARTED = auto()
    IDLE_ENDED = auto()  # DONE, or a line that is something else
    UNAUTHENTICATED = auto()  # UNAUTHENTICATE succeeded
    CLOSED = auto()  # LOGOUT, or the connection is lost


#: States a command can be allowed in.
NOT_AUTHENTICATED: Final = frozenset((State.NOT_AUTHENTICATED,))
AUTHENTICATED: Final = frozenset((State.AUTHENTICATED, State.SELECTED))
SELECTED: Final = frozenset((State.SELECTED,))
ANY: Final = NOT_AUTHENTICATED | AUTHENTICATED

TRANSITIONS: Final[Mapping[tuple[State, StateEvent], State]] = {
    # RFC 3501 6.2.1: the client stays not authenticated; what it sent before the handshake is discarded
    (State.NOT_AUTHENTICATED, StateEvent.TLS_STARTED): State.NOT_AUTHENTICATED,
    # RFC 3501 6.2.2, 6.2.3
    (State.NOT_AUTHENTICATED, StateEvent.LOGGED_IN): State.AUTHENTICATED,
    # RFC 3501 6.3.1: SELECT deselects the mailbox first, and if it fails no mailbox is selected
    (State.AUTHENTICATED, StateEvent.SELECT_STARTED): State.AUTHENTICATED,
    (State.SELECTED, StateEvent.SELECT_STARTED): State.AUTHENTICATED,
    (State.AUTHENTICATED, StateEvent.SELECTED): State.SELECTED,
    (State.AUTHENTICATED, StateEvent.SELECT_FAILED): State.AUTHENTICATED,
    (State.SELECTED, StateEvent.SELECT_FAILED): State.AUTHENTICATED,
    # RFC 3501 6.4.2; RFC 3691 2
    (State.SELECTED, StateEvent.DESELECTED): State.AUTHENTICATED,
    # RFC 2180 3.3: the session keeps a mailbox without messages, in which every change fails
    (State.SELECTED, StateEvent.MAILBOX_DELETED): State.SELECTED,
    (State.IDLE_SELECTED, StateEvent.MAILBOX_DELETED): State.IDLE_SELECTED,
    # RFC 2177 3
    (State.AUTHENTICATED, StateEvent.IDLE_STARTED): State.IDLE,
    (State.SELECTED, StateEvent.IDLE_STARTED): State.IDLE_SELECTED,
    (State.IDLE, StateEvent.IDLE_ENDED): State.AUTHENTICATED,
    (State.IDLE_SELECTED, StateEvent.IDLE_ENDED): State.SELECTED,
    # RFC 8437 3: also deselects the mailbox and disables all extensions
    (State.AUTHENTICATED, StateEvent.UNAUTHENTICATED): State.NOT_AUTHENTICATED,
    (State.SELECTED, StateEvent.UNAUTHENTICATED): State.NOT_AUTHENTICATED,
    # RFC 3501 3.4
    **{(state, StateEvent.CLOSED): State.LOGOUT for state in State},
}


class TransitionError(ProtocolError):
    """An event that cannot happen in the current state."""

    def __init__(self, state: State, event: StateEvent) -> None:
        super().__init__(f"{event.name} is not possible in this state ({state.value})")


class StateMachine:
    """The protocol state of one connection: state, TLS, and the enabled extensions."""

    __slots__ = ("_dialect", "_state", "_tls")

    def __init__(self) -> None:
        self._state = State.NOT_AUTHENTICATED
        self._dialect = PLAIN
        self._tls = False

    @property
    def state(self) -> State:
        return self._state

    @property
    def dialect(self) -> Dialect:
        """The extensions in use (RFC 5161)."""
        return self._dialect

    @property
    def tls(self) -> bool:
        return self._tls

    def apply(self, event: StateEvent) -> None:
        """Change the state as the table says. Raises TransitionError, and changes nothing, if it has no such row."""
        state = TRANSITIONS.get((self._state, event))
        if state is None:
            raise TransitionError(self._state, event)
        self._state = state
        if event is StateEvent.TLS_STARTED:
            self._tls = True
        elif event is StateEvent.UNAUTHENTICATED:
            self._dialect = PLAIN

    # RFC 5161 3.1; RFC 7162 3.1: some commands of CONDSTORE enable it
    def enable(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def require(self, allowed: frozenset[State]) -> None:
        """Raise CommandError unless the current state is one of these."""
        if self._state not in allowed:
            raise CommandError(_refusal(self._state, allowed))


def _refusal(state: State, allowed: frozenset[State]) -> str:
    if state is State.LOGOUT:
        return "The connection is closing"
    if state.is_idle:
        return "Expected DONE"
    if state is State.NOT_AUTHENTICATED:
        return "Log in first"
    return "Already logged in" if allowed == NOT_AUTHENTICATED else "Select a mailbox first"
