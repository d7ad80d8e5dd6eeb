"""SEARCH against a model that evaluates every message by itself, for random folders and random criteria."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import MailError, Reason
from protocol.imap.flags import FlagTable
from protocol.imap.search import keys
from protocol.imap.search.collation import fold
from protocol.imap.search.program import MAX_KEYS, Program, compile_search, search
from protocol.imap.search.source import Candidates, Scope, SearchSource
from protocol.imap.sequence_set import STAR
from protocol.imap.session_view import View
from protocol.imap.wire.lexer import PLAIN

NOW = 1_800_000_000
DAY = 86400


@dataclass(frozen=True)
class Message:
    uid: int
    flags: frozenset[str]
    internal: int
    saved: int
    sent: date | None
    size: int
    modseq: int
    email: str
    thread: str
    subject: str | None
    body: str


class Source:
    """A folder in memory. ``indexed`` UIDs are in a text index, which reports half of them only as possible matches."""

    def __init__(self, messages: Sequence[Message], saves: bool, indexed: frozenset[int] | None) -> None:
        self.messages = messages
        self.uids = array("I", [m.uid for m in messages])
        self.table = FlagTable()
        self.masks = [self.table.mask(m.flags) for m in messages]
        self.saves = saves
        self.indexed = indexed
        self.read = 0

    def flags(self) -> Sequence[int]:
        return self.masks

    def flag_bit(self, name: str) -> int:
        return self.table.bit(name)

    def internal_dates(self) -> Sequence[int]:
        return [m.internal for m in self.messages]

    def save_dates(self) -> Sequence[int] | None:
        return [m.saved for m in self.messages] if self.saves else None

    def sent_days(self) -> Sequence[int]:
        return [m.sent.toordinal() if m.sent else 0 for m in self.messages]

    def sizes(self) -> Sequence[int]:
        return [m.size for m in self.messages]

    def modseqs(self) -> Sequence[int]:
        return [m.modseq for m in self.messages]

    def email_ids(self) -> Sequence[str]:
        return [m.email for m in self.messages]

    def thread_ids(self) -> Sequence[str]:
        return [m.thread for m in self.messages]

    def header(self, message: Message, name: str) -> str | None:
        return fold(message.subject) if name == "subject" and message.subject is not None else None

    def text(self, message: Message) -> str:
        return (self.header(message, "subject") or "") + "\n" + fold(message.body)

    def headers(self, name: str, rows: Sequence[int]) -> Iterable[str | None]:
        return [self.header(self.messages[row], name) for row in rows]

    def bodies(self, rows: Sequence[int]) -> Iterable[str]:
        self.read += len(rows)
        return (fold(self.messages[row].body) for row in rows)

    def texts(self, rows: Sequence[int]) -> Iterable[str]:
        self.read += len(rows)
        return (self.text(self.messages[row]) for row in rows)

    def candidates(self, scope: Scope, name: str, needle: str) -> Candidates | None:
        if self.indexed is None or scope is Scope.HEADER:
            return None
        tail = {m.uid for m in self.messages if m.uid not in self.indexed}
        hits = {
            m.uid
            for m in self.messages
            if m.uid in self.indexed and needle in (fold(m.body) if scope is Scope.BODY else self.text(m))
        }
        certain = {uid for uid in hits if uid % 2}
        return Candidates(certain, (hits - certain) | tail)


def evaluate(program: Program, source: SearchSource) -> list[int]:
    """Return the UIDs that match, ascending."""
    steps = search(program, source)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            uids: list[int] = done.value
            return uids


def matches(key: keys.SearchKey, m: Message, source: Source, saved: set[int]) -> bool:
    last = len(source.messages)
    number = source.messages.index(m) + 1
    day = date(1970, 1, 1).toordinal()
    match key:
        case keys.All():
            return True
        case keys.And(parts):
            return all(matches(part, m, source, saved) for part in parts)
        case keys.Or(left, right):
            return matches(left, m, source, saved) or matches(right, m, source, saved)
        case keys.Not(inner):
            return not matches(inner, m, source, saved)
        case keys.FlagKey(name) | keys.KeywordKey(name):
            return name.lower() in {flag.lower() for flag in m.flags}
        case keys.DateKey(keys.DateField.INTERNAL, when, on):
            return compare(when, m.internal // DAY + day, on)
        case keys.DateKey(_, when, on):
            return m.sent is not None and compare(when, m.sent.toordinal(), on)
        case keys.SavedKey(when, on):
            return compare(when, (m.saved if source.saves else m.internal) // DAY + day, on)
        case keys.SaveDateSupported():
            return source.saves
        case keys.SizeKey(size_is, octets):
            return m.size > octets if size_is is keys.SizeIs.LARGER else m.size < octets
        case keys.HeaderKey(name, text):
            return name.lower() == "subject" and m.subject is not None and fold(text) in fold(m.subject)
        case keys.BodyKey(text):
            return fold(text) in fold(m.body)
        case keys.TextKey(text):
            return fold(text) in source.text(m)
        case keys.SeqKey(ranges):
            return any(between(number, first, final, last) for first, final in ranges)
        case keys.UidKey(ranges):
            return any(between(m.uid, first, final, source.messages[-1].uid) for first, final in ranges)
        case keys.ResultKey():
            return m.uid in saved
        case keys.ModSeqKey(modseq):
            return m.modseq >= modseq
        case keys.Within(age, seconds):
            return (m.internal >= NOW - seconds) == (age is keys.Age.YOUNGER)
        case keys.EmailId(value):
            return m.email == value
        case keys.ThreadId(value):
            return m.thread == value
    raise AssertionError(key)


def compare(when: keys.When, day: int, on: date) -> bool:
    if when is keys.When.BEFORE:
        return day < on.toordinal()
    return day == on.toordinal() if when is keys.When.ON else day >= on.toordinal()


def between(number: int, first: int, last: int, largest: int) -> bool:
    low, high = sorted((first or largest, last or largest))
    return low <= number <= high


WORDS = st.sampled_from(["Plan", "GRÜSSE", "grüße", "x", "plan x", "", "é", "e\u0301"])
DAYS = st.integers(0, 4).map(lambda n: datetime.fromtimestamp(NOW - n * DAY, UTC).date())
TIMES = st.integers(0, 5 * DAY).map(lambda ago: NOW - ago)
FLAGS = st.sampled_from(["\\Seen", "\\Deleted", "$Junk"])


@st.composite
def folders(draw: st.DrawFn) -> Source:
    uids = sorted(draw(st.sets(st.integers(1, 30), max_size=12)))
    messages = [
        Message(
            uid,
            draw(st.frozensets(FLAGS)),
            draw(TIMES),
            draw(TIMES),
            draw(st.none() | DAYS),
            draw(st.integers(0, 5)),
            draw(st.integers(1, 5)),
            draw(st.sampled_from(["e1", "e2"])),
            draw(st.sampled_from(["t1", "t2"])),
            draw(st.none() | WORDS),
            draw(WORDS),
        )
        for uid in uids
    ]
    return Source(messages, draw(st.booleans()), draw(st.none() | st.frozensets(st.sampled_from([*uids, 99]))))


def criteria(count: int) -> st.SearchStrategy[keys.SearchKey]:
    number = st.integers(0, max(count, 1) if count else 0)
    uid = st.integers(0, 31)
    leaves: st.SearchStrategy[keys.SearchKey] = st.one_of(
        st.just(keys.All()),
        FLAGS.map(keys.FlagKey),
        st.sampled_from(["$junk", "unknown"]).map(keys.KeywordKey),
        st.just(keys.FlagKey("\\Recent")),
        st.builds(keys.DateKey, st.sampled_from(keys.DateField), st.sampled_from(keys.When), DAYS),
        st.builds(keys.SavedKey, st.sampled_from(keys.When), DAYS),
        st.just(keys.SaveDateSupported()),
        st.builds(keys.SizeKey, st.sampled_from(keys.SizeIs), st.integers(0, 5)),
        st.builds(keys.HeaderKey, st.sampled_from(["Subject", "X-None"]), WORDS),
        WORDS.map(keys.BodyKey),
        WORDS.map(keys.TextKey),
        st.lists(st.tuples(number, number), min_size=1, max_size=3).map(lambda r: keys.SeqKey(tuple(r))),
        st.lists(st.tuples(uid, uid), min_size=1, max_size=3).map(lambda r: keys.UidKey(tuple(r))),
        st.just(keys.ResultKey()),
        st.integers(0, 6).map(keys.ModSeqKey),
        st.builds(keys.Within, st.sampled_from(keys.Age), st.integers(1, 5 * DAY)),
        st.sampled_from(["e1", "E1"]).map(keys.EmailId),
        st.sampled_from(["t2", "none"]).map(keys.ThreadId),
    )
    return st.recursive(
        leaves,
        lambda inner: (
            inner.map(keys.Not)
            | st.builds(keys.Or, inner, inner)
            | st.lists(inner, max_size=3).map(lambda parts: keys.And(tuple(parts)))
        ),
        max_leaves=8,
    )


@given(st.data(), folders())
@settings(max_examples=150, deadline=None)
def test_program_equals_evaluation_message_by_message(data: st.DataObject, source: Source) -> None:
    view = View(source.uids, 1, source.table, PLAIN)
    saved = data.draw(st.sets(st.sampled_from(list(source.uids)))) if len(source.uids) else set()
    view.save_result(sorted(saved))
    key = data.draw(criteria(len(source.uids)))
    program = compile_search(key, view, NOW)
    expected = [m.uid for m in source.messages if matches(key, m, source, saved)]
    assert evaluate(program, source) == expected
    assert program.uses_numbers == ("SeqKey(ranges" in repr(key))
    assert not source.read or program.reads_text


def folder(count: int, **changes: object) -> tuple[Source, View]:
    plain = Message(1, frozenset(), NOW, NOW, None, 1, 1, "e", "t", None, "body")
    messages = [Message(**{**plain.__dict__, **changes, "uid": uid}) for uid in range(1, count + 1)]
    source = Source(messages, True, None)
    return source, View(source.uids, 1, source.table, PLAIN)


def test_text_is_read_only_where_it_matters() -> None:
    source, view = folder(1000)
    key = keys.And((keys.BodyKey("body"), keys.UidKey(((10, 19),)), keys.SizeKey(keys.SizeIs.SMALLER, 5)))
    assert evaluate(compile_search(key, view, NOW), source) == list(range(10, 20))
    assert source.read == 10
    key2 = keys.Or(keys.TextKey("nothing"), keys.SizeKey(keys.SizeIs.SMALLER, 5))
    assert len(evaluate(compile_search(key2, view, NOW), source)) == 1000
    assert source.read == 10


def test_search_yields_while_it_reads_texts() -> None:
    source, view = folder(1000)
    steps = search(compile_search(keys.BodyKey("body"), view, NOW), source)
    read = list(steps)
    assert sum(read) == 1000
    assert max(read) < 1000


@pytest.mark.parametrize(
    "wrap", [lambda k: keys.Not(k), lambda k: keys.Or(keys.FlagKey("x"), k), lambda k: keys.And((k,))]
)
def test_depth_without_alternation_is_free(wrap: object) -> None:
    assert callable(wrap)
    source, view = folder(3)
    key: keys.SearchKey = keys.All()
    for _ in range(400):
        key = wrap(key)
    assert evaluate(compile_search(key, view, NOW), source) == [1, 2, 3]


def test_too_deep_or_too_many_keys_are_refused() -> None:
    _, view = folder(1)
    key: keys.SearchKey = keys.All()
    for _ in range(100):
        key = keys.Or(keys.All(), keys.Not(keys.Or(keys.All(), key)))
    with pytest.raises(MailError) as deep:
        compile_search(key, view, NOW)
    assert deep.value.reason is Reason.LIMIT
    with pytest.raises(MailError):
        compile_search(keys.And((keys.All(),) * (MAX_KEYS + 1)), view, NOW)


def test_unknown_numbers_match_nothing() -> None:
    source, view = folder(3)
    assert evaluate(compile_search(keys.SeqKey(((4, 4),)), view, NOW), source) == []
    assert evaluate(compile_search(keys.SeqKey(((2, 999),)), view, NOW), source) == [2, 3]
    assert evaluate(compile_search(keys.UidKey(((9, 9),)), view, NOW), source) == []
    assert evaluate(compile_search(keys.UidKey(((9, STAR),)), view, NOW), source) == [3]
