"""The state machine and the table of commands: complete, and as the RFCs specify."""

from __future__ import annotations

from importlib import resources
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import protocol.imap.commands
from protocol.errors import ProtocolError
from protocol.imap.capabilities import enables_condstore
from protocol.imap.commands import model as c
from protocol.imap.commands.registry import COMMANDS, parse_command, permit
from protocol.imap.states import (
    ANY,
    AUTHENTICATED,
    NOT_AUTHENTICATED,
    SELECTED,
    TRANSITIONS,
    State,
    StateEvent,
    StateMachine,
    TransitionError,
)
from protocol.imap.wire.events import CommandLine
from protocol.imap.wire.framer import MESSAGE_COMMANDS
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect

#: The events that lead from the greeting to each state.
_PATHS = {
    State.NOT_AUTHENTICATED: (),
    State.AUTHENTICATED: (StateEvent.LOGGED_IN,),
    State.SELECTED: (StateEvent.LOGGED_IN, StateEvent.SELECTED),
    State.IDLE: (StateEvent.LOGGED_IN, StateEvent.IDLE_STARTED),
    State.IDLE_SELECTED: (StateEvent.LOGGED_IN, StateEvent.SELECTED, StateEvent.IDLE_STARTED),
    State.LOGOUT: (StateEvent.CLOSED,),
}


def machine_in(state: State, dialect: Dialect = PLAIN) -> StateMachine:
    machine = StateMachine()
    for event in _PATHS[state]:
        machine.apply(event)
    assert machine.state is state
    machine.enable(dialect)
    return machine


# --- transitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", StateEvent)
def test_every_event_is_applied_or_refused_in_every_state(state: State, event: StateEvent) -> None:
    machine = machine_in(state, Dialect(condstore=True))
    if (state, event) in TRANSITIONS:
        machine.apply(event)
        assert machine.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(ProtocolError):
            machine.apply(event)
        assert machine.state is state
        assert machine.dialect.condstore
        assert not machine.tls


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("name", [*sorted(COMMANDS), "BOGUS"])
@pytest.mark.parametrize("dialect", [PLAIN, Dialect(uid_only=True)])
def test_every_command_is_accepted_or_refused_in_every_state(state: State, name: str, dialect: Dialect) -> None:
    machine = machine_in(state, dialect)
    spec = COMMANDS.get(name)
    if spec is not None and state in spec.states and (spec.allowed_under_uidonly or not dialect.uid_only):
        assert permit(name, machine) is spec
    else:
        with pytest.raises(CommandError) as caught:
            permit(name, machine)
        assert caught.value.status == "BAD"
    assert machine.state is state
    assert machine.dialect is dialect


def test_selecting_another_mailbox_deselects_first_and_stays_so_if_it_fails() -> None:
    machine = machine_in(State.SELECTED)
    machine.apply(StateEvent.SELECT_STARTED)
    assert machine.state is State.AUTHENTICATED
    machine.apply(StateEvent.SELECT_FAILED)
    assert machine.state is State.AUTHENTICATED


def test_select_that_fails_late_deselects() -> None:
    machine = machine_in(State.SELECTED)
    machine.apply(StateEvent.SELECT_FAILED)
    assert machine.state is State.AUTHENTICATED


@pytest.mark.parametrize("state", [State.AUTHENTICATED, State.SELECTED])
def test_unauthenticate_disables_extensions_and_keeps_tls(state: State) -> None:
    machine = StateMachine()
    machine.apply(StateEvent.TLS_STARTED)
    for event in _PATHS[state]:
        machine.apply(event)
    machine.enable(Dialect(condstore=True, qresync=True))
    machine.apply(StateEvent.UNAUTHENTICATED)
    assert machine.state is State.NOT_AUTHENTICATED
    assert machine.dialect == PLAIN
    assert machine.tls


def test_idle_ends_in_the_state_it_began_in() -> None:
    for state in (State.AUTHENTICATED, State.SELECTED):
        machine = machine_in(state)
        machine.apply(StateEvent.IDLE_STARTED)
        assert machine.state.is_idle
        assert machine.state.has_mailbox == state.has_mailbox
        machine.apply(StateEvent.IDLE_ENDED)
        assert machine.state is state


def test_state_cannot_be_assigned() -> None:
    machine = StateMachine()
    for name in ("state", "dialect", "tls"):
        with pytest.raises(AttributeError):
            setattr(machine, name, None)


