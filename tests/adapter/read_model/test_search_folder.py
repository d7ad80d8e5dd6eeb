"""SEARCH, SORT and THREAD over a real store: the same answers as going through every message, however much of it the
text index knows."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Iterable, Sequence
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.read_model import mailboxes as mailboxes_module
from adapter.read_model import search_engine
from adapter.read_model.mailboxes import CacheLimits, MailboxCache
from adapter.search import indexer
from adapter.search.searchable_text import SearchText, field_of
from adapter.search.text_index import MAX_INDEXED_CHARACTERS, NewText, TextIndex, ranges_of
from adapter.store import layout
from adapter.store.queries import text_index
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.imap.responses.envelope import encode_envelope
from protocol.imap.responses.envelope_decode import addresses, split_envelope, string
from protocol.imap.search import keys
from protocol.imap.search.collation import fold
from protocol.imap.search.program import compile_search
from protocol.imap.search.sort import SortCriterion, SortKey
from protocol.imap.session_view import View
from protocol.imap.wire.lexer import PLAIN
from protocol.mime.parser import scan
from protocol.mime.structure import envelope
from tests.support.mail.text_search import (
    NOW,
    check_text_search,
    indexed_messages,
    matching_uids,
    sample_mail,
    search,
    text_of,
)
from tests.support.mailboxes import open_folder, open_mailboxes
from tests.support.messages import message
from tests.support.stores import ADA, append, rows
from tests.support.waiting import until


def stop_filling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer.TextIndexer, "start", lambda self: None)


def fill(mailboxes: MailboxCache, message_ids: Sequence[str]) -> None:
    mailboxes._indexer._index_batch(message_ids)


# --- the texts -----------------------------------------------------------------------------------------------------


def test_text_is_decoded_part_by_part() -> None:
    octets = (
        b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nX-Folded: one\r\n\ttwo\r\nReferences: <A@b>\r\n"
        b"Content-Type: multipart/mixed; boundary=x\r\n\r\nnot this\r\n"
        b"--x\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        b"caf=E9 =\r\nau lait\r\n"
        b"--x\r\nContent-Type: application/pdf; name*=utf-8''pl%C3%A4ne.pdf\r\n"
        b"Content-Transfer-Encoding: base64\r\n\r\nc2VjcmV0\r\n"
        b"--x\r\nContent-Type: message/rfc822\r\n\r\nSubject: Inner\r\nFrom: eve@x.test\r\n\r\nINSIDE\r\n--x--\r\n"
    )
    text = text_of(octets)
    assert field_of(text.header, "subject") == "grüsse"
    assert field_of(text.header, "x-folded") == "one two"
    assert field_of(text.header, "x") is None
    assert field_of(text.header, "x-folded: one") is None
    assert text.references == "<A@b>"
    for part in ("café au lait", "pläne.pdf", "subject: inner", "from: eve@x.test", "inside"):
        assert part in text.body
    for part in ("not this", "secret", "c2vj", "grüsse"):
        assert part not in text.body


@given(st.binary(max_size=400))
def test_any_octets_yield_text(octets: bytes) -> None:
    text = text_of(octets)
    for part in (text.header, text.body, text.references):
        assert "\0" not in part
        part.encode("utf-8")
    for part in text[:2]:
        assert fold(part) == part or not part.isascii()


def test_several_fields_of_one_name() -> None:
    text = text_of(b"X: a\r\nY: b\r\nX:\r\nx: c\r\n\r\n")
    assert field_of(text.header, "x") == "a\n\nc"
    assert field_of(text.header, "y") == "b"


@given(st.binary(max_size=200), st.sampled_from((b"Subject", b"From", b"To", b"Date")))
def test_encoded_envelopes_are_split(value: bytes, name: bytes) -> None:
    octets = b"%b: %b\r\nFrom: Ada <ada@x.test>\r\n\r\n" % (name, value)
    made = envelope(scan(octets).headers)
    split = split_envelope(encode_envelope(made))
    values = [*map(string, split[:2]), *map(addresses, split[2:8]), *map(string, split[8:])]
    assert [_without_nul(part) for part in values] == [_without_nul(part) for part in made]


def _without_nul(value: object) -> object:
    return value.replace(b"\0", b"") if isinstance(value, bytes) else repr(value).replace("\\x00", "")


# --- the index -----------------------------------------------------------------------------------------------------

ALPHABET = st.sampled_from('ab"é\n😀 c')


@given(
    st.lists(st.tuples(st.text(ALPHABET, max_size=12), st.text(ALPHABET, max_size=30)), min_size=1, max_size=12),
    st.lists(st.text(ALPHABET, min_size=3, max_size=6), min_size=1, max_size=5),
)
def test_index_finds_exactly_the_matching_rows(texts: list[tuple[str, str]], needles: list[str]) -> None:
    root = f"/dev/shm/markpost-text-{os.getpid()}"
    os.makedirs(root, exist_ok=True)
    index = TextIndex(root)
    try:
        made = [NewText(f"m{at}", f"r{at % 3}", SearchText(*text, "")) for at, text in enumerate(texts)]
        ids = [one.message_id for one in made]
        assert index.add(ids, lambda lacking: made) == len(made)
        assert index.add(ids, lambda lacking: pytest.fail("all are indexed_messages")) == 0
        numbers = {row: message_id for message_id, row in index.rows(ids).items()}
        ranges = ranges_of(numbers)
        _compare(index, numbers, ranges, made, needles)
        index.remove(ids[::2])
        _compare(index, numbers, ranges, made[1::2], needles)
    finally:
        index.close()
        text_index.drop(root)


def _compare(
    index: TextIndex,
    numbers: dict[int, str],
    ranges: list[tuple[int, int]],
    made: Sequence[NewText],
    needles: Iterable[str],
) -> None:
    for needle in needles:
        for header, body in ((True, False), (False, True), (True, True)):
            matches = index.find(needle, ranges, header=header, body=body)
            assert matches is not None
            assert {numbers[row] for row in matches} == {
                one.message_id
                for one in made
                if (header and needle in one.text.header) or (body and needle in one.text.body)
            }


def test_needles_the_index_cannot_answer(tmp_path: object) -> None:
    index = TextIndex(str(tmp_path))
    try:
        assert index.find("ab", [(0, 1)], header=True, body=True) is None
        assert index.find("abc\0", [(0, 1)], header=True, body=True) is None
        assert index.find("ab\ud800", [(0, 1)], header=True, body=True) is None
        assert index.find("abc" * 500, [(0, 1)], header=True, body=True) == set()
    finally:
        index.close()


def test_ranges_of_many_accounts() -> None:
    assert ranges_of([]) == []
    rows_ = [account << 32 | number for account in (1, 2) for number in (5, 9)]
    assert ranges_of(rows_) == [(1 << 32 | 5, 1 << 32 | 9), (2 << 32 | 5, 2 << 32 | 9)]
    assert len(ranges_of([account << 32 | 1 for account in range(40)])) == 1


# --- whole searches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [0.0, 0.5, 1.0])
async def test_search_is_complete_at_every_state_of_the_index(
    store: Transport, monkeypatch: pytest.MonkeyPatch, indexed: float
) -> None:
    stop_filling(monkeypatch)
    sent = sample_mail(24)
    append(store, "INBOX", *sent)
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        ids = [row.message_id for row in rows(store)]
        if indexed:
            fill(mailboxes, random.Random(1).sample(ids, int(len(ids) * indexed)))
        await check_text_search(mailboxes, state, sent)


async def test_new_message_is_found_at_once_and_expunged_one_is_not(
    store: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_filling(monkeypatch)
    append(store, "INBOX", message(body="first needle\r\n"))
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        assert await search(mailboxes, state, keys.BodyKey("needle")) == [1]
        fill(mailboxes, [rows(store)[0].message_id])
        staged = store.stage(message("Nadel", "second needle\r\n", message_id="<new@x.test>"))
        await mailboxes.commit_staged(lambda: op.Append(ADA, "INBOX", [op.AppendItem(staged)]), 0)
        assert await search(mailboxes, state, keys.BodyKey("needle")) == [1, 2]
        assert await search(mailboxes, state, keys.HeaderKey("Message-ID", "<new@x.test>")) == [2]
        assert await search(mailboxes, state, keys.HeaderKey("subject", "NADEL")) == [2]
        await mailboxes.commit(op.Copy(ADA, state.id, [1], "INBOX"))
        assert await search(mailboxes, state, keys.BodyKey("first needle")) == [1, 3]
        await mailboxes.commit(op.Move(ADA, state.id, [1], "Trash"))
        assert await search(mailboxes, state, keys.BodyKey("needle")) == [2, 3]
        trash = await open_folder(mailboxes, "Trash")
        assert await search(mailboxes, trash, keys.BodyKey("needle")) == [1]


async def test_index_is_filled_in_the_background_and_drops_collected_messages(store: Transport) -> None:
    append(store, "INBOX", *sample_mail(5))
    async with open_mailboxes(store) as mailboxes:
        await until(lambda: len(indexed_messages(store)) == 5)
        append(store, "INBOX", *sample_mail(3))
        await until(lambda: len(indexed_messages(store)) == 8)
        state = await open_folder(mailboxes)
        await mailboxes.commit(op.ChangeFlags(ADA, state.id, [1, 2], "add", 8))
        await mailboxes.commit(op.Expunge(ADA, state.id))
        store.run(op.Collect(before=int(time.time()) + 10))
        await until(lambda: len(indexed_messages(store)) == 6)
        assert len(await search(mailboxes, state, keys.HeaderKey("x-odd", ""))) >= 1


async def test_searches_share_the_threads_in_time_slices(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_engine, "_SLICE_SECONDS", 0.0)
    monkeypatch.setattr(mailboxes_module, "_SEARCH_THREADS", 1)
    append(store, "INBOX", message(body="needle\r\n"), message())
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        assert await search(mailboxes, state, keys.BodyKey("needle")) == [1]
        ended: list[int] = []
        many = keys.And(tuple(keys.Not(keys.BodyKey(f"nothing {number}")) for number in range(300)))
        long = asyncio.create_task(search(mailboxes, state, many))
        long.add_done_callback(lambda _: ended.append(1))
        await asyncio.sleep(0)
        assert await search(mailboxes, state, keys.BodyKey("needle")) == [1]
        assert not ended
        assert await long == [1, 2]
        # a cancelled search ends
        long = asyncio.create_task(search(mailboxes, state, many))
        await asyncio.sleep(0)
        long.cancel()
        await until(lambda: long.done() and not mailboxes._search_threads._unfinished)


async def test_long_search_reports_its_progress(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_filling(monkeypatch)
    monkeypatch.setattr(search_engine, "_SLICE_SECONDS", 0.0)
    append(store, "INBOX", *[message(str(number)) for number in range(600)])
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        program = compile_search(keys.BodyKey("needle"), View(state.uids, state.modseq, state.flags, PLAIN), NOW)
        progress: list[int] = []
        assert await mailboxes.search(state, program, progress.append) == []
        assert progress[:3] == [256, 512, 600]


async def test_message_too_long_for_the_index_is_read(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_filling(monkeypatch)
    long = message(body="word " * (MAX_INDEXED_CHARACTERS // 4) + "needle\r\n")
    append(store, "INBOX", long, message(body="needle\r\n"), message())
    async with open_mailboxes(store, CacheLimits(texts=1000)) as mailboxes:
        state = await open_folder(mailboxes)
        fill(mailboxes, [row.message_id for row in rows(store)])
        assert len(indexed_messages(store)) == 3
        for _ in range(2):
            assert await search(mailboxes, state, keys.BodyKey("needle")) == [1, 2]
            assert mailboxes._texts._used_bytes <= 1000


def _damage(path: str, kind: str) -> None:
    if kind == "other version":
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE meta SET value = 0 WHERE key = 'version'")
        connection.close()
        return
    start = 0 if kind == "garbage" else 8192
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(b"\xff" * (os.path.getsize(path) - start - 100))


@pytest.mark.parametrize("damage", ["garbage", "other version", "torn"])
async def test_damaged_index_is_dropped_and_filled_again(store: Transport, damage: str) -> None:
    append(store, "INBOX", *sample_mail(6))
    path = layout.absolute(store.root, layout.TEXT_INDEX_FILE)
    async with open_mailboxes(store):
        await until(lambda: len(indexed_messages(store)) == 6)
    await asyncio.to_thread(_damage, path, damage)
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        for _ in range(3):
            assert await search(mailboxes, state, keys.BodyKey("alpha")) == matching_uids(
                sample_mail(6), lambda t: "alpha" in t.body
            )
        await until(lambda: len(indexed_messages(store)) == 6)


async def test_index_that_is_removed_while_open_is_created_again(store: Transport) -> None:
    append(store, "INBOX", *sample_mail(6))
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        await until(lambda: len(indexed_messages(store)) == 6)
        text_index.drop(store.root)
        assert await search(mailboxes, state, keys.BodyKey("alpha")) == matching_uids(
            sample_mail(6), lambda t: "alpha" in t.body
        )
    async with open_mailboxes(store):
        await until(lambda: len(indexed_messages(store)) == 6)


async def test_columns_of_the_folder(store: Transport) -> None:
    append(store, "INBOX", message(body="x" * 5000), message(), flags=1, keywords=("$Work",))
    append(store, "INBOX", message(), message().replace(b"16 Nov 2026", b"3 Feb 2020"), flags=4)
    append(store, "INBOX", message().replace(b"Date:", b"Undated:"))
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        stored = rows(store)
        cases: list[tuple[keys.SearchKey, list[int]]] = [
            (keys.FlagKey("\\Seen"), [1, 2]),
            (keys.KeywordKey("$work"), [1, 2]),
            (keys.KeywordKey("$other"), []),
            (keys.Not(keys.FlagKey("\\Flagged")), [1, 2, 5]),
            (keys.SizeKey(keys.SizeIs.LARGER, 4000), [1]),
            (keys.DateKey(keys.DateField.SENT, keys.When.BEFORE, date(2021, 1, 1)), [4]),
            (keys.DateKey(keys.DateField.SENT, keys.When.ON, date(2026, 11, 16)), [1, 2, 3]),
            (keys.DateKey(keys.DateField.INTERNAL, keys.When.SINCE, date(2020, 1, 1)), [1, 2, 3, 4, 5]),
            (keys.SavedKey(keys.When.BEFORE, date(2020, 1, 1)), []),
            (keys.SaveDateSupported(), [1, 2, 3, 4, 5]),
            (keys.ModSeqKey(stored[3].modseq), [4, 5]),
            (keys.EmailId(stored[2].message_id), [3]),
            (keys.ThreadId(stored[2].thread_id), [row.uid for row in stored if row.thread_id == stored[2].thread_id]),
            (keys.HeaderKey("from", "bob@EXAMPLE"), [1, 2, 3, 4, 5]),
            (keys.HeaderKey("to", "ada"), [1, 2, 3, 4, 5]),
            (keys.HeaderKey("bcc", ""), []),
            (keys.HeaderKey("date", "feb"), [4]),
        ]
        for key, matches in cases:
            assert await search(mailboxes, state, key) == matches, key


async def test_sort_and_thread(store: Transport) -> None:
    sent = [
        message("b", message_id="<1@x>", body="x" * 50),
        message("Re: a", message_id="<2@x>", in_reply_to="<9@x>").replace(b"Bob <bob", b"Zoe <zoe"),
        message("a", message_id="<9@x>", body="y").replace(b"08:00:00", b"07:00:00"),
        message("C", message_id="<3@x>", references=["<1@x>", "<7@x>"]).replace(b"Date:", b"Undated:"),
    ]
    append(store, "INBOX", *sent)
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)

        async def order(*criteria: SortCriterion) -> list[int]:
            return await mailboxes.sort(state, criteria, list(state.uids))

        assert await order(SortCriterion(SortKey.SUBJECT)) == [2, 3, 1, 4]
        assert await order(SortCriterion(SortKey.SUBJECT), SortCriterion(SortKey.DATE)) == [3, 2, 1, 4]
        assert await order(SortCriterion(SortKey.DISPLAYFROM, True)) == [2, 1, 3, 4]
        assert await order(SortCriterion(SortKey.FROM)) == [1, 3, 4, 2]
        assert (await order(SortCriterion(SortKey.SIZE)))[-1] == 1
        assert await order(SortCriterion(SortKey.ARRIVAL, True)) == [1, 2, 3, 4]
        forest = await mailboxes.thread(state, b"REFERENCES", list(state.uids), [10, 20, 30, 40])
        assert sorted(forest.numbers[root] for root in forest.roots) == [10, 30]
        assert {
            forest.numbers[up]: [forest.numbers[down] for down in below] for up, below in forest.children.items()
        } == {
            10: [40],
            30: [20],
        }
        by_subject = await mailboxes.thread(state, b"ORDEREDSUBJECT", list(state.uids), list(state.uids))
        assert len(by_subject.roots) == 3
