"""THREAD: messages as conversations, by references or by subject (RFC 5256 3, BASE.6.4.THREAD).

Nodes are numbers: first the messages in mailbox order, then the dummies that stand for messages that are
referred to but not there. Nothing recurses, so a chain of 100,000 replies is as good as any other.

RFC 5256 step 1 goes message by message and leaves out a link that would close a loop. Only a link within a
circle of references can; for these alone the ancestors are searched, and no more than ``_LONGEST_SEARCH`` of
them altogether: beyond that, such links are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

# RFC 5322 3.6.4 msg-id; the local part may be quoted as in RFC 822.
_MESSAGE_ID = re.compile(r'<(?:([^<>\s"@]++)|"((?>(?:[^"\\]|\\.)*))")@([^<>\s@]++)>')
_ESCAPED = re.compile(r"\\(.)")
_NONE = -1
_LONGEST_SEARCH = 4_000_000


class ThreadMessage(NamedTuple):
    """What threading needs to know of a message; all but ``number`` can be kept from delivery on."""

    number: int  # UID or message number, as the answer will show it
    message_id: str | None  # the first of message_ids() of Message-ID
    references: Sequence[str]  # of reference_ids()
    sent: int  # sent date in UTC, or the internal date (RFC 5256 2.2)
    subject: str  # sort.subject_sort_value(): the base subject, ready to compare
    reply: bool  # base_subject().reply


class Forest(NamedTuple):
    """Threads in order: roots, children of each node that has any, and numbers (a dummy has none)."""

    roots: list[int]
    children: dict[int, list[int]]
    numbers: list[int]


def message_ids(value: str) -> list[str]:
    """The valid Message IDs of a header value, without brackets and needless quoting (RFC 5256 3)."""
    return [
        f"{plain or _ESCAPED.sub(_unescape, quoted)}@{domain}" for plain, quoted, domain in _MESSAGE_ID.findall(value)
    ]


def _unescape(match: re.Match[str]) -> str:
    return match[1]


def reference_ids(references: str | None, in_reply_to: str | None) -> list[str]:
    """A message's references, oldest first: References, or else the first ID of In-Reply-To (RFC 5256 3)."""
    return message_ids(references or "") or message_ids(in_reply_to or "")[:1]


def thread_by_references(messages: Sequence[ThreadMessage]) -> Forest:
    """THREAD=REFERENCES of messages in mailbox order (RFC 5256 3)."""
    parents = _link(messages)
    roots, children = _prune(parents, len(messages))
    return _finish(messages, *_gather(messages, roots, children))


def thread_by_subject(messages: Sequence[ThreadMessage]) -> Forest:
    """THREAD=ORDEREDSUBJECT of messages in mailbox order (RFC 5256 3)."""
    by_date = sorted(range(len(messages)), key=[message.sent for message in messages].__getitem__)
    first: dict[str, int] = {}
    children: dict[int, list[int]] = {}
    for node in by_date:
        head = first.setdefault(messages[node].subject, node)
        if head != node:
            children.setdefault(head, []).append(node)
    return Forest(list(first.values()), children, [message.number for message in messages])


# RFC 5256 3, REFERENCES step 1
def _link(messages: Sequence[ThreadMessage]) -> list[int]:
    """The parent of every node, ``_NONE`` for roots."""
    count = len(messages)
    nodes: dict[str, int] = {}
    for node, message in enumerate(messages):
        # Step 1.A: of equal Message IDs only the first counts, the others are as good as none.
        if message.message_id is not None:
            nodes.setdefault(message.message_id, node)
    total = count

    def dummy_or_message(message_id: str) -> int:
        nonlocal total
        node = nodes.get(message_id)
        if node is None:
            node = nodes[message_id] = total
            total += 1
        return node

    references = [[dummy_or_message(found) for found in message.references] for message in messages]
    circular = _circular(references, total)
    parents = [_NONE] * total
    left = _LONGEST_SEARCH

    def link(child: int, parent: int) -> None:
        nonlocal left
        if child in circular:
            above = parent
            while above in circular:
                left -= 1
                if above == child or left < 0:
                    return
                above = parents[above]
        parents[child] = parent

    for node, named in enumerate(references):
        # Step 1.A: each reference is the parent of the next.
        for parent, child in pairwise(named):
            if parents[child] == _NONE:
                link(child, parent)
        # Step 1.B: a message's own last reference is its parent, whatever other messages said.
        parents[node] = _NONE
        if named:
            link(node, named[-1])
    return parents