class Conversation(RuleBasedStateMachine):
    """Any commands and events in any order: each is accepted or a protocol error, and refusals change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = StateMachine()

    @rule(event=st.sampled_from(StateEvent))
    def event(self, event: StateEvent) -> None:
        before = self.machine.state, self.machine.dialect
        try:
            self.machine.apply(event)
        except TransitionError:
            assert (self.machine.state, self.machine.dialect) == before

    @rule(
        name=st.sampled_from([*sorted(COMMANDS), "BOGUS"]), rest=st.sampled_from([b"", b" x", b" 1 (MODSEQ)", b" 1 x"])
    )
    def command(self, name: str, rest: bytes) -> None:
        try:
            spec = permit(name, self.machine)
            value = spec.parse(CommandLine(b"a", name, (rest,)), self.machine.dialect)
        except ProtocolError:
            return
        assert type(value) is spec.value
        if enables_condstore(value):
            self.machine.enable(Dialect(condstore=True))

    @invariant()
    def nothing_is_enabled_before_login(self) -> None:
        assert self.machine.dialect == PLAIN or self.machine.state is not State.NOT_AUTHENTICATED


TestConversation = Conversation.TestCase


# --- the table of commands -------------------------------------------------------------------------------------------


def test_every_value_has_a_command() -> None:
    values = {v for v in vars(c).values() if isinstance(v, type) and issubclass(v, c.Command) and v is not c.Command}
    assert len(values) == 37
    assert {spec.value for spec in COMMANDS.values()} == values


def test_every_parser_names_its_rfc() -> None:
    parsers = 0
    for entry in resources.files(protocol.imap.commands).iterdir():
        if not entry.name.endswith(".py") or entry.name == "registry.py":
            continue
        lines = entry.read_text("utf-8").splitlines()
        for above, line in pairwise(lines):
            if line.startswith("def parse_"):
                parsers += 1
                assert above.startswith("# RFC "), f"{entry.name}: {line}"
    assert parsers > 20


def test_no_expunge_while_numbers_are_in_use() -> None:
    assert {name for name, spec in COMMANDS.items() if not spec.announces_expunge} == {
        "FETCH", "STORE", "SEARCH", "SORT", "THREAD",
    }  # fmt: skip


def test_uid_forms() -> None:
    assert {name for name, spec in COMMANDS.items() if spec.is_uid_form} == {
        n for n in COMMANDS if n.startswith("UID ")
    }


def test_commands_that_add_messages_answer_trycreate() -> None:
    assert {name for name, spec in COMMANDS.items() if spec.adds_messages} == {
        "APPEND", "COPY", "UID COPY", "MOVE", "UID MOVE", "REPLACE", "UID REPLACE",
    }  # fmt: skip


def test_framer_streams_the_messages_of_declared_commands() -> None:
    assert COMMANDS.keys() >= MESSAGE_COMMANDS.keys()
    assert all(COMMANDS[name].adds_messages for name in MESSAGE_COMMANDS)


def test_uidonly_forbids_message_numbers() -> None:
    numbered = {name for name, spec in COMMANDS.items() if not spec.allowed_under_uidonly}
    assert numbered == {"FETCH", "STORE", "SEARCH", "SORT", "THREAD", "COPY", "MOVE", "REPLACE"}
    assert {f"UID {name}" for name in numbered} <= COMMANDS.keys()
    machine = machine_in(State.SELECTED, Dialect(uid_only=True))
    with pytest.raises(CommandError) as caught:
        permit("FETCH", machine)
    assert caught.value.code == "UIDREQUIRED"
    assert permit("UID FETCH", machine).is_uid_form


@pytest.mark.parametrize("state", State)
def test_commands_of_each_state(state: State) -> None:
    allowed = set()
    for name in COMMANDS:
        try:
            permit(name, machine_in(state))
            allowed.add(name)
        except CommandError:
            pass
    anytime = {"CAPABILITY", "NOOP", "LOGOUT", "ID"}
    logging_in = {"STARTTLS", "AUTHENTICATE", "LOGIN"}
    selected = {n for n, spec in COMMANDS.items() if spec.states == {State.SELECTED}}
    assert {"CHECK", "CLOSE", "UNSELECT", "EXPUNGE", "UID EXPUNGE", "UID MOVE"} <= selected
    expected: dict[State, set[str]] = {
        State.NOT_AUTHENTICATED: anytime | logging_in,
        State.AUTHENTICATED: COMMANDS.keys() - logging_in - selected,
        State.SELECTED: COMMANDS.keys() - logging_in,
        State.IDLE: set(),
        State.IDLE_SELECTED: set(),
        State.LOGOUT: set(),
    }
    assert allowed == expected[state]
    assert {spec.states for spec in COMMANDS.values()} == {ANY, NOT_AUTHENTICATED, AUTHENTICATED, SELECTED}


def test_refusals_say_why() -> None:
    for name, state, text in (
        ("SELECT", State.NOT_AUTHENTICATED, "Log in first"),
        ("FETCH", State.AUTHENTICATED, "Select a mailbox first"),
        ("LOGIN", State.SELECTED, "Already logged in"),
        ("BOGUS", State.SELECTED, "Unknown command"),
        ("NOOP", State.IDLE, "Expected DONE"),
        ("NOOP", State.LOGOUT, "closing"),
    ):
        with pytest.raises(CommandError, match=text):
            permit(name, machine_in(state))


@pytest.mark.parametrize(
    ("name", "rest", "expected"),
    [
        ("SELECT", b" x", False),
        ("SELECT", b" x (CONDSTORE)", True),
        ("SELECT", b" x (QRESYNC (1 1))", True),
        ("STATUS", b" x (HIGHESTMODSEQ)", True),
        ("STATUS", b" x (UNSEEN)", False),
        ("FETCH", b" 1 MODSEQ", True),
        ("FETCH", b" 1 FLAGS (CHANGEDSINCE 1)", True),
        ("FETCH", b" 1 FLAGS", False),
        ("SEARCH", b" MODSEQ 1", True),
        ("SEARCH", b" ALL", False),
        ("STORE", b" 1 (UNCHANGEDSINCE 1) FLAGS ()", True),
        ("STORE", b" 1 FLAGS ()", False),
        ("ENABLE", b" CONDSTORE", True),
        ("ENABLE", b" UTF8=ACCEPT", False),
        ("NOOP", b"", False),
    ],
)
def test_condstore_enabling_commands(name: str, rest: bytes, expected: bool) -> None:
    command = parse_command(CommandLine(b"a", name, (rest,)), Dialect(qresync=True))
    assert enables_condstore(command) is expected
