"""The copy in Sent: stored once, with all fields of the client's version, whichever copy arrives first."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from adapter.api import Store
from adapter.config.schema import Account, Settings
from adapter.content.html.html_alternative import add_html, remove_html
from adapter.store.flags import Flag
from adapter.store.quotas import Quota
from adapter.transport import operations as op
from adapter.transport.sent_copy import fingerprint_of
from adapter.transport.transport import Transport
from tests.support.imapd import ImapClient
from tests.support.messages import message
from tests.support.paths import TESTS
from tests.support.smtpd import PASSWORD, Running, from_ada, make_store, serving
from tests.support.stores import ADA, BOB, folder, rows

RECORDED = TESTS / "recorded_copies"
FIELDS = "Date: Mon, 16 Nov 2026 08:00:00 +0000\r\nMessage-ID: <1@example.test>\r\n"
SUBMITTED = from_ada(extra=FIELDS)
UNDATED = from_ada(extra="Message-ID: <2@example.test>\r\n")
ATTACHED = from_ada(
    extra=FIELDS + 'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="b"\r\n',
    body="--b\r\n\r\nHello\r\n--b\r\nContent-Type: application/pdf; name=a.pdf\r\nContent-Transfer-Encoding: base64\r\n"
    f"\r\n{('QUJD' * 19 + chr(13) + chr(10)) * 4000}--b--\r\n",
)


def with_bcc(octets: bytes) -> bytes:
    return octets.replace(b"Subject:", b"Bcc: carol@example.test\r\nSubject:", 1)


#: Submitted message, appended copy, and True if the copy has fields that the server's lacks.
CLIENTS = [
    *(
        pytest.param(
            (RECORDED / f"{name}-submitted.eml").read_bytes(),
            (RECORDED / f"{name}-copy.eml").read_bytes(),
            name not in ("alpine", "thunderbird"),
            id=name,
        )
        for name in ("alpine", "evolution", "neomutt-bcc", "roundcube-bcc", "thunderbird", "thunderbird-bcc")
    ),
    pytest.param(
        (RECORDED / "aerc-bcc-copy.eml").read_bytes().replace(b"Bcc: <carol@example.test>\r\n", b""),
        (RECORDED / "aerc-bcc-copy.eml").read_bytes(),
        True,
        id="aerc-bcc",
    ),
    pytest.param(SUBMITTED, SUBMITTED, False, id="the same"),
    pytest.param(SUBMITTED, SUBMITTED.removesuffix(b"\r\n"), False, id="without final CRLF"),
    pytest.param(SUBMITTED, with_bcc(SUBMITTED).removesuffix(b"\r\n"), True, id="Bcc, without final CRLF"),
    pytest.param(SUBMITTED, b"X-Client: 1\r\n" + SUBMITTED, True, id="extra field"),
    pytest.param(UNDATED, with_bcc(UNDATED), True, id="without Date"),
    pytest.param(ATTACHED, with_bcc(ATTACHED), True, id="attachment"),
]


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", kinds=("submission", "imap")) as running:
        yield running


def owned_by_ada(octets: bytes) -> bytes:
    """Make ada the sender: some recordings were made with bob's account."""
    if re.search(rb"^From: .*ada@", octets, re.MULTILINE):
        return octets
    return octets.replace(BOB.encode(), b"x@x").replace(ADA.encode(), BOB.encode()).replace(b"x@x", ADA.encode())


async def submit(running: Running, octets: bytes) -> None:
    client = await running.hello("submission")
    assert (await client.login()).code == 235
    assert (await client.mail(octets, BOB, sender=ADA)).code == 250
    client.close()


async def imap(running: Running) -> ImapClient:
    client = await ImapClient.connect(running.ports["imap"])
    await client.line()
    await client.ok(f'LOGIN {ADA} "{PASSWORD}"')
    return client


async def append(running: Running, octets: bytes, options: str = "(\\Seen)") -> int:
    client = await imap(running)
    answer = await client.append("Sent", octets, options)
    assert answer.startswith(b"OK [APPENDUID "), answer
    await client.close()
    return int(answer.split()[3].rstrip(b"]"))


def content_lines(octets: bytes) -> list[bytes]:
    """All lines except trace fields and the final CRLF."""
    head, _, body = octets.partition(b"\r\n\r\n")
    fields = [
        field for field in re.split(rb"\r\n(?![ \t])", head) if not field.startswith((b"Received:", b"Return-Path:"))
    ]
    return [*sorted(fields), body.removesuffix(b"\r\n")]  # fmt: skip


