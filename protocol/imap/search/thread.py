"""THREAD: messages as conversations, by references or by subject (RFC 5256 3, BASE.6.4.THREAD).

Nodes are numbers: first the messages in mailbox order, then dummies for missing messages that others refer to. Nothing
recurses, so there is no limit on the depth of a thread.

RFC 5256 step 1 processes message by message and omits a link that would close a loop. Only a link within a cycle of
references can close one; only for these the ancestors are searched, at most ``_MAX_ANCESTORS`` in total. Beyond that
limit all such links are omitted.
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
_MAX_ANCESTORS = 4_000_000


class ThreadMessage(NamedTuple):
    """The input of threading; all fields but ``number`` can be computed at delivery."""

    number: int  # UID or message number for the response
    message_id: str | None  # the first of message_ids() of Message-ID
    references: Sequence[str]  # of reference_ids()
    sent: int  # sent date in UTC, or the internal date (RFC 5256 2.2)
    subject: str  # sort.subject_sort_value(): the sort key of the base subject
    reply: bool  # base_subject().reply


class Forest(NamedTuple):
    """Threads in order: roots, children of each node that has any, and numbers (0 for a dummy)."""

    roots: list[int]
    children: dict[int, list[int]]
    numbers: list[int]


def message_ids(value: str) -> list[str]:
    """Extract the valid Message IDs of a header value, without brackets and redundant quoting (RFC 5256 3)."""
    return [
        f"{plain or _ESCAPED.sub(_unescape, quoted)}@{domain}" for plain, quoted, domain in _MESSAGE_ID.findall(value)
    ]


def _unescape(match: re.Match[str]) -> str:
    return match[1]


def reference_ids(references: str | None, in_reply_to: str | None) -> list[str]:
    """Extract a message's references, oldest first: References, else the first ID of In-Reply-To (RFC 5256 3)."""
    return message_ids(references or "") or message_ids(in_reply_to or "")[:1]


def thread_by_references(messages: Sequence[ThreadMessage]) -> Forest:
    """Thread messages in mailbox order by THREAD=REFERENCES (RFC 5256 3)."""
    parents = _link(messages)
    roots, children = _prune(parents, len(messages))
    return _finish(messages, *_gather(messages, roots, children))


def thread_by_subject(messages: Sequence[ThreadMessage]) -> Forest:
    """Thread messages in mailbox order by THREAD=ORDEREDSUBJECT (RFC 5256 3)."""
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
    """Return the parent of every node, ``_NONE`` for roots."""
    count = len(messages)
    nodes: dict[str, int] = {}
    for node, message in enumerate(messages):
        # Step 1.A: of equal Message IDs only the first counts, the others are ignored.
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

    references = [[dummy_or_message(message_id) for message_id in message.references] for message in messages]
    in_cycle = _nodes_in_cycles(references, total)
    parents = [_NONE] * total
    left = _MAX_ANCESTORS

    def link(child: int, parent: int) -> None:
        nonlocal left
        if child in in_cycle:
            ancestor = parent
            while ancestor in in_cycle:
                left -= 1
                if ancestor == child or left < 0:
                    return
                ancestor = parents[ancestor]
        parents[child] = parent

    for node, chain in enumerate(references):
        # Step 1.A: each reference is the parent of the next.
        for parent, child in pairwise(chain):
            if parents[child] == _NONE:
                link(child, parent)
        # Step 1.B: a message's own last reference is its parent; it overrides the references of other messages.
        parents[node] = _NONE
        if chain:
            link(node, chain[-1])
    return parents


