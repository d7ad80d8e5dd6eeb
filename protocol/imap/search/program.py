"""SEARCH: criteria become a program, the program finds messages (RFC 3501 6.4.4 and its extensions).

Compiling turns the criteria into a flat tree: NOT only at the leaves, AND and OR of any width, numbers and
dates resolved. In an AND the cheap keys run first and each looks only at what those before it left; in an OR
a key looks only at what none before it has found. So text is read last, and only of messages still in question.

Evaluation works on rows of the folder's columns, never on one message at a time. It is a generator that pauses
after every key and every batch of texts, so that one search does not hold up other sessions.
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

#: Levels of AND within OR within AND … after flattening.
MAX_DEPTH: Final = 50

#: Keys of one command: each may cost a pass over the folder.
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
    every: bool  # AND, else OR
    depth: int
    members: list[_Key | _Group] = field(default_factory=list)
    cost: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """Compiled criteria, good for one evaluation: numbers and ``$`` are those of the moment it was compiled."""

    root: _Group
    uses_numbers: bool  # no EXPUNGE may be sent with the answer, not even for UID SEARCH (view.emission)
    reads_text: bool  # it may take long


def compile_search(key: keys.SearchKey, view: View, now: int) -> Program:
    """The program of the criteria, in the eyes of a session; ``now`` is in seconds since 1970.

    MailError LIMIT if there are too many keys.
    """
    root = _Group(True, 1)
    groups = [root]
    uses_numbers = reads_text = False
    count = 0
    waiting: list[tuple[keys.SearchKey, bool, _Group]] = [(key, False, root)]
    while waiting:
        key, negated, group = waiting.pop()
        count += 1
        if isinstance(key, keys.Not):
            waiting.append((key.key, not negated, group))
        elif isinstance(key, keys.And | keys.Or):
            # NOT moves inwards by De Morgan; an AND in an AND is no level of its own.
            every = isinstance(key, keys.And) != negated
            if every != group.every:
                inner = _Group(every, group.depth + 1)
                group.members.append(inner)
                groups.append(inner)
                group = inner
            parts = key.keys if isinstance(key, keys.And) else (key.left, key.right)
            waiting += [(part, negated, group) for part in reversed(parts)]
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
    """The UIDs that match, ascending, as the generator's result; it yields how many texts each step read.

    Not all of them need to be known to the session yet: ``View.visible`` leaves those out.
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
    found: list[int] = []
    for member in node.members:
        if not rows:
            break
        matched = yield from _run(member, source, rows)
        found.extend(matched)
        rows = _without(rows, matched)
    found.sort()
    return found


def _without(rows: Rows, matched: Sequence[int]) -> Rows:
    if not matched:
        return rows
    if len(matched) == len(rows):
        return []
    drop = set(matched)
    return [row for row in rows if row not in drop]
