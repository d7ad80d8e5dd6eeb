"""THREAD by RFC 5256: identifiers, each step of REFERENCES, ORDEREDSUBJECT, the response."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from protocol.imap.search.sort import subject_sort_value
from protocol.imap.search.subject import base_subject
from protocol.imap.search.thread import (
    Forest,
    ThreadMessage,
    message_ids,
    reference_ids,
    thread_by_references,
    thread_by_subject,
    thread_response,
)


def message(
    number: int,
    message_id: str | None = None,
    references: str = "",
    subject: str = "",
    sent: int | None = None,
) -> ThreadMessage:
    """References are single letters; without a date messages are sent in the order of their numbers."""
    return ThreadMessage(
        number,
        message_id,
        list(references),
        number if sent is None else sent,
        subject_sort_value(subject),
        base_subject(subject).reply,
    )


def references(*messages: ThreadMessage) -> bytes:
    return _body(thread_response(thread_by_references(messages)))


def subjects(*messages: ThreadMessage) -> bytes:
    return _body(thread_response(thread_by_subject(messages)))


def _body(line: bytes) -> bytes:
    assert line.startswith(b"* THREAD")
    assert line.endswith(b"\r\n")
    return line[len(b"* THREAD") : -2].lstrip()


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("<a@b>", ["a@b"]),
        ('<"a"@b>', ["a@b"]),
        (r'<"a\"b"@c>', ['a"b@c']),
        ("<a@b> <c@d>\r\n <e@f>", ["a@b", "c@d", "e@f"]),
        ("<a@b><c@d>", ["a@b", "c@d"]),
        ("no ids here, <broken", []),
        ("<no-at-sign>", []),
        ("Your message of Monday <a@b> (Ada <ada@example.test>)", ["a@b", "ada@example.test"]),
        ("<<a@b>>", ["a@b"]),
        ("<A@b>", ["A@b"]),
    ],
)
def test_message_ids(value: str, ids: list[str]) -> None:
    assert message_ids(value) == ids


def test_reference_ids() -> None:
    assert reference_ids("<a@b> <c@d>", "<e@f>") == ["a@b", "c@d"]
    assert reference_ids("garbage", "<e@f> <g@h>") == ["e@f"]
    assert reference_ids(None, "<e@f>") == ["e@f"]
    assert reference_ids(None, None) == []


@pytest.mark.parametrize(
    "text", ["<" * 200_000, '<"' * 100_000, '<"' + "\\x" * 100_000, "<a" * 100_000, "<a@b" * 99_999]
)
def test_message_ids_are_linear(text: str) -> None:
    began = time.process_time()
    message_ids(text)
    assert time.process_time() - began < 20


def test_empty() -> None:
    assert thread_response(thread_by_references([])) == b"* THREAD\r\n"
    assert thread_response(thread_by_subject([])) == b"* THREAD\r\n"


def test_response_nests() -> None:
    forest = Forest([0, 1], {1: [2], 2: [3, 4], 3: [5], 4: [6], 6: [7]}, [2, 3, 6, 4, 44, 23, 7, 96])
    assert thread_response(forest) == b"* THREAD (2)(3 6 (4 23)(44 7 96))\r\n"
    assert thread_response(Forest([2], {2: [0, 1]}, [3, 5, 0])) == b"* THREAD ((3)(5))\r\n"


def test_chain_and_siblings() -> None:
    assert references(message(1, "a"), message(2, "b", "a"), message(3, "c", "ab")) == b"(1 2 3)"
    assert references(message(1, "a"), message(2, "b", "a"), message(3, "c", "a")) == b"(1 (2)(3))"


def test_replies_received_before_their_parent() -> None:
    assert references(message(1, "c", "ab"), message(2, "b", "a"), message(3, "a")) == b"(3 2 1)"


def test_missing_parents() -> None:
    # a single child of a missing message replaces it, two stay together (step 3)
    assert references(message(1, "b", "a")) == b"(1)"
    assert references(message(1, "b", "a"), message(2, "c", "a")) == b"((1)(2))"
    # a missing message between two others is skipped
    assert references(message(1, "a"), message(2, "c", "ab")) == b"(1 2)"
    # a missing message below another: all are under the topmost one
    assert references(message(1, "c", "ab"), message(2, "d", "ab"), message(3, "e", "a")) == b"((1)(2)(3))"
    assert references(message(1, "c", "ab"), message(2, "d", "ab")) == b"((1)(2))"


def test_truncated_references_are_corrected_by_the_message_itself() -> None:
    # message 1 makes c a child of a (step 1.A); the references of c override that (step 1.B)
    assert (
        references(message(1, "d", "ac"), message(2, "c", "ab"), message(3, "b", "a"), message(4, "a")) == b"(4 3 2 1)"
    )


def test_message_without_references_overrides_earlier_messages() -> None:
    assert references(message(1, "c", "ab"), message(2, "b"), message(3, "a")) == b"(2 1)(3)"
    assert references(message(1, "b"), message(2, "c", "ab"), message(3, "a")) == b"(3 1 2)"


def test_links_that_would_close_a_loop_are_omitted() -> None:
    assert references(message(1, "a", "a")) == b"(1)"
    assert references(message(1, "a", "b"), message(2, "b", "a")) == b"(2 1)"
    assert references(message(1, "a", "c"), message(2, "b", "a"), message(3, "c", "b")) == b"(3 1 2)"
    # the last link is omitted, even if the references of another message made the first ones
    assert references(message(1, "a"), message(2, "b", "ca"), message(3, "c", "b")) == b"(3 1 2)"
    assert references(message(1, "b", "ca"), message(2, "c", "b")) == b"(2 1)"
    # a link that the message itself overrides later counts until then
    assert references(message(1, "a", "ab"), message(2, "b")) == b"(1)(2)"


def test_duplicate_and_missing_ids() -> None:
    assert references(message(1, "a"), message(2, "a"), message(3, "b", "a")) == b"(1 3)(2)"
    assert references(message(1), message(2)) == b"(1)(2)"
    # ids are case-sensitive
    assert references(message(1, "a"), message(2, "b", "A")) == b"(1)(2)"


def test_siblings_by_date_then_number() -> None:
    assert references(message(1, "a"), message(2, "b", "a", sent=9), message(3, "c", "a", sent=5)) == b"(1 (3)(2))"
    assert references(message(1, "a", sent=9), message(2, "b", sent=9), message(3, "c", sent=3)) == b"(3)(1)(2)"
    # a dummy is sorted by its first child
    assert (
        references(message(1, "b", "a", sent=8), message(2, "c", "a", sent=3), message(3, "d", sent=5))
        == b"((2)(1))(3)"
    )


def test_threads_with_the_same_subject_are_merged() -> None:
    # a reply goes under the original
    assert references(message(1, subject="x"), message(2, subject="Re: x")) == b"(1 2)"
    assert references(message(1, subject="Re: x"), message(2, subject="X")) == b"(2 1)"
    # two originals, or two replies, become siblings
    assert references(message(1, subject="x"), message(2, subject="x")) == b"((1)(2))"
    assert references(message(1, subject="Re: x"), message(2, subject="Fwd: x")) == b"((1)(2))"
    # more of them join the dummy
    assert references(*[message(n, subject="x") for n in (1, 2, 3)]) == b"((1)(2)(3))"
    assert references(message(1, subject="x"), message(2, subject="x"), message(3, subject="Re: x")) == b"((1)(2)(3))"
    # empty subjects are not merged
    assert references(message(1), message(2, subject="Re:")) == b"(1)(2)"


def test_subjects_with_dummies() -> None:
    pair = (message(1, "b", "a", "x"), message(2, "c", "a", "y"))
    # the subject of a dummy is that of its first child; threads with this subject join it
    assert references(*pair, message(3, subject="Re: x")) == b"((1)(2)(3))"
    assert references(*pair, message(3, subject="x")) == b"((1)(2)(3))"
    # two dummies merge
    other = (message(3, "e", "d", "Re: x"), message(4, "f", "d", "z"))
    assert references(*pair, *other) == b"((1)(2)(3)(4))"


def test_subject_of_replies_inside_threads_does_not_matter() -> None:
    assert references(message(1, "a", "", "x"), message(2, "b", "a", "y"), message(3, "c", "", "y")) == b"(1 2)(3)"


def test_ordered_subject() -> None:
    assert subjects(message(1, subject="b"), message(2, subject="a"), message(3, subject="Re: b")) == b"(1 3)(2)"
    assert (
        subjects(
            message(1, subject="b", sent=9),
            message(2, subject="Re: b", sent=3),
            message(3, subject="b", sent=5),
        )
        == b"(2 (3)(1))"
    )
    assert subjects(message(1, sent=7), message(2, sent=7), message(3, subject="z", sent=1)) == b"(3)(1 2)"


def _chain(count: int) -> Sequence[ThreadMessage]:
    return [
        ThreadMessage(n, f"{n}@x", [f"{k}@x" for k in range(max(1, n - 5), n)], n, f"S{n}", False)
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize("backwards", [False, True])
def test_deep_chain(backwards: bool) -> None:
    messages = _chain(20_000)
    if backwards:
        messages = [m._replace(number=20_001 - m.number) for m in reversed(messages)]
    began = time.process_time()
    line = thread_response(thread_by_references(messages))
    assert time.process_time() - began < 20
    numbers = range(20_000, 0, -1) if backwards else range(1, 20_001)
    assert line == b"* THREAD (%s)\r\n" % b" ".join(b"%d" % n for n in numbers)


def test_long_cycle() -> None:
    """The first message replies to the last of 20,000 replies: the cost is not quadratic, every message occurs once."""
    first, *others = _chain(20_000)
    began = time.process_time()
    line = thread_response(thread_by_references([first._replace(references=["20000@x"]), *others]))
    assert time.process_time() - began < 20
    assert sorted(map(int, re.findall(rb"\d+", line))) == list(range(1, 20_001))


def test_deep_forks_and_one_subject() -> None:
    """20,000 levels with a fork at each, and 20,000 threads of one subject: no recursion, no quadratic cost."""
    forks = []
    for n in range(1, 20_001):
        forks.append(ThreadMessage(2 * n, f"{n}@x", [f"{n - 1}@x"], n, "", True))
        forks.append(ThreadMessage(2 * n + 1, None, [f"{n - 1}@x"], n, "", True))
    same = [ThreadMessage(n, None, [], n, "S", n % 2 == 0) for n in range(1, 20_001)]
    began = time.process_time()
    line = thread_response(thread_by_references(forks))
    assert line.count(b"(") == line.count(b")") > 20_000
    assert thread_response(thread_by_references(same)).startswith(b"* THREAD ((1 2)(3)")
    assert time.process_time() - began < 20