def _circular(references: Sequence[Sequence[int]], total: int) -> set[int]:
    """The nodes of all circles of references, and what is above them."""
    first = [_NONE] * total  # of almost all nodes the only parent
    others: dict[int, set[int]] = {}
    below = [0] * total
    for node, named in enumerate(references):
        for parent, child in pairwise([*named, node] if named else ()):
            known = first[child]
            if known == parent or parent in others.get(child, ()):
                continue
            if known == _NONE:
                first[child] = parent
            else:
                others.setdefault(child, set()).add(parent)
            below[parent] += 1
    ends = [node for node in range(total) if not below[node]]
    while ends:
        node = ends.pop()
        for parent in (first[node], *others.get(node, ())):
            if parent != _NONE:
                below[parent] -= 1
                if not below[parent]:
                    ends.append(parent)
    return {node for node in range(total) if below[node]}


# RFC 5256 3, REFERENCES steps 2 and 3
def _prune(parents: list[int], count: int) -> tuple[list[int], dict[int, list[int]]]:
    """Roots and children without the dummies, but for those that hold two or more messages together."""
    anchors: dict[int, int] = {}  # of a dummy: the nearest message above it, or its topmost dummy

    def anchor(node: int) -> int:
        path = []
        while node >= count and node not in anchors:
            path.append(node)
            if parents[node] == _NONE:
                anchors[node] = node
            else:
                node = parents[node]
        found = anchors.get(node, node)
        for passed in path:
            anchors[passed] = found
        return found

    roots: list[int] = []
    children: dict[int, list[int]] = {}
    for node in range(count):
        if parents[node] == _NONE:
            roots.append(node)
        else:
            children.setdefault(anchor(parents[node]), []).append(node)
    for node in [node for node in children if node >= count]:
        if len(children[node]) == 1:
            roots.extend(children.pop(node))
        else:
            roots.append(node)
    return roots, children


# RFC 5256 3, REFERENCES steps 4 and 5
def _gather(
    messages: Sequence[ThreadMessage], roots: list[int], children: dict[int, list[int]]
) -> tuple[list[int], dict[int, list[int]]]:
    """Threads of one subject become one thread."""
    count = len(messages)
    sent = [message.sent for message in messages]

    def head(node: int) -> int:
        return node if node < count else children[node][0]

    # Step 4: only here, and for dummies, does the order of children matter before the end.
    for node in roots:
        if node >= count:
            children[node].sort(key=lambda child: (sent[child], child))
    roots.sort(key=lambda node: (sent[head(node)], head(node)))
    # Step 5.B
    table: dict[str, int] = {}
    for node in roots:
        message = messages[head(node)]
        if not message.subject:
            continue
        known = table.setdefault(message.subject, node)
        if known < count and (node >= count or (messages[known].reply and not message.reply)):
            table[message.subject] = node
    # Step 5.C
    merged: set[int] = set()
    made: list[int] = []
    next_dummy = max([count - 1, *children]) + 1
    for node in roots:
        subject = messages[head(node)].subject
        if not subject or node in merged or table[subject] == node:
            continue
        known = table[subject]
        merged.add(node)
        if known >= count:
            children[known].extend(children.pop(node) if node >= count else [node])
        elif messages[node].reply and not messages[known].reply:
            children.setdefault(known, []).append(node)
        else:
            merged.add(known)
            children[next_dummy] = [known, node]
            table[subject] = next_dummy
            made.append(next_dummy)
            next_dummy += 1
    return [node for node in roots if node not in merged] + made, children


# RFC 5256 3, REFERENCES step 6
def _finish(messages: Sequence[ThreadMessage], roots: list[int], children: dict[int, list[int]]) -> Forest:
    count = len(messages)
    sent = [message.sent for message in messages]
    for siblings in children.values():
        siblings.sort(key=lambda child: (sent[child], child))
    # A dummy, which is only ever a root, goes by its first child.
    heads = {node: node if node < count else children[node][0] for node in roots}
    roots.sort(key=lambda node: (sent[heads[node]], heads[node]))
    dummies = max([count - 1, *children]) + 1 - count
    return Forest(roots, children, [message.number for message in messages] + [0] * dummies)


# RFC 5256 4, BASE.7.2.THREAD; 5, thread-data
def thread_response(forest: Forest) -> bytes:
    """``* THREAD (2)(3 6 (4 23)(44 7 96))``"""
    roots, children, numbers = forest
    out: list[bytes] = []
    waiting = roots[::-1]
    while waiting:
        node = waiting.pop()
        if node == _NONE:
            out.append(b")")
            continue
        out.append(b"(")
        while True:
            if numbers[node]:
                out.append(b"%d" % numbers[node])
            below = children.get(node)
            if not below:
                out.append(b")")
                break
            if numbers[node]:
                out.append(b" ")
            if len(below) > 1:
                waiting.append(_NONE)
                waiting.extend(reversed(below))
                break
            node = below[0]
    return b"* THREAD " + b"".join(out) + b"\r\n" if out else b"* THREAD\r\n"
