"""SEARCH: compilation of the criteria to a program, and its execution (RFC 3501 6.4.4 and its extensions).

The program is a flat tree: NOT only at the leaves, AND and OR of any width, numbers and dates resolved. In an AND cheap
keys run first, and each runs only on the rows that the previous ones matched; in an OR each runs only on the rows that
none has matched yet. Text is therefore read last, and only of messages that can still change the result.

Execution works on rows of the folder's columns, not on single messages. It is a generator that yields after every key
and every batch of texts, so that a search does not block other sessions.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.errors import MailError, Reason
from protocol.imap.search import keys
from protocol.imap.search.predicates import HasText, Leaf, Rows, leaf_of
from protocol.imap.search.source import SearchSource
from protocol.imap.session_view import View

#: Nested levels of AND and OR after flattening.
MAX_DEPTH: Final = 50

#: Keys of one command: each may scan the folder.
MAX_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Key:
    leaf: Leaf
    negated: bool

    @property
    def cost(self) -> int:
        return self.leaf.cost


@dataclass(slots=True)
class _Group:
    every: bool  # True: AND, False: OR
    depth: int
    members: list[_Key | _Group] = field(default_factory=list)
    cost: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """Compiled criteria, for one execution: message numbers and ``$`` are resolved when it is compiled."""

    root: _Group
    uses_numbers: bool  # the response must not announce EXPUNGE, not even for UID SEARCH (session_view.emission)
    reads_text: bool  # the execution may be slow


def compile_search(key: keys.SearchKey, view: View, now: int) -> Program:
    """Compile criteria for a session's view; ``now``: seconds since 1970.

    Raises MailError LIMIT if there are too many keys.
    """
    root = _Group(True, 1)
    groups = [root]
    uses_numbers = reads_text = False
    count = 0
    stack: list[tuple[keys.SearchKey, bool, _Group]] = [(key, False, root)]
    while stack:
        key, negated, group = stack.pop()
        count += 1
        if isinstance(key, keys.Not):
            stack.append((key.key, not negated, group))
        elif isinstance(key, keys.And | keys.Or):
            # NOT moves inwards by De Morgan's laws; an AND in an AND is merged into it.
            every = isinstance(key, keys.And) != negated
            if every != group.every:
                inner = _Group(every, group.depth + 1)
                group.members.append(inner)
                groups.append(inner)
                group = inner
            parts = key.keys if isinstance(key, keys.And) else (key.left, key.right)
            stack += [(part, negated, group) for part in reversed(parts)]
        else:
            uses_numbers = uses_numbers or isinstance(key, keys.SeqKey)
            leaf = leaf_of(key, view, now)
            reads_text = reads_text or isinstance(leaf, HasText)
            group.members.append(_Key(leaf, negated))
        if count > MAX_KEYS or group.depth > MAX_DEPTH:
            raise MailError(Reason.LIMIT, "search criteria")
    for group in reversed(groups):  # inner groups first
        group.members.sort(key=lambda member: member.cost)
        group.cost = max([member.cost for member in group.members], default=0)
    return Program(root, uses_numbers, reads_text)


def search(program: Program, source: SearchSource) -> Generator[int, None, list[int]]:
    """Return the matching UIDs, ascending; yields the number of texts read in each step.

    Some may not be announced to the session yet: ``View.visible`` filters them.
    """
    uids = source.uids
    rows = yield from _run(program.root, source, range(len(uids)))
    return [uids[row] for row in rows]


def _run(node: _Key | _Group, source: SearchSource, rows: Rows) -> Generator[int, None, Rows]:
    if isinstance(node, _Key):
        leaf = node.leaf
        matched = (yield from leaf.scan(source, rows)) if isinstance(leaf, HasText) else leaf.match(source, rows)
        yield 0
        return _without(rows, matched) if node.negated else matched
    if node.every:
        for member in node.members:
            if not rows:
                break
            rows = yield from _run(member, source, rows)
        return rows
    union: list[int] = []
    for member in node.members:
        if not rows:
            break
        matched = yield from _run(member, source, rows)
        union.extend(matched)
        rows = _without(rows, matched)
    union.sort()
    return union


def _without(rows: Rows, matched: Sequence[int]) -> Rows:
    if not matched:
        return rows
    if len(matched) == len(rows):
        return []
    dropped = set(matched)
    return [row for row in rows if row not in dropped]
