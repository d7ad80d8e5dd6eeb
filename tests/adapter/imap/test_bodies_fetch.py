"""FETCH: every item of every message follows from its octets, for generated MIME, small and large."""

from __future__ import annotations

import base64
import os
import quopri
import random
import sqlite3
import time
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.read_model.fetch import bodies, transfer_stream
from adapter.read_model.fetch.plan import plan_of
from adapter.read_model.mailboxes import CacheLimits
from adapter.store import layout
from adapter.store.flags import Flag
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.imap.commands.fetch_items import Attribute, BinaryPart, BinarySize, BodyPart, FetchItem, Preview
from protocol.imap.responses import fetch as form
from protocol.imap.responses.envelope import encode_envelope, encode_structure
from protocol.imap.responses.plain_structure import plain_structure
from protocol.imap.session_view import FolderChange, Rows, View
from protocol.imap.wire.lexer import PLAIN, Dialect
from protocol.mime.encoding import decode_transfer
from protocol.mime.parser import scan
from protocol.mime.sections import header_fields, parse_section, section_bytes
from protocol.mime.structure import envelope, structure
from tests.support.mailboxes import all_rows, fetched, open_folder, open_mailboxes
from tests.support.messages import message
from tests.support.stores import ADA, append, rows

SECTIONS = (
    b"",
    b"HEADER",
    b"TEXT",
    b"1",
    b"1.MIME",
    b"2",
    b"2.1",
    b"2.1.1",
    b"2.HEADER",
    b"2.TEXT",
    b"3",
    b"HEADER.FIELDS (SUBJECT from)",
    b"HEADER.FIELDS.NOT (Subject)",
    b"2.HEADER.FIELDS (Subject)",
    b"HEADER.FIELDS (nothing)",
)
PARTIALS = (None, (0, 10), (3, 70_000), (5_000_000, 5), (100, 300_000))


