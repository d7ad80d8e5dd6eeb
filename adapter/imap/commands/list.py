r"""Selection of mailboxes for LIST and LSUB, and their attributes (RFC 3501 6.3.8, RFC 5258, RFC 6154, RFC 3348).

A mailbox is listed if it exists, if it has children, or if it is subscribed and the command selects subscriptions. A
missing mailbox is ``\NonExistent``, which implies ``\Noselect`` (RFC 5258 3), or ``\Noselect`` for plain LIST.
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
    """A mailbox pattern (RFC 3501 6.3.8): ``%`` matches anything within one level, ``*`` anything.

    An automaton with its states as the bits of one integer: a name is read once, character by character, without
    backtracking, so that no pattern is expensive. INBOX, also as a parent, matches in any case.
    """

    __slots__ = ("_accept", "_any", "_literal", "_start", "_wild", "_within")

    def __init__(self, text: str) -> None:
        text = _WILDCARDS.sub(lambda run: "*" if "*" in run[0] else "%", text)
        if sum(character not in "*%" for character in text) > MAX_FOLDER_NAME:
            text = DELIMITER  # longer than any name: matches none
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
            matching = literal.get(character, 0)
            if position < either_case:
                matching |= literal.get(character.lower(), 0)
            stay = states & (self._any if character == DELIMITER else self._wild)
            states = self._skip((states & matching) << 1 | stay)
            if not states:
                return False
        return bool(states & self._accept)

    def _skip(self, states: int) -> int:
        """Add the states after wildcards that match nothing; no two wildcards are adjacent."""
        return states | (states & self._wild) << 1


class ListedMailbox(NamedTuple):
    name: str
    attributes: list[bytes]
    child_info: list[bytes]  # selection options that only children fulfil (RFC 5258 3.5)
    folder: Folder | None  # None: there is no such mailbox


class Hierarchy:
    """The mailboxes of one account, including those that exist only as parents."""

    def __init__(self, folders: Sequence[Folder], subscribed: Collection[str]) -> None:
        self.folders = {folder.name: folder for folder in folders}
        self.subscribed = set(subscribed)
        self.parents = _parents(self.folders)
        self._above_subscribed = _parents(self.subscribed)

    # RFC 3501 6.3.8; RFC 5258 3, 4
    def matching(self, command: List, *, plain: bool) -> list[ListedMailbox]:
        r"""``plain``: an IMAP4rev1 client without the extensions of RFC 5258, which does not know ``\NonExistent``."""
        patterns = _patterns(command.reference, command.patterns)
        select = command.select
        subscribed_only = ListSelect.SUBSCRIBED in select
        candidates = self.folders.keys() | self.parents
        if subscribed_only:
            candidates |= self.subscribed | self._above_subscribed
        matching = [name for name in candidates if _matches(name, patterns)]
        selected = {name for name in matching if self._is_selected(name, select)}
        parents = self._parents_of_matches(select, selected) if ListSelect.RECURSIVEMATCH in select else {}
        listed = []
        for name in _in_order(matching):
            child_info = [option for option, above in parents.items() if name in above]
            if name in selected or child_info:
                listed.append(self._listed(name, command, child_info, plain=plain and not command.extended))
        return listed

    # RFC 3501 6.3.9
    def lsub(self, reference: str, pattern: str) -> list[ListedMailbox]:
        (matcher,) = _patterns(reference, [pattern])
        listed = [
            ListedMailbox(name, [] if name in self.folders else [_NO_SELECT], [], self.folders.get(name))
            for name in self.subscribed
            if matcher.matches(name)
        ]
        if pattern.endswith("%"):
            # A parent is listed for a subscribed child that the pattern does not match.
            above = self._above_subscribed - self.subscribed
            listed += [ListedMailbox(name, [_NO_SELECT], [], None) for name in above if matcher.matches(name)]
        return sorted(listed, key=lambda each: _order(each.name))

    def _is_selected(self, name: str, select: frozenset[ListSelect]) -> bool:
        if ListSelect.SUBSCRIBED in select and name not in self.subscribed:
            return False
        if ListSelect.SPECIAL_USE in select:
            folder = self.folders.get(name)
            return folder is not None and bool(folder.special_use)
        return True

    # RFC 5258 3.5, 4: only if at least one child that matches is not listed itself
    def _parents_of_matches(self, select: frozenset[ListSelect], listed: Collection[str]) -> dict[bytes, set[str]]:
        """Return, by selection option, the parents of mailboxes that match it and are not ``listed``."""
        parents = {}
        if ListSelect.SUBSCRIBED in select:
            parents[b"SUBSCRIBED"] = _parents(name for name in self.subscribed if name not in listed)
        if ListSelect.SPECIAL_USE in select:
            special = (name for name, folder in self.folders.items() if folder.special_use)
            parents[b"SPECIAL-USE"] = _parents(name for name in special if name not in listed)
        return parents

    def _listed(self, name: str, command: List, child_info: Sequence[bytes], *, plain: bool) -> ListedMailbox:
        folder = self.folders.get(name)
        attributes = []
        if folder is None:
            attributes.append(_NO_SELECT if plain else b"\\NonExistent")
        # RFC 3348: always included, because clients that use them seldom request them.
        attributes.append(b"\\HasChildren" if name in self.parents else b"\\HasNoChildren")
        if (ListSelect.SUBSCRIBED in command.select or ListReturn.SUBSCRIBED in command.returns) and (
            name in self.subscribed
        ):
            attributes.append(b"\\Subscribed")
        if folder is not None and folder.special_use:
            attributes.append(folder.special_use.encode("ascii"))
        return ListedMailbox(name, attributes, list(child_info), folder)


def _patterns(reference: str, patterns: Sequence[str]) -> list[Pattern]:
    """Compile patterns; the reference is their prefix (RFC 3501 6.3.8)."""
    if len(patterns) > MAX_PATTERNS:
        raise MailError(Reason.LIMIT, "patterns in one LIST")
    return [Pattern(reference + pattern) for pattern in patterns]


def _matches(name: str, patterns: Sequence[Pattern]) -> bool:
    return any(pattern.matches(name) for pattern in patterns)


def _parents(mailboxes: Iterable[str]) -> set[str]:
    parents: set[str] = set()
    for name in mailboxes:
        end = name.rfind(DELIMITER)
        while end > 0 and (parent := name[:end]) not in parents:
            parents.add(parent)
            end = parent.rfind(DELIMITER)
    return parents


def _order(name: str) -> tuple[bool, str]:
    return name != INBOX and not name.startswith(INBOX + DELIMITER), name


def _in_order(mailboxes: Iterable[str]) -> list[str]:
    return sorted(mailboxes, key=_order)
