"""Mailbox patterns against a definition as regular expressions, and their cost."""

from __future__ import annotations

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from adapter.imap.commands.list import Pattern

_TEXT = st.text("ab/", max_size=12)


def _meaning(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "%": "[^/]*"}
    return re.compile("".join(parts.get(character, re.escape(character)) for character in pattern), re.DOTALL)


@given(st.text("ab/*%", max_size=10), _TEXT)
def test_pattern_matches_its_definition(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) == bool(_meaning(pattern).fullmatch(name))


def test_inbox_in_any_case() -> None:
    for pattern in ("inbox", "InBox", "INBOX", "in*", "%box", "inb%"):
        assert Pattern(pattern).matches("INBOX"), pattern
    assert Pattern("inbox/x").matches("INBOX/x")
    assert not Pattern("inbox/x").matches("INBOX/X")
    assert not Pattern("archive").matches("Archive")
    assert not Pattern("inboxes").matches("INBOXES")


def test_hostile_pattern_costs_little() -> None:
    pattern = Pattern("*a%" * 400 + "b")
    started = time.process_time()
    assert not pattern.matches("a" * 1000)
    assert time.process_time() - started < 5


def test_pattern_longer_than_any_name_matches_none() -> None:
    assert not Pattern("a" * 60000).matches("a" * 1000)
    assert Pattern("%" * 60000).matches("abc")
