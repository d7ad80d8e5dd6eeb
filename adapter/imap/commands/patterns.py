"""Mailbox patterns (RFC 3501 6.3.8): ``%`` stands for anything within one level, ``*`` for anything at all.

A pattern is an automaton whose states are the bits of one integer: a name is read once, character by character, and
nothing is ever tried again, so that no pattern is expensive.
"""

from __future__ import annotations

import re

from adapter.store.names import DELIMITER, INBOX, MAX_FOLDER_NAME

_WILDCARDS = re.compile(r"[*%]{2,}")


class Pattern:
    """``matches`` tells whether a mailbox name fits. INBOX, also as a parent, fits in any case."""

    __slots__ = ("_accept", "_any", "_literal", "_start", "_wild", "_within")

    def __init__(self, text: str) -> None:
        text = _WILDCARDS.sub(lambda run: "*" if "*" in run[0] else "%", text)
        if sum(character not in "*%" for character in text) > MAX_FOLDER_NAME:
            text = DELIMITER  # longer than any name: fits none
        self._literal: dict[str, int] = {}
        self._any = self._within = 0
        for position, character in enumerate(text):
            bit = 1 << position
            if character == "*":
                self._any |= bit
            elif character == "%":
                self._within |= bit
            else:
                self._literal[character] = self._literal.get(character, 0) | bit
        self._wild = self._any | self._within
        self._accept = 1 << len(text)
        self._start = self._skip(1)

    def matches(self, name: str) -> bool:
        states = self._start
        either_case = len(INBOX) if name == INBOX or name.startswith(INBOX + DELIMITER) else 0
        literal = self._literal
        for position, character in enumerate(name):
            wanted = literal.get(character, 0)
            if position < either_case:
                wanted |= literal.get(character.lower(), 0)
            stay = states & (self._any if character == DELIMITER else self._wild)
            states = self._skip((states & wanted) << 1 | stay)
            if not states:
                return False
        return bool(states & self._accept)

    def _skip(self, states: int) -> int:
        """A wildcard may stand for nothing; no two of them stand side by side."""
        return states | (states & self._wild) << 1
