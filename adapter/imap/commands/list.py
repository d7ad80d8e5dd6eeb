r"""Which mailboxes LIST and LSUB show, and with which attributes (RFC 3501 6.3.8, RFC 5258, RFC 6154, RFC 3348).

A mailbox is shown if it exists, or has children, or is subscribed to and that is asked for. A mailbox that does not
exist is ``\NonExistent``, which implies ``\Noselect`` (RFC 5258 3), or ``\Noselect`` for clients that use plain LIST.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from adapter.read_model.interface import DELIMITER, INBOX, MAX_FOLDER_NAME, Folder
from protocol.errors import MailError, Reason
from protocol.imap.commands.model import List, ListReturn, ListSelect

#: Of one LIST.
MAX_PATTERNS = 50

_NO_SELECT = b"\\Noselect"
_WILDCARDS = re.compile(r"[*%]{2,}")


class Pattern:
    """A mailbox pattern (RFC 3501 6.3.8): ``%`` stands for anything within one level, ``*`` for anything at all.

    An automaton whose states are the bits of one integer: a name is read once, character by character, without
    backtracking, so that no pattern is expensive. INBOX, also as a parent, matches in any case.
    """

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


class Shown(NamedTuple):
    name: str
    attributes: list[bytes]
    child_info: list[bytes]  # selection options that only children fulfil (RFC 5258 3.5)
    folder: Folder | None  # None: there is no such mailbox


class Hierarchy:
    """The mailboxes of one account, those that are only parents included."""

    def __init__(self, folders: Sequence[Folder], subscribed: Collection[str]) -> None:
        self.folders = {folder.name: folder for folder in folders}
        self.subscribed = set(subscribed)
        self.parents = _parents(self.folders)
        self._above_subscribed = _parents(self.subscribed)

    # RFC 3501 6.3.8; RFC 5258 3, 4
    def matching(self, command: List, *, plain: bool) -> list[Shown]:
        r"""``plain``: the client speaks IMAP4rev1 and used nothing of RFC 5258, so ``\NonExistent`` says nothing."""
        patterns = _patterns(command.reference, command.patterns)
        select = command.select
        subscribed_only = ListSelect.SUBSCRIBED in select
        candidates = self.folders.keys() | self.parents
        if subscribed_only:
            candidates |= self.subscribed | self._above_subscribed
        fitting = [name for name in candidates if _fits(name, patterns)]
        chosen = {name for name in fitting if self._is_chosen(name, select)}
        parents = self._parents_of_matches(select, chosen) if ListSelect.RECURSIVEMATCH in select else {}
        shown = []
        for name in _in_order(fitting):
            child_info = [option for option, above in parents.items() if name in above]
            if name in chosen or child_info:
                shown.append(self._shown(name, command, child_info, plain=plain and not command.extended))
        return shown

    # RFC 3501 6.3.9
    def lsub(self, reference: str, pattern: str) -> list[Shown]:
        (fitting,) = _patterns(reference, [pattern])
        shown = [
            Shown(name, [] if name in self.folders else [_NO_SELECT], [], self.folders.get(name))
            for name in self.subscribed
            if fitting.matches(name)
        ]
        if pattern.endswith("%"):
            # A subscribed child that the pattern does not reach is shown by its parent.
            above = self._above_subscribed - self.subscribed
            shown += [Shown(name, [_NO_SELECT], [], None) for name in above if fitting.matches(name)]
        return sorted(shown, key=lambda each: _order(each.name))

    def _is_chosen(self, name: str, select: frozenset[ListSelect]) -> bool:
        if ListSelect.SUBSCRIBED in select and name not in self.subscribed:
            return False
        if ListSelect.SPECIAL_USE in select:
            folder = self.folders.get(name)
            return folder is not None and bool(folder.special_use)
        return True

    # RFC 5258 3.5, 4: only if at least one child that matches is not listed itself
    def _parents_of_matches(self, select: frozenset[ListSelect], listed: Collection[str]) -> dict[bytes, set[str]]:
        """For each selection option the names above a mailbox that fulfils it and is not ``listed``."""
        found = {}
        if ListSelect.SUBSCRIBED in select:
            found[b"SUBSCRIBED"] = _parents(name for name in self.subscribed if name not in listed)
        if ListSelect.SPECIAL_USE in select:
            special = (name for name, folder in self.folders.items() if folder.special_use)
            found[b"SPECIAL-USE"] = _parents(name for name in special if name not in listed)
        return found

    def _shown(self, name: str, command: List, child_info: Sequence[bytes], *, plain: bool) -> Shown:
        folder = self.folders.get(name)
        attributes = []
        if folder is None:
            attributes.append(_NO_SELECT if plain else b"\\NonExistent")
        # RFC 3348: told always, as clients that use them seldom ask.
        attributes.append(b"\\HasChildren" if name in self.parents else b"\\HasNoChildren")
        if (ListSelect.SUBSCRIBED in command.select or ListReturn.SUBSCRIBED in command.returns) and (
            name in self.subscribed
        ):
            attributes.append(b"\\Subscribed")
        if folder is not None and folder.special_use:
            attributes.append(folder.special_use.encode("ascii"))
        return Shown(name, attributes, list(child_info), folder)


def _patterns(reference: str, patterns: Sequence[str]) -> list[Pattern]:
    """RFC 3501 6.3.8: the reference is put before the pattern."""
    if len(patterns) > MAX_PATTERNS:
        raise MailError(Reason.LIMIT, "patterns in one LIST")
    return [Pattern(reference + pattern) for pattern in patterns]


def _fits(name: str, patterns: Sequence[Pattern]) -> bool:
    return any(pattern.matches(name) for pattern in patterns)


def _parents(mailboxes: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for name in mailboxes:
        end = name.rfind(DELIMITER)
        while end > 0 and (parent := name[:end]) not in found:
            found.add(parent)
            end = parent.rfind(DELIMITER)
    return found


def _order(name: str) -> tuple[bool, str]:
    return name != INBOX and not name.startswith(INBOX + DELIMITER), name


def _in_order(mailboxes: Iterable[str]) -> list[str]:
    return sorted(mailboxes, key=_order)
