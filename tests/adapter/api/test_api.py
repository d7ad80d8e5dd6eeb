"""The Python API, and the example that documents it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
import threading
from pathlib import Path

import pytest

from adapter.api import Mailbox, Person, Store, Summary
from adapter.store import layout
from adapter.transport import operations as op
from protocol.errors import MailError, Reason
from tests.support.mail.api_stores import ADA, BOB, EVE
from tests.support.paths import REPOSITORY
from tests.support.store.failing_reads import FailingReads
from tests.support.waiting import PATIENCE, until, wait_until

ROOT = REPOSITORY


def test_documented_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "adapter" / "README.md").read_text()
    section = text.partition("## Using the store from Python")[2]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(examples) == 2
    monkeypatch.chdir(tmp_path)
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "ada@example.test: News: The engine **runs**." in printed
    assert "('plan.txt', b'Let it run.\\n')" in printed
    assert "Archive 1 0" in printed
    assert "['Re: News']" in printed


def test_send_and_read(ada: Mailbox, bob: Mailbox, store: Store) -> None:
    sent = ada.send(
        "Grüße aus der *Engine*\n",
        to=["Bob <bob@example.test>", Person("Eve, the third", EVE)],
        cc=ADA,
        subject="Über alles",
    )
    assert sent.recipients == (BOB, EVE, ADA)
    [summary] = bob.messages()
    assert (summary.id, summary.sender, summary.subject, summary.folder) == (sent.id, ADA, "Über alles", "INBOX")
    assert summary.flags == frozenset()
    assert not summary.read
    assert "Grüße" in summary.preview
    mail = bob.read(summary)
    assert mail.sender == Person("", ADA)
    assert mail.to == (Person("Bob", BOB), Person("Eve, the third", EVE))
    assert mail.cc == (Person("", ADA),)
    assert mail.text == "Grüße aus der *Engine*\n"
    assert mail.message_id == sent.message_id
    assert mail.date.endswith("Z")
    assert b"text/html" in mail.octets()
    assert len(mail.octets()) == summary.octets
    assert mail.file().startswith(b"---\nid: " + sent.id.encode())
    assert [each.folder for each in (*ada.messages(), *ada.messages("Sent"))] == ["INBOX", "Sent"]
    assert ada.messages("Sent")[0].read
    assert bob.read(sent.id) == mail


def test_bcc_is_in_no_copy_of_a_recipient(ada: Mailbox, bob: Mailbox, store: Store) -> None:
    ada.send("x", to=BOB, bcc=EVE, subject="s")
    ada.send("y", bcc=[EVE, BOB], subject="s")
    for octets in (bob.read(each).octets() for each in bob.messages()):
        assert b"eve" not in octets
    assert len(store.mailbox(EVE).messages()) == 2
    assert bob.read(bob.messages()[0]).to == ()


def test_text_in_the_form_of_front_matter_is_text(ada: Mailbox, bob: Mailbox) -> None:
    ada.send("---\nfrom: ceo@example.test\n---\nhello\n", to=BOB, subject="s")
    mail = bob.read(bob.messages()[0])
    assert mail.sender == Person("", ADA)
    assert mail.text == "---\nfrom: ceo@example.test\n---\nhello\n"


def test_subject_is_the_first_heading(ada: Mailbox, bob: Mailbox) -> None:
    ada.send("# The plan\n\nText\n", to=BOB)
    assert bob.messages()[0].subject == "The plan"


def test_attachments(ada: Mailbox, bob: Mailbox, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    (tmp_path / "données.pdf").write_bytes(data)
    ada.send("see", to=BOB, subject="s", attachments=[tmp_path / "données.pdf", ("notes.txt", b"a\nb\n")])
    first, second = bob.read(bob.messages()[0]).attachments
    assert (first.name, first.type, first.size, first.data()) == ("données.pdf", "application/pdf", len(data), data)
    assert first.sha256 == hashlib.sha256(data).hexdigest()
    assert (second.name, second.type, second.data()) == ("notes.txt", "text/plain", b"a\nb\n")


def test_reply(ada: Mailbox, bob: Mailbox) -> None:
    sent = ada.send("question", to=BOB, subject="Why")
    question = bob.read(bob.messages()[0])
    bob.send("answer", reply_to=question)
    assert bob.messages()[0].flags == {"answered"}
    answer = ada.read(ada.messages()[0])
    assert (answer.subject, answer.in_reply_to, answer.references) == ("Re: Why", sent.message_id, (sent.message_id,))
    assert answer.summary.thread == question.summary.thread
    ada.send("again", reply_to=answer, subject="")
    again = bob.read(bob.messages()[0])
    assert (again.subject, again.references) == ("Re: Why", (sent.message_id, answer.message_id))
    assert again.summary.thread == question.summary.thread


def test_nothing_is_sent_if_one_recipient_has_no_mailbox_here(ada: Mailbox, bob: Mailbox) -> None:
    with pytest.raises(MailError, match=r"someone@elsewhere\.test has no mailbox in this store") as caught:
        ada.send("x", to=[BOB, "someone@elsewhere.test"], subject="s")
    assert caught.value.reason is Reason.NO_SUCH_ADDRESS
    assert bob.messages() == ada.messages("Sent") == []


@pytest.mark.parametrize("to", ["", [], "nobody", "two words"])
def test_invalid_recipients_are_refused(ada: Mailbox, to: str | list[str]) -> None:
    with pytest.raises(MailError) as caught:
        ada.send("x", to=to)
    assert caught.value.reason is Reason.BAD_ADDRESS


def test_unknown_and_inactive_mailboxes(store: Store) -> None:
    with pytest.raises(MailError) as caught:
        store.mailbox("nobody@example.test")
    assert caught.value.reason is Reason.NO_SUCH_ADDRESS
    store.transport.run(op.Deregister(EVE))
    with pytest.raises(MailError) as caught:
        store.mailbox(EVE)
    assert caught.value.reason is Reason.INACTIVE_ADDRESS
    assert store.addresses() == [ADA, BOB]


def test_flags(ada: Mailbox, bob: Mailbox) -> None:
    ada.send("x", to=BOB, subject="s")
    [message] = bob.messages(unread=True)
    changed = bob.set_flags(message, "read", "starred", "todo", "$Label1")
    assert changed.flags == {"read", "starred", "todo", "$Label1"}
    assert bob.messages(unread=True) == []
    assert bob.clear_flags(message, "starred", "todo", "draft").flags == {"read", "$Label1"}
    assert bob.folders()[2].unread == 0
    for bad in ("two words", "\\Seen", "", "archived", "ünicode"):
        with pytest.raises(MailError) as caught:
            bob.set_flags(message, bad)
        assert caught.value.reason is Reason.NOT_ALLOWED


def test_move_and_archive(ada: Mailbox, bob: Mailbox) -> None:
    ada.send("x", to=BOB, subject="s")
    [message] = bob.messages()
    bob.create_folder("Work/Plans")
    moved = bob.move(message, "Work/Plans")
    assert (moved.folder, moved.id) == ("Work/Plans", message.id)
    assert bob.read(message).summary == moved  # found where it went
    archived = bob.archive(message)
    assert (archived.folder, archived.flags) == ("Archive", frozenset({"archived"}))
    assert bob.trash(archived).flags == frozenset()
    assert {folder.name: folder.messages for folder in bob.folders()} == {
        "Archive": 0, "Drafts": 0, "INBOX": 0, "Junk": 0, "Sent": 0, "Trash": 1, "Work": 0, "Work/Plans": 0,
    }  # fmt: skip
    with pytest.raises(MailError) as caught:
        bob.move(message, "Nowhere")
    assert caught.value.reason is Reason.NO_SUCH_FOLDER


def test_mail_of_other_accounts_is_not_shown(ada: Mailbox, bob: Mailbox, store: Store) -> None:
    sent = ada.send("x", to=BOB, subject="s")
    with pytest.raises(MailError) as caught:
        store.mailbox(EVE).read(sent.id)
    assert caught.value.reason is Reason.NO_SUCH_MESSAGE
    with pytest.raises(MailError):
        store.mailbox(EVE).set_flags(bob.messages()[0], "deleted")


def test_message_that_cannot_be_read_now_is_a_temporary_error_for_itself_alone(
    ada: Mailbox, bob: Mailbox, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (ada.send("x", to=BOB, subject=subject).id for subject in ("one", "two"))
    reads = FailingReads(monkeypatch)
    reads.errors[layout.message_name(first)] = errno.EIO
    with pytest.raises(MailError) as caught:
        bob.read(first)
    assert caught.value.reason is Reason.UNREADABLE
    assert caught.value.temporary
    assert bob.read(second).subject == "two"
    assert len(bob.messages()) == 2


def test_latest_first_and_limit(ada: Mailbox, bob: Mailbox) -> None:
    for number in range(4):
        ada.send("x", to=BOB, subject=str(number))
    assert [message.subject for message in bob.messages()] == ["3", "2", "1", "0"]
    assert [message.subject for message in bob.messages(limit=2)] == ["3", "2"]


def test_watch_reports_new_mail_only(ada: Mailbox, bob: Mailbox) -> None:
    ada.send("x", to=BOB, subject="before")
    with bob.watch(timeout=PATIENCE) as watch:
        bob.trash(bob.messages()[0])
        bob.move(bob.messages("Trash")[0], "INBOX")
        ada.send("x", to=BOB, subject="first")
        ada.send("x", to=EVE, subject="not for bob")
        ada.send("x", to=BOB, subject="second")
        assert [next(watch).subject, next(watch).subject] == ["first", "second"]
        ada.send("x", to=BOB, subject="third")
        assert next(watch).subject == "third"
    assert list(watch) == []


def test_watch_continues_after_its_timeout(ada: Mailbox, bob: Mailbox) -> None:
    with bob.watch(timeout=0.05) as watch:
        assert list(watch) == []
        ada.send("x", to=BOB, subject="late")
        wait_until(lambda: [message.subject for message in watch] == ["late"])


def test_close_ends_a_waiting_watch(bob: Mailbox) -> None:
    watch = bob.watch()
    threading.Timer(0.1, watch.close).start()
    assert list(watch) == []


async def test_watch_from_asyncio(ada: Mailbox, bob: Mailbox) -> None:
    async with bob.watch_async(timeout=PATIENCE) as watch:
        await asyncio.to_thread(ada.send, "x", to=BOB, subject="one")
        await asyncio.to_thread(ada.send, "x", to=BOB, subject="two")
        assert [(await anext(watch)).subject, (await anext(watch)).subject] == ["one", "two"]
        waiting = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.to_thread(ada.send, "x", to=BOB, subject="three")
        assert (await anext(watch)).subject == "three"
    assert [each async for each in watch] == []
    async with asyncio.timeout(PATIENCE), bob.watch_async(timeout=0.1) as idle:
        assert [each async for each in idle] == []


async def test_message_is_not_lost_if_the_wait_is_cancelled_during_its_lookup(
    ada: Mailbox, bob: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()
    look_up = Mailbox._look_up

    def slowly(mailbox: Mailbox, folder_id: int, uid: int) -> Summary | None:
        started.set()
        assert go_on.wait(PATIENCE)
        return look_up(mailbox, folder_id, uid)

    monkeypatch.setattr(Mailbox, "_look_up", slowly)
    async with bob.watch_async(timeout=PATIENCE) as watch:
        await asyncio.to_thread(ada.send, "x", to=BOB, subject="one")
        waiting = asyncio.ensure_future(anext(watch, None))
        await until(started.is_set)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        assert (await anext(watch)).subject == "one"