def leaf(number: int, random_: random.Random, size: int) -> bytes:
    data = random_.randbytes(size) if number % 3 == 0 else (f"line {number} é\r\n" * (size // 10 + 1)).encode()
    if number % 3 == 0:
        body = base64.encodebytes(data).replace(b"\n", b"\r\n")
        return b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\n" + body
    if number % 3 == 1:
        body = quopri.encodestring(data).replace(b"\n", b"\r\n").replace(b"\r\r\n", b"\r\n")
        return b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n" + body
    return b"Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n" + data


def multipart(*parts: bytes, boundary: bytes = b"=_x") -> bytes:
    joined = b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts)
    return b'Content-Type: multipart/mixed; boundary="%b"\r\n\r\n%b--%b--\r\n' % (boundary, joined, boundary)


def letters(size: int) -> list[bytes]:
    """One message of each kind; the parts of the compound ones have about ``size`` octets."""
    random_ = random.Random(size)
    head = b"From: Ada <ada@example.test>\r\nTo: Bob <bob@example.test>\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"
    inner = head + multipart(leaf(1, random_, size), leaf(3, random_, size), boundary=b"inner")
    forwarded = b"Content-Type: message/rfc822\r\n\r\n" + inner
    return [
        message(body="Hello.\r\n"),
        head + leaf(1, random_, size),
        head + multipart(leaf(2, random_, 50), leaf(3, random_, size), leaf(4, random_, size)),
        head + multipart(leaf(2, random_, 50), forwarded, leaf(0, random_, size)),
        head + b"Content-Transfer-Encoding: x-strange\r\n\r\nodd\0odd",
        b"no header at all",
        b"\r\n",
        b"",
    ]


def body_part(section: bytes, partial: tuple[int, int] | None = None) -> BodyPart:
    label = b"BODY[%b]" % section + (b"<%d>" % partial[0] if partial else b"")
    return BodyPart(label, parse_section(section), partial, True)


def literal(value: bytes | None, *, binary: bool = False) -> bytes:
    if value is None:
        return b"NIL"
    if not binary:
        value = value.replace(b"\0", b"\x80")  # an ordinary literal contains no NUL (RFC 3501 4.3.1)
    return (b"~{%d}\r\n%b" if binary and b"\0" in value else b"{%d}\r\n%b") % (len(value), value)


def response(number: int, *items: bytes) -> bytes:
    return b"* %d FETCH (%b)\r\n" % (number, b" ".join(items))


@pytest.mark.parametrize("size", [100, 90_000, 300_000])
async def test_sections_equal_those_of_the_octets(store: Transport, size: int) -> None:
    sent = letters(size)
    append(store, "INBOX", *sent)
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        for section in SECTIONS:
            for partial in PARTIALS if len(section) < 3 else PARTIALS[:2]:
                item = body_part(section, partial)
                answer, fetch = await fetched(mailboxes, state, [item])
                expected = b""
                for number, octets in enumerate(sent, 1):
                    value = section_bytes(octets, scan(octets), item.section)
                    if value is not None and partial is not None:
                        value = value[partial[0] : partial[0] + partial[1]]
                    expected += response(number, item.label + b" " + literal(value))
                assert answer == expected, (section, partial)
                assert not fetch.failed
        answer, _ = await fetched(
            mailboxes, state, [Attribute.UID, body_part(b""), Attribute.FLAGS, body_part(b"TEXT")]
        )
        assert answer == b"".join(
            response(
                number,
                b"UID %d" % number,
                b"BODY[] " + literal(octets),
                b"FLAGS ()",
                b"BODY[TEXT] " + literal(section_bytes(octets, scan(octets), parse_section(b"TEXT"))),
            )
            for number, octets in enumerate(sent, 1)
        )


@pytest.mark.parametrize("size", [100, 90_000, 300_000])
async def test_binary_is_decoded(store: Transport, size: int) -> None:
    sent = letters(size)
    append(store, "INBOX", *sent)
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        for path in ((), (1,), (2,), (3,), (2, 1), (2, 2), (9,)):
            for partial in (None, (10, 1000), (7, 400_000), (9_000_000, 1)):
                name = b"[" + b".".join(b"%d" % number for number in path) + b"]"
                items: list[FetchItem] = [BinaryPart(b"BINARY" + name, path, partial, True)]
                items.append(BinarySize(b"BINARY.SIZE" + name, path))
                answer, fetch = await fetched(mailboxes, state, items)
                expected, strange = b"", []
                for number, octets in enumerate(sent, 1):
                    root = scan(octets)
                    try:
                        where = bodies.binary_part(root, path)
                        value = None if where is None else decode_transfer(octets, where[2], where[0], where[1])
                    except bodies.UnknownEncodingError:
                        value = None
                        strange.append(number)
                    whole = len(value or b"")
                    if value is not None and partial is not None:
                        value = value[partial[0] : partial[0] + partial[1]]
                    written = literal(value, binary=True)
                    if value is not None and len(octets) > bodies.MAX_WHOLE_BYTES:
                        written = b"~{%d}\r\n%b" % (len(value), value)
                    expected += response(number, b"BINARY" + name + b" " + written, b"BINARY.SIZE%b %d" % (name, whole))
                assert answer == expected, (path, partial)
                assert set(fetch.undecodable) == set(strange)


ATTRIBUTES = (
    Attribute.UID,
    Attribute.FLAGS,
    Attribute.INTERNALDATE,
    Attribute.RFC822_SIZE,
    Attribute.ENVELOPE,
    Attribute.BODY,
    Attribute.BODYSTRUCTURE,
    Attribute.MODSEQ,
    Attribute.EMAILID,
    Attribute.THREADID,
    Attribute.SAVEDATE,
)


def attributes_of(store: Transport, sent: Sequence[bytes]) -> bytes:
    out = b""
    for number, (row, octets) in enumerate(zip(rows(store), sent, strict=True), 1):
        root = scan(octets)
        shape = structure(octets, root)
        out += response(
            number,
            b"UID %d" % row.uid,
            b"FLAGS (\\Seen $Work)",
            b"INTERNALDATE " + form.date_time(row.internal_date),
            b"RFC822.SIZE %d" % len(octets),
            b"ENVELOPE " + encode_envelope(envelope(root.headers)),
            b"BODY " + encode_structure(shape, False),
            b"BODYSTRUCTURE " + encode_structure(shape, True),
            b"MODSEQ (%d)" % row.modseq,
            b"EMAILID (%b)" % row.message_id.encode(),
            b"THREADID (%b)" % row.thread_id.encode(),
            b"SAVEDATE " + form.date_time(row.saved_at),
        )
    return out


async def test_attributes_are_those_of_the_octets_with_and_without_cache_rows(store: Transport) -> None:
    sent = letters(400)
    append(store, "INBOX", *sent, flags=int(Flag.READ), keywords=("$Work",))
    expected = attributes_of(store, sent)
    cached = store.index.query("SELECT * FROM cache_messages ORDER BY message_id")
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        assert (await fetched(mailboxes, state, ATTRIBUTES))[0] == expected
        assert (await fetched(mailboxes, state, ATTRIBUTES))[0] == expected
        _empty_cache(store)
        state.drop_derived()
        answer, fetch = await fetched(mailboxes, state, [*ATTRIBUTES, Preview()])
        assert answer.replace(b" PREVIEW", b"\0").count(b"\0") == len(sent)
        assert not fetch.failed
        assert (await fetched(mailboxes, state, ATTRIBUTES))[0] == expected
        assert store.index.query("SELECT * FROM cache_messages ORDER BY message_id") == cached
        _empty_cache(store)
        mailboxes._bodies.drop_unused(time.monotonic() + 1)
        answer, _ = await fetched(mailboxes, state, [body_part(b"")])
        assert answer == b"".join(response(n, b"BODY[] " + literal(octets)) for n, octets in enumerate(sent, 1))
        assert store.index.query("SELECT * FROM cache_messages ORDER BY message_id") == cached


async def test_nul_in_a_large_message_never_leaves_in_a_literal(store: Transport) -> None:
    octets = b"A: b\r\n\r\n" + b"x\0y" * bodies.MAX_WHOLE_BYTES
    append(store, "INBOX", octets)
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        for partial in (None, (bodies.CHUNK_BYTES - 5, 12)):
            answer, _ = await fetched(mailboxes, state, [BodyPart(b"BODY[]", parse_section(b""), partial, peek=True)])
            start, count = partial or (0, len(octets))
            assert answer == response(1, b"BODY[] " + literal(octets[start : start + count]))
            assert b"\0" not in answer
        answer, _ = await fetched(mailboxes, state, [BinaryPart(b"BINARY[]", (), None, True)])
        assert answer == response(1, b"BINARY[] " + literal(octets, binary=True))


@pytest.mark.parametrize("size", [10, bodies.MAX_WHOLE_BYTES + 1])
async def test_keyword_set_while_content_is_sent_is_announced_before_its_first_use(store: Transport, size: int) -> None:
    append(store, "INBOX", *(message(f"Letter {number}", "x" * size) for number in range(20)))
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        view = View(state.uids, state.modseq, state.flags, PLAIN)
        items: list[FetchItem] = [body_part(b""), Attribute.FLAGS]
        chunks = mailboxes.fetch(state, all_rows(state), items, PLAIN, view).chunks()
        watch = state.subscribe(Deaf())
        answer = await anext(chunks)
        await mailboxes.commit(op.ChangeFlags(ADA, state.id, [20], "add", keywords=["$New"]))
        answer += b"".join([chunk async for chunk in chunks])
        watch.close()
    announced = answer.index(b"* FLAGS (\\Seen \\Answered \\Flagged \\Deleted \\Draft $New)\r\n")
    assert announced < answer.index(b"FLAGS ($New)")
    assert answer.count(b"* FLAGS (") == 1


class Deaf:
    """A subscriber that keeps a folder up to date and ignores its changes."""

    def folder_changed(self, changes: Sequence[FolderChange]) -> None:
        pass

    def folder_removed(self) -> None:
        pass


def _empty_cache(store: Transport) -> None:
    with sqlite3.connect(layout.absolute(store.root, layout.INDEX_FILE)) as connection:
        connection.execute("DELETE FROM cache_messages")
    connection.close()


async def test_preview_is_text_in_the_session_s_charset(store: Transport) -> None:
    append(store, "INBOX", message(body="Grüße\r\naus  der Ferne\r\n"))
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        text = "Grüße aus der Ferne".encode()
        assert (await fetched(mailboxes, state, [Preview()]))[0] == response(
            1, b"PREVIEW {%d}\r\n%b" % (len(text), text)
        )
        utf8 = Dialect(utf8=True)
        assert (await fetched(mailboxes, state, [Preview()], dialect=utf8))[0] == response(1, b'PREVIEW "%b"' % text)


async def test_uidonly_responses_name_uids(store: Transport) -> None:
    append(store, "INBOX", *letters(300_000))
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        chosen = Rows([2, 3], [2, 3], False)
        dialect = Dialect(uid_only=True)
        answer, _ = await fetched(mailboxes, state, [Attribute.FLAGS, body_part(b"", (0, 1))], chosen, dialect)
        lead = b"* %d UIDFETCH (FLAGS () BODY[]<0> {1}\r\nF)\r\n"
        assert answer == lead % 2 + lead % 3


async def test_expunged_and_damaged_messages_are_omitted_and_reported(store: Transport) -> None:
    append(store, "INBOX", *[message(str(number)) for number in range(6)])
    broken = rows(store)[2].message_id
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        before = all_rows(state)
        await mailboxes.commit(op.ChangeFlags(ADA, state.id, [5], "add", int(Flag.DELETED)))
        await mailboxes.commit(op.Expunge(ADA, state.id))
        path = layout.absolute(store.root, *layout.message_directory(broken), layout.message_name(broken))
        os.rename(path, path + ".away")
        try:
            answer, fetch = await fetched(mailboxes, state, [Attribute.UID, body_part(b"")], before)
            assert fetch.failed == [3, 5]
            assert [line.split()[1] for line in answer.split(b"\r\n") if b"FETCH" in line] == [b"1", b"2", b"4", b"6"]
            answer, fetch = await fetched(mailboxes, state, [Attribute.FLAGS, Attribute.ENVELOPE], before)
            assert fetch.failed == [5]
            assert answer.count(b"FETCH") == 5
        finally:
            os.rename(path + ".away", path)


async def test_a_large_message_is_never_whole_in_memory(store: Transport) -> None:
    size = 12 << 20
    data = random.Random(1).randbytes(1 << 20) * 12
    octets = message(attachments=[data])
    append(store, "INBOX", octets)
    del data
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        items: list[FetchItem] = [body_part(b""), BinaryPart(b"BINARY[2]", (2,), None, True)]
        total = 0
        tracemalloc.start()
        try:
            async for chunk in mailboxes.fetch(state, all_rows(state), items, Dialect()).chunks():
                assert len(chunk) <= 300 << 10
                total += len(chunk)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert total > len(octets) + size
        assert peak < 5 << 20


async def test_cached_bodies_stay_within_their_budget(store: Transport) -> None:
    sent = [message(str(number), "x" * 3000) for number in range(30)]
    append(store, "INBOX", *sent)
    async with open_mailboxes(store, CacheLimits(bodies=20_000)) as mailboxes:
        state = await open_folder(mailboxes)
        for _ in range(2):
            answer, _ = await fetched(mailboxes, state, [body_part(b"")])
            assert answer == b"".join(response(n, b"BODY[] " + literal(octets)) for n, octets in enumerate(sent, 1))
            assert 0 < mailboxes._bodies._used_bytes <= 20_000
        mailboxes._bodies.drop_unused(time.monotonic() + 1)
        assert mailboxes._bodies._used_bytes == 0


async def test_sequential_fetch_reads_ahead(store: Transport) -> None:
    sent = [message(str(number)) for number in range(80)]
    append(store, "INBOX", *sent)
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        at_once = 0
        for number, octets in enumerate(sent, 1):
            one = Rows([number], [number], False)
            fetch = mailboxes.fetch(state, one, [body_part(b"")], Dialect())
            answer = fetch.at_once()
            at_once += answer is not None
            if answer is None:
                answer = b"".join([chunk async for chunk in fetch.chunks()])
            assert answer == response(number, b"BODY[] " + literal(octets))
        assert at_once > 60
        mailboxes._bodies.drop_unused(time.monotonic() + 1)
        for number in (40, 7, 60, 3):  # random access: no other message is read
            one = Rows([number], [number], False)
            await fetched(mailboxes, state, [body_part(b"")], one)
        assert len(mailboxes._bodies._cached) == 4


async def test_uncached_or_large_results_are_streamed(store: Transport) -> None:
    append(store, "INBOX", message(), message(body="x" * 300_000))
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)

        def at_once(items: Sequence[FetchItem], uids: list[int]) -> bytes | None:
            return mailboxes.fetch(state, Rows(uids, uids, False), items, Dialect()).at_once()

        assert at_once([Attribute.FLAGS], [1, 2]) == response(1, b"FLAGS ()") + response(2, b"FLAGS ()")
        assert at_once([Attribute.ENVELOPE], [1]) is None
        assert at_once([body_part(b"")], [1]) is None
        await fetched(mailboxes, state, [Attribute.ENVELOPE, body_part(b"")])
        assert at_once([Attribute.ENVELOPE, body_part(b"")], [1]) is not None
        assert at_once([body_part(b"")], [2]) is None
        assert at_once([body_part(b"")] * 2000, [1]) is None
        assert at_once([Attribute.FLAGS], []) is None


