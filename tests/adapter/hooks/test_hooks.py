"""Hooks: a real HTTP server is called for new mail, at least once, through failures and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import HookSettings, Settings
from adapter.config.validate import hook_problems
from adapter.hooks import runner
from adapter.net import http as web
from adapter.server.settings import VALUE_RULES
from adapter.server.store_lifecycle import open_served_store
from adapter.sessions.context import close_store
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.hooks import HookReceiver, hook_bookmarks, running_hooks, url_hook
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, folder, new_store
from tests.support.waiting import PATIENCE, until


def _head(path: str) -> str:
    return "".join(Path(path).read_text().splitlines(keepends=True)[:2])


@pytest.mark.setting("hook.url", "hook.authorization_file")
async def test_url_gets_the_event(transport: Transport, receiver: HookReceiver, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer abc\n")
    deliver(transport, ADA)  # before the hook existed
    async with running_hooks(transport, agent=url_hook(receiver, authorization_file=str(tmp_path / "token"))):
        delivery = deliver(transport, ADA, octets=message(subject="Grüße"))
        await until(lambda: receiver.events)
    (events,) = receiver.events
    assert events["message"] == delivery.message_id
    assert (events["event"], events["hook"], events["account"], events["folder"], events["uid"]) == (
        "new-mail", "agent", ADA, "INBOX", 2,
    )  # fmt: skip
    assert events["subject"] == "Grüße"
    assert "@" in events["from"]
    assert _head(events["file"]) == f"---\nid: {delivery.message_id}\n"
    assert receiver.headers[0]["Content-Type"] == "application/json"
    assert receiver.headers[0]["Authorization"] == "Bearer abc"


@pytest.mark.setting("hook.accounts", "hook.folders")
async def test_filters_by_account_and_folder(transport: Transport, receiver: HookReceiver) -> None:
    others = HookReceiver()
    transport.run(op.CreateFolder(ADA, "Lists"))
    async with running_hooks(
        transport,
        lists=url_hook(receiver, accounts=(ADA.upper(),), folders=("Lists", "inbox")),
        everything=url_hook(others, folders=("*",), concurrency=4),
    ):
        deliver(transport, BOB)
        append(transport, "Lists", message())
        append(transport, "Sent", message())
        transport.run(op.Copy(ADA, folder(transport, "Lists").id, [1], "INBOX"))  # not new
        deliver(transport, ADA)
        await until(lambda: len(receiver.events) == 2 and len(others.events) == 4)
    assert [(events["account"], events["folder"]) for events in receiver.events] == [(ADA, "Lists"), (ADA, "INBOX")]
    assert sorted(events["folder"] for events in others.events) == ["INBOX", "INBOX", "Lists", "Sent"]
    others.close()


@pytest.mark.setting("hook.give_up")
async def test_message_that_always_fails_does_not_stop_the_others(
    transport: Transport, receiver: HookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.rejected = "poison"
    async with running_hooks(transport, agent=url_hook(receiver, give_up=Seconds(1.5))):
        subjects = ("poison", "a", "b")
        sent = [deliver(transport, ADA, octets=message(subject=subject)).message_id for subject in subjects]
        await until(lambda: receiver.messages == sent[1:])
        await until(lambda: len(hook_bookmarks(transport, "agent")) == 1)
    assert f"giving up on {sent[0]}" in caplog.text


async def test_cursor_survives_a_restart(transport: Transport, receiver: HookReceiver) -> None:
    hook = url_hook(receiver)
    async with running_hooks(transport, agent=hook):
        first = deliver(transport, ADA).message_id
        await until(lambda: receiver.messages == [first])
    missed = [deliver(transport, ADA).message_id for _ in range(5)]
    with Transport.open(transport.root) as another:
        async with running_hooks(another, agent=hook):
            await until(lambda: len(receiver.events) >= 6)
            await asyncio.sleep(0.1)
    assert receiver.messages == [first, *missed]


@pytest.mark.setting("hook.first_retry")
async def test_retries_survive_a_restart(transport: Transport, receiver: HookReceiver) -> None:
    receiver.statuses = [500]
    async with running_hooks(
        transport, agent=url_hook(receiver, first_retry=Seconds(60.0), longest_retry=Seconds(60.0))
    ):
        sent = deliver(transport, ADA).message_id
        await until(lambda: len(hook_bookmarks(transport, "agent")) == 2)
    receiver.statuses = [200]
    (item,) = (item for item in hook_bookmarks(transport, "agent") if item.startswith("retry"))
    retry = runner.Retry.decode(item, hook_bookmarks(transport, "agent")[item])
    transport.run(op.SetBookmarks("hook agent", {item: retry._replace(due=0).value}))
    async with running_hooks(transport, agent=url_hook(receiver)):
        await until(lambda: receiver.messages == [sent])
        await until(lambda: len(hook_bookmarks(transport, "agent")) == 1)


async def test_index_supplies_mail_after_compaction_passed_the_cursor(
    transport: Transport, receiver: HookReceiver
) -> None:
    """Mail that arrived without a running hook comes from the index."""
    hook = url_hook(receiver, accounts=(ADA,))
    async with running_hooks(transport, agent=hook):
        first = deliver(transport, ADA).message_id
        await until(lambda: receiver.messages == [first])
    missed = []
    for _ in range(3):
        missed.append(deliver(transport, ADA).message_id)
        deliver(transport, BOB)
        append(transport, "Archive", message())
        transport.snapshot()
    async with running_hooks(transport, agent=hook):
        await until(lambda: len(receiver.events) >= 4)
        last = deliver(transport, ADA).message_id
        await until(lambda: last in receiver.messages)
    events = receiver.messages
    assert [each for each in events if each in missed] == missed
    assert set(events) == {first, *missed, last}  # the first may come again: times in the index are seconds
    assert events[-1] == last


async def test_deleted_message_is_skipped(transport: Transport, receiver: HookReceiver) -> None:
    hook = url_hook(receiver)
    async with running_hooks(transport, agent=hook):
        pass
    delivery = deliver(transport, ADA)
    inbox = folder(transport).id
    transport.run(op.ChangeFlags(ADA, inbox, [1], "add", 8))
    transport.run(op.Expunge(ADA, inbox))
    transport.run(op.Collect(int(time.time()) + 10))
    kept = deliver(transport, ADA)
    transport.run(op.Move(ADA, inbox, [2], "Archive"))
    async with running_hooks(transport, agent=hook):
        await until(lambda: receiver.events)
    assert receiver.messages == [kept.message_id]
    assert delivery.message_id != kept.message_id


async def test_one_process_at_a_time_runs_the_hooks(
    transport: Transport, receiver: HookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_TAKE_OVER_SECONDS", 0.05)
    other = HookReceiver()
    with Transport.open(transport.root) as beside:
        async with running_hooks(transport, agent=url_hook(receiver)), running_hooks(beside, agent=url_hook(other)):
            deliver(beside, ADA)
            await until(lambda: receiver.events)
            assert other.events == []
        async with running_hooks(beside, agent=url_hook(other)):
            deliver(transport, ADA)
            await until(lambda: other.events)
    assert (len(receiver.events), len(other.events)) == (1, 1)
    other.close()


async def test_slow_response_is_cut_off() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                writer.write(b"X: y\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(OSError):  # noqa: PT011
            await asyncio.to_thread(web.post, f"http://127.0.0.1:{port}/", b"x", {}, 0.5)
    server.close()


async def test_write_errors_of_the_store_do_not_repeat_a_call(
    transport: Transport, receiver: HookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_STORE_ERROR_SECONDS", 0.05)
    real = transport.commit
    failures = 3

    async def failing(operation: Any, actor: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise MailError(Reason.DISK_FULL)
        return await real(operation, actor)

    async with running_hooks(transport, agent=url_hook(receiver)):
        monkeypatch.setattr(transport, "commit", failing)
        sent = [deliver(transport, ADA).message_id for _ in range(2)]
        await until(lambda: receiver.messages == sent)
    assert failures == 0
    assert receiver.messages == sent  # each delivered once


async def test_mail_before_the_first_run_of_a_new_hook_is_delivered(tmp_path: Path, receiver: HookReceiver) -> None:
    """The server accepts mail as soon as the store is open; hooks start a little later."""
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    hooks = {"agent": url_hook(receiver)}
    store = await asyncio.to_thread(open_served_store, str(root), Settings(hook=hooks))
    first = deliver(store.transport, ADA).message_id
    runner.create_cursors(store.transport, hooks)  # as another worker does
    async with running_hooks(store.transport, **hooks):
        await until(lambda: receiver.messages == [first])
    await asyncio.to_thread(close_store, store)


def test_invalid_settings_are_reported() -> None:
    assert list(hook_problems("agent", HookSettings(url="https://example.test/x"), VALUE_RULES)) == []
    assert list(hook_problems("agent", HookSettings(command=("true",), folders=("*",)), VALUE_RULES)) == []
    bad = HookSettings(
        url="ftp://x",
        command=("x",),
        accounts=("nobody",),
        folders=("a//b",),
        concurrency=0,
        authorization_file="/none",
        timeout=Seconds(0),
        first_retry=Seconds(0),
        longest_retry=Seconds(0),
    )
    assert {key for key, _ in hook_problems("a b", bad, VALUE_RULES)} == {
        "", "url", "command", "accounts", "folders", "concurrency", "authorization_file", "timeout", "first_retry",
        "longest_retry",
    }  # fmt: skip
    assert {key for key, _ in hook_problems("agent", HookSettings(), VALUE_RULES)} == {"command"}