@pytest.mark.parametrize("client_first", [False, True], ids=["server first", "client first"])
@pytest.mark.parametrize(("submitted", "copy", "has_more"), CLIENTS)
async def test_sent_has_one_copy_with_all_fields_of_the_clients_version(
    server: Running, submitted: bytes, copy: bytes, has_more: bool, client_first: bool
) -> None:
    submitted, copy = owned_by_ada(submitted), owned_by_ada(copy)
    if client_first:
        uid = await append(server, copy)
        await submit(server, submitted)
    else:
        await submit(server, submitted)
        uid = await append(server, copy)
    (row,) = rows(server.transport, "Sent", ADA)
    assert row.uid == uid
    assert row.flags & Flag.READ
    assert uid == (2 if has_more and not client_first else 1)
    (kept,) = server.inbox(ADA, "Sent")
    assert content_lines(copy) == [line for line in content_lines(kept) if line in content_lines(copy)]
    assert (b"carol@example.test" in kept) == (b"carol@example.test" in copy)
    (received,) = server.inbox(BOB)
    assert b"carol@example.test" not in received


@pytest.mark.parametrize(
    "other",
    [
        SUBMITTED.replace(b"Hello Bob", b"Other text"),
        SUBMITTED + b"more\r\n",
        SUBMITTED.replace(b"Subject: Hello", b"Subject: Other"),
        b"Subject: Other\r\n" + SUBMITTED,
        SUBMITTED.replace(b"Subject:", b"Cc: carol@example.test\r\nSubject:"),
        SUBMITTED.replace(b"Subject:", b"Content-Type: text/html\r\nSubject:"),
        SUBMITTED.replace(b"To: ", b"Cc: "),
        SUBMITTED.replace(b"<1@", b"<2@"),
        SUBMITTED.replace(b"Message-ID: ", b"X-ID: "),
        message(),
    ],
)
async def test_different_message_never_replaces_the_sent_copy(server: Running, other: bytes) -> None:
    await submit(server, SUBMITTED)
    await append(server, other)
    assert [row.uid for row in rows(server.transport, "Sent", ADA)] == [1, 2]
    assert content_lines(server.inbox(ADA, "Sent")[0]) == content_lines(SUBMITTED)


async def test_copies_with_different_extra_fields_are_both_kept(server: Running) -> None:
    await append(server, b"X-One: 1\r\n" + SUBMITTED)
    await append(server, b"X-Two: 2\r\n" + SUBMITTED)
    assert len(rows(server.transport, "Sent", ADA)) == 2


async def test_copy_marked_as_deleted_is_ignored(server: Running) -> None:
    await submit(server, SUBMITTED)
    change = op.ChangeFlags(ADA, folder(server.transport, "Sent", ADA).id, [1], "add", int(Flag.DELETED))
    await asyncio.to_thread(server.transport.run, change)
    assert await append(server, SUBMITTED) == 2


async def test_flags_and_keywords_of_both_copies_are_kept(server: Running) -> None:
    await submit(server, SUBMITTED)
    change = op.ChangeFlags(ADA, folder(server.transport, "Sent", ADA).id, [1], "add", int(Flag.STARRED), ["todo"])
    await asyncio.to_thread(server.transport.run, change)
    await append(server, SUBMITTED, "(\\Answered other)")
    await append(server, with_bcc(SUBMITTED), "(last)")
    (row,) = rows(server.transport, "Sent", ADA)
    assert row.flags == Flag.READ | Flag.STARRED | Flag.ANSWERED
    assert row.keywords == "last other todo"


async def test_append_repeated_after_a_lost_response_adds_nothing(server: Running) -> None:
    await submit(server, SUBMITTED)
    assert await append(server, with_bcc(SUBMITTED)) == 2
    assert await append(server, with_bcc(SUBMITTED)) == 2
    assert await append(server, SUBMITTED) == 2  # the version with fewer fields is not stored again


async def test_other_folders_and_multiappend_keep_every_message(server: Running) -> None:
    client = await imap(server)
    literal = b"{%d+}\r\n%b" % (len(SUBMITTED), SUBMITTED)
    await client.ok(b"APPEND Sent " + literal + b" " + literal)
    await client.ok(b"APPEND Drafts " + literal)
    await client.ok(b"APPEND Drafts " + literal)
    assert len(rows(server.transport, "Sent", ADA)) == 2
    assert len(rows(server.transport, "Drafts", ADA)) == 2


async def test_concurrent_copies_are_merged_into_one(server: Running) -> None:
    clients = [await imap(server) for _ in range(4)]
    sender = await server.hello("submission")
    assert (await sender.login()).code == 235
    for number in range(8):
        sent = SUBMITTED.replace(b"<1@", b"<same%d@" % number)
        copies = [sent, with_bcc(sent), with_bcc(sent), sent.removesuffix(b"\r\n")]
        await asyncio.gather(
            sender.mail(sent, BOB, sender=ADA), *(each.append("Sent", copy) for each, copy in zip(clients, copies))
        )
    kept = server.inbox(ADA, "Sent")
    assert len(kept) == 8
    assert all(b"Bcc: carol" in each for each in kept)


async def test_copies_in_one_batch_are_merged_into_one(server: Running) -> None:
    """The files of the first are not in place when the second is planned."""
    transport = server.transport
    assert server.services.store is not None
    copies = server.services.store.sent_copies

    def upload(octets: bytes) -> op.Append:
        staged = transport.stage(octets)
        finder = copies.finder(staged.content.id, fingerprint_of(octets))
        return op.Append(ADA, "Sent", [op.AppendItem(staged)], find_twin=finder)

    def commit() -> None:
        for done in transport.commit_all([upload(SUBMITTED), upload(with_bcc(SUBMITTED)), upload(SUBMITTED)]):
            done.result()

    await asyncio.to_thread(commit)
    (kept,) = server.inbox(ADA, "Sent")
    assert b"Bcc: carol" in kept