# --- the pure parts ------------------------------------------------------------------------------------------------

TOKENS = (b"\n", b"\r\n", b"From", b":", b" ", b"a", b"To: x", b"\t", b"\r", b"\xff", b"X-Long", b"\0")


@given(st.lists(st.sampled_from(TOKENS), max_size=16).map(b"".join), st.sampled_from(SECTIONS[11:13] + SECTIONS[14:]))
def test_header_fields_are_those_of_the_section(octets: bytes, section: bytes) -> None:
    root = scan(octets)
    parsed = parse_section(section.replace(b"SUBJECT", b"to").replace(b"Subject", b"A"))
    assert header_fields(octets[root.start : root.body], parsed) == section_bytes(octets, root, parsed)


def test_cache_of_requests_is_bounded() -> None:
    """The cache of requests is bounded by size, too, since clients choose the requests."""
    octets = b"To: ada\r\nSubject: x\r\n\r\n"
    root = scan(octets)
    tracemalloc.start()
    for number in range(20):
        names = b" ".join(b"X-%d-%d" % (number, field) for field in range(2000))
        parsed = parse_section(b"HEADER.FIELDS (Subject %b)" % names)
        assert header_fields(octets, parsed) == section_bytes(octets, root, parsed) == b"Subject: x\r\n\r\n"
        plan_of((BodyPart(b"BODY[HEADER.FIELDS (%b)]" % names, parsed, None, peek=True),), utf8=False, uid_only=False)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1 << 20