def _nodes_in_cycles(references: Sequence[Sequence[int]], total: int) -> set[int]:
    """Return the nodes in all cycles of references, and their ancestors."""
    first = [_NONE] * total  # the only parent of nearly all nodes
    others: dict[int, set[int]] = {}
    child_count = [0] * total
    for node, chain in enumerate(references):
        for parent, child in pairwise([*chain, node] if chain else ()):
            first_parent = first[child]
            if first_parent == parent or parent in others.get(child, ()):
                continue
            if first_parent == _NONE:
                first[child] = parent
            else:
                others.setdefault(child, set()).add(parent)
            child_count[parent] += 1
    leaves = [node for node in range(total) if not child_count[node]]
    while leaves:
        node = leaves.pop()
        for parent in (first[node], *others.get(node, ())):
            if parent != _NONE:
                child_count[parent] -= 1
                if not child_count[parent]:
                    leaves.append(parent)
    return {node for node in range(total) if child_count[node]}


# RFC 5256 3, REFERENCES steps 2 and 3
def _prune(parents: list[int], count: int) -> tuple[list[int], dict[int, list[int]]]:
    """Return roots and children, without dummies except those that are the root of two or more messages."""
    anchors: dict[int, int] = {}  # of a dummy: its nearest ancestor that is a message, or its topmost dummy

    def anchor(node: int) -> int:
        path = []
        while node >= count and node not in anchors:
            path.append(node)
            if parents[node] == _NONE:
                anchors[node] = node
            else:
                node = parents[node]
        nearest = anchors.get(node, node)
        for dummy in path:
            anchors[dummy] = nearest
        return nearest

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
    """Merge threads with the same subject."""
    count = len(messages)
    sent = [message.sent for message in messages]

    def head(node: int) -> int:
        return node if node < count else children[node][0]

    # Step 4: before the end, the order of children matters only here, for dummies.
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
        other = table.setdefault(message.subject, node)
        if other < count and (node >= count or (messages[other].reply and not message.reply)):
            table[message.subject] = node
    # Step 5.C
    merged: set[int] = set()
    new_roots: list[int] = []
    next_dummy = max([count - 1, *children]) + 1
    for node in roots:
        subject = messages[head(node)].subject
        if not subject or node in merged or table[subject] == node:
            continue
        other = table[subject]
        merged.add(node)
        if other >= count:
            children[other].extend(children.pop(node) if node >= count else [node])
        elif messages[node].reply and not messages[other].reply:
            children.setdefault(other, []).append(node)
        else:
            merged.add(other)
            children[next_dummy] = [other, node]
            table[subject] = next_dummy
            new_roots.append(next_dummy)
            next_dummy += 1
    return [node for node in roots if node not in merged] + new_roots, children


# RFC 5256 3, REFERENCES step 6
def _finish(messages: Sequence[ThreadMessage], roots: list[int], children: dict[int, list[int]]) -> Forest:
    count = len(messages)
    sent = [message.sent for message in messages]
    for siblings in children.values():
        siblings.sort(key=lambda child: (sent[child], child))
    # A dummy, which is always a root, is sorted by its first child.
    heads = {node: node if node < count else children[node][0] for node in roots}
    roots.sort(key=lambda node: (sent[heads[node]], heads[node]))
    dummies = max([count - 1, *children]) + 1 - count
    return Forest(roots, children, [message.number for message in messages] + [0] * dummies)


# RFC 5256 4, BASE.7.2.THREAD; 5, thread-data
def thread_response(forest: Forest) -> bytes:
    """``* THREAD (2)(3 6 (4 23)(44 7 96))``"""
    roots, children, numbers = forest
    out: list[bytes] = []
    stack = roots[::-1]
    while stack:
        node = stack.pop()
        if node == _NONE:
            out.append(b")")
            continue
        out.append(b"(")
        while True:
            if numbers[node]:
                out.append(b"%d" % numbers[node])
            replies = children.get(node)
            if not replies:
                out.append(b")")
                break
            if numbers[node]:
                out.append(b" ")
            if len(replies) > 1:
                stack.append(_NONE)
                stack.extend(reversed(replies))
                break
            node = replies[0]
    return b"* THREAD " + b"".join(out) + b"\r\n" if out else b"* THREAD\r\n"