async def test_another_process_with_the_store_open_recognises_the_copy(server: Running) -> None:
    await submit(server, SUBMITTED)
    root = server.transport.root

    def elsewhere() -> None:
        from adapter.transport.sent_copy import SentCopies

        with Transport.open(root) as transport:
            octets = with_bcc(SUBMITTED)
            staged = transport.stage(octets)
            finder = SentCopies(transport).finder(staged.content.id, fingerprint_of(octets))
            transport.run(op.Append(ADA, "Sent", [op.AppendItem(staged)], find_twin=finder))

    await asyncio.to_thread(elsewhere)
    (kept,) = server.inbox(ADA, "Sent")
    assert b"Bcc: carol" in kept


async def test_other_sessions_and_the_api_see_one_copy_throughout(server: Running) -> None:
    watching = await imap(server)
    await watching.ok("SELECT Sent")
    await submit(server, SUBMITTED)
    assert b"* 1 EXISTS" in await watching.ok("NOOP")
    with Store.open(server.transport.root) as store:
        sent = store.mailbox(ADA)
        assert [mail.uid for mail in sent.messages("Sent")] == [1]
        (fetched,) = await watching.ok("UID FETCH 1 UID")
        assert b"UID 1" in fetched
        await append(server, with_bcc(SUBMITTED))
        assert [mail.uid for mail in sent.messages("Sent")] == [2]
    assert b"* 1 EXPUNGE" in await watching.ok("NOOP")
    (only,) = await watching.ok("FETCH 1:* (UID BODY[HEADER.FIELDS (BCC)])")
    assert b"UID 2" in only
    assert b"carol" in only


async def test_replacing_the_copy_needs_no_extra_quota(server: Running) -> None:
    await submit(server, ATTACHED)
    assert server.services.store is not None
    octets = with_bcc(ATTACHED)
    staged = server.transport.stage(octets)
    finder = server.services.store.sent_copies.finder(staged.content.id, fingerprint_of(octets))
    full = Quota(storage=len(ATTACHED) + 2000, messages=1)
    append_copy = op.Append(ADA, "Sent", [op.AppendItem(staged)], quota=full, find_twin=finder)
    (placed,) = await asyncio.to_thread(server.transport.run, append_copy)
    assert placed.uid == 2


MARKDOWN = "Message-ID: <4@example.test>\r\nContent-Type: text/markdown; charset=utf-8\r\n"


@pytest.mark.parametrize("client_first", [False, True], ids=["server first", "client first"])
@pytest.mark.parametrize(
    ("extra", "body"),
    [
        (MARKDOWN, "# Hello\r\n\r\n*Bob*\r\n"),
        ("Date: Mon, 16 Nov 2026 08:00:00 +0000\r\nMIME-Version: 1.0\r\n" + MARKDOWN, "# Gr\u00fc\u00dfe\r\n"),
        (MARKDOWN + "Content-Transfer-Encoding: quoted-printable\r\nX-Last: 1\r\n", "Gr=C3=BC=C3=9Fe =\r\n**Bob**\r\n"),
        (MARKDOWN, ""),
    ],
    ids=["bare", "eight bit", "encoded", "empty"],
)
async def test_html_alternative_does_not_make_the_copy_a_different_message(
    tmp_path: Path, extra: str, body: str, client_first: bool
) -> None:
    make_store(tmp_path / "store")
    settings = Settings(account={ADA: Account(html_alternative=True)})
    async with serving(tmp_path / "store", settings, kinds=("submission", "imap")) as running:
        sent = from_ada(extra=extra, body=body)
        if client_first:
            await append(running, with_bcc(sent))
            await submit(running, sent)
        else:
            await submit(running, sent)
            assert b"multipart/alternative" in running.inbox(ADA, "Sent")[0]
            await append(running, sent)
            await append(running, with_bcc(sent))
        (kept,) = running.inbox(ADA, "Sent")
        assert b"Bcc: carol" in kept
        for other in (sent + b"more\r\n", sent.replace(b"text/markdown", b"text/plain")):
            await append(running, other)
        assert len(rows(running.transport, "Sent", ADA)) == 3


def test_only_html_added_by_submission_is_removed_for_comparison() -> None:
    header, _, body = from_ada(extra=MARKDOWN, body="# Hello\r\n").partition(b"\r\n\r\n")
    made = add_html(header + b"\r\n\r\n", body, b"=_" + b"0" * 32)
    plain = remove_html(made)
    assert plain is not None
    assert plain.endswith(b"\r\n\r\n# Hello\r\n")
    assert remove_html(made.replace(b"# Hello", b"# Other")) is None
    assert remove_html(SUBMITTED) is None
    assert remove_html(made[:-4]) is None