@given(
    st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6), st.sampled_from(("base64", "quoted-printable"))
)
def test_streams_decode_like_the_whole(data: bytes, cuts: list[int], encoding: str) -> None:
    encoded = base64.encodebytes(data) if encoding == "base64" else quopri.encodestring(data, quotetabs=bool(cuts))
    for raw in (encoded, encoded.replace(b"\n", b"\r\n"), data, encoded + b"==" + encoded):
        edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
        chunks = [raw[start:end] for start, end in pairwise(edges)]
        assert b"".join(transfer_stream.decode(chunks, encoding)) == decode_transfer(raw, encoding, 0, len(raw))


@given(st.lists(st.binary(max_size=20)), st.integers(0, 40), st.integers(0, 60), st.integers(1, 9))
def test_streams_are_cut_and_gathered(chunks: list[bytes], skip: int, size: int, step: int) -> None:
    whole = b"".join(chunks)
    assert b"".join(transfer_stream.cut(chunks, skip, size)) == whole[skip : skip + size]
    gathered = list(transfer_stream.gather(chunks, step))
    assert b"".join(gathered) == whole
    assert all(0 < len(chunk) <= step for chunk in gathered)


WORDS = (b"multipart/mixed; boundary=a", b"multipart/alternative; boundary=b", b"text/html", b"message/rfc822", b"x/y")


@given(
    st.lists(
        st.sampled_from((*WORDS, b"--a", b"--b", b"--a--", b"--b--", b'Subject: (x) "y" \xc3\xa9', b"", b"", b"body")),
        max_size=25,
    )
)
def test_body_is_bodystructure_without_extensions(lines: list[bytes]) -> None:
    octets = b"\r\n".join(b"Content-Type: " + line if line in WORDS else line for line in lines)
    shape = structure(octets, scan(octets))
    assert plain_structure(encode_structure(shape, True)) == encode_structure(shape, False)
