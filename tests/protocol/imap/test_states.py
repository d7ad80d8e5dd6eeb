"""The table of states: complete, and right where the RFCs are explicit."""

from __future__ import annotations

from importlib import resources
from itertools import pairwise

import pytest

import protocol.imap
from protocol.imap.commands import model as c
from protocol.imap.commands.parser import PARSERS, parse_command
from protocol.imap.states import RULES, State, check, enables_condstore
from protocol.imap.wire.events import CommandLine
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect


def test_every_command_has_a_parser_and_a_rule() -> None:
    assert RULES.keys() == PARSERS.keys()


def test_every_value_is_made_by_some_command() -> None:
    values = {v for v in vars(c).values() if isinstance(v, type) and issubclass(v, c.Command) and v is not c.Command}
    assert len(values) == 37


def test_every_parser_names_its_rfc() -> None:
    for entry in resources.files(protocol.imap).iterdir():
        if not entry.name.startswith("parse_"):
            continue
        lines = entry.read_text("utf-8").splitlines()
        for above, line in pairwise(lines):
            if line.startswith("def parse_") and not line.startswith("def parse_command("):
                assert above.startswith("# RFC "), f"{entry.name}: {line}"


def test_no_expunge_while_numbers_are_in_use() -> None:
    assert {name for name, rule in RULES.items() if not rule.sees_expunge} == {
        "FETCH", "STORE", "SEARCH", "SORT", "THREAD",
    }  # fmt: skip


def test_uid_forms() -> None:
    assert {name for name, rule in RULES.items() if rule.uid} == {n for n in RULES if n.startswith("UID ")}


def test_uidonly_forbids_message_numbers() -> None:
    numbered = {name for name, rule in RULES.items() if not rule.uid_only}
    assert numbered == {"FETCH", "STORE", "SEARCH", "SORT", "THREAD", "COPY", "MOVE", "REPLACE"}
    assert {f"UID {name}" for name in numbered} <= RULES.keys()
    with pytest.raises(CommandError) as caught:
        check("FETCH", State.SELECTED, Dialect(uid_only=True))
    assert caught.value.code == "UIDREQUIRED"
    assert check("UID FETCH", State.SELECTED, Dialect(uid_only=True)).uid


@pytest.mark.parametrize("state", State)
def test_states(state: State) -> None:
    allowed = set()
    for name in RULES:
        try:
            check(name, state, PLAIN)
            allowed.add(name)
        except CommandError:
            pass
    anytime = {"CAPABILITY", "NOOP", "LOGOUT", "ID"}
    logging_in = {"STARTTLS", "AUTHENTICATE", "LOGIN"}
    selected = {n for n, rule in RULES.items() if rule.states == {State.SELECTED}}
    assert {"CHECK", "CLOSE", "UNSELECT", "EXPUNGE", "UID EXPUNGE", "UID MOVE"} <= selected
    expected = {
        State.NOT_AUTHENTICATED: anytime | logging_in,
        State.AUTHENTICATED: RULES.keys() - logging_in - selected,
        State.SELECTED: RULES.keys() - logging_in,
        State.LOGOUT: set(),
    }
    assert allowed == expected[state]


def test_refusals_say_why() -> None:
    for name, state, text in (
        ("SELECT", State.NOT_AUTHENTICATED, "Log in first"),
        ("FETCH", State.AUTHENTICATED, "Select a mailbox first"),
        ("LOGIN", State.SELECTED, "Already logged in"),
        ("BOGUS", State.SELECTED, "Unknown command"),
    ):
        with pytest.raises(CommandError, match=text):
            check(name, state, PLAIN)


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
