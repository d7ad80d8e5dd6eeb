"""THREAD=REFERENCES against a second implementation that follows RFC 5256 3 to the letter, step by step."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from protocol.imap.search.thread import ThreadMessage, thread_by_references, thread_response


@dataclass(eq=False)
class Node:
    message: ThreadMessage | None = None
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    def descends_from(self, other: Node) -> bool:
        node: Node | None = self
        while node is not None:
            if node is other:
                return True
            node = node.parent
        return False

    def attach(self, child: Node) -> None:
        child.parent = self
        self.children.append(child)

    def detach(self) -> None:
        if self.parent is not None:
            self.parent.children.remove(self)
            self.parent = None

    @property
    def first(self) -> ThreadMessage:
        return self.message or min((c.first for c in self.children), key=lambda m: (m.sent, m.number))


def letter_by_letter(messages: list[ThreadMessage]) -> bytes:
    nodes: dict[str, Node] = {}
    own = [Node(message) for message in messages]
    for node in own:
        assert node.message is not None
        if node.message.message_id is not None:
            nodes.setdefault(node.message.message_id, node)
    for node in own:
        assert node.message is not None
        chain = [nodes.setdefault(reference, Node()) for reference in node.message.references]
        for parent, child in pairwise(chain):
            if child.parent is None and not parent.descends_from(child):
                parent.attach(child)
        node.detach()
        if chain and not chain[-1].descends_from(node):
            chain[-1].attach(node)
    root = Node()
    every = list({id(node): node for node in [*own, *nodes.values()]}.values())
    for node in every:
        if node.parent is None:
            root.attach(node)
    prune(root, root)
    gather(root)
    sort(root)
    return b"* THREAD" + (b" " + b"".join(map(show, root.children)) if root.children else b"") + b"\r\n"


def prune(node: Node, root: Node) -> None:
    for child in list(node.children):
        prune(child, root)
        if child.message is None and (not child.children or node is not root or len(child.children) == 1):
            position = node.children.index(child)
            node.children[position : position + 1] = child.children
            for grandchild in child.children:
                grandchild.parent = node


def date(node: Node) -> tuple[int, int]:
    return node.first.sent, node.first.number


def gather(root: Node) -> None:
    root.children.sort(key=date)
    table: dict[str, Node] = {}
    for node in root.children:
        subject = node.first.subject
        if not subject:
            continue
        other = table.setdefault(subject, node)
        if other.message is not None and (node.message is None or (other.message.reply and not node.message.reply)):
            table[subject] = node
    for node in list(root.children):
        subject = node.first.subject
        if node.parent is not root or not subject or table[subject] is node:
            continue
        other = table[subject]
        if other.message is None:
            node.detach()
            for moved in node.children if node.message is None else [node]:
                other.attach(moved)
        elif node.message is not None and node.message.reply and not other.message.reply:
            node.detach()
            other.attach(node)
        else:
            dummy = Node()
            root.attach(dummy)
            node.detach()
            other.detach()
            dummy.attach(other)
            dummy.attach(node)
            table[subject] = dummy


def sort(node: Node) -> None:
    for child in node.children:
        sort(child)
    node.children.sort(key=date)


def show(node: Node) -> bytes:
    return b"(" + members(node) + b")"


def members(node: Node) -> bytes:
    number = b"%d" % node.message.number if node.message else b""
    if not node.children:
        return number
    space = b" " if number else b""
    if len(node.children) == 1:
        return number + space + members(node.children[0])
    return number + space + b"".join(map(show, node.children))


IDS = "abcdefgh"


@st.composite
def mailboxes(draw: st.DrawFn, acyclic: bool) -> list[ThreadMessage]:
    messages = []
    for number in range(1, draw(st.integers(0, 9)) + 1):
        message_id = draw(st.none() | st.sampled_from(IDS))
        # Acyclic: references are in alphabetical order and precede the message's own letter.
        allowed = IDS if not acyclic else IDS[: IDS.index(message_id)] if message_id else IDS
        references = draw(st.lists(st.sampled_from(allowed), max_size=4, unique=acyclic)) if allowed else []
        messages.append(
            ThreadMessage(
                number,
                message_id,
                sorted(references) if acyclic else references,
                draw(st.integers(0, 5)),
                draw(st.sampled_from(["", "X", "Y"])),
                draw(st.booleans()),
            )
        )
    return messages


@given(mailboxes(acyclic=True) | mailboxes(acyclic=False))
def test_threads_equal_those_of_the_reference_implementation(messages: list[ThreadMessage]) -> None:
    assert thread_response(thread_by_references(messages)) == letter_by_letter(messages)


@given(mailboxes(acyclic=False))
def test_every_message_once_whatever_the_references(messages: list[ThreadMessage]) -> None:
    line = thread_response(thread_by_references(messages))
    assert sorted(map(int, re.findall(rb"\d+", line))) == [message.number for message in messages]
    assert line.count(b"(") == line.count(b")")
    assert not re.search(rb"\(\(\d+\)\)|\( | \)", line)
