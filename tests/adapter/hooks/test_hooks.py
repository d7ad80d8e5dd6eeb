"""Hooks: real commands and a real HTTP server are told of new mail, at least once, whatever ends or fails meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.server
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from adapter.config.loader import Seconds
from adapter.config.schema import HookSettings, Settings
from adapter.config.validate import hook_problems
from adapter.hooks import call, runner
from adapter.net import http as web
from adapter.server.settings import VALUE_RULES
from adapter.server.store_lifecycle import open_served_store
from adapter.sessions.context import close_store
from adapter.store.queries import bookmarks as bookmark_queries
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.serve import served
from tests.support.stores import ADA, BOB, append, deliver, folder, new_store
from tests.support.waiting import PATIENCE, until, wait_until


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    with new_store(tmp_path / "store", ADA, BOB) as opened:
        yield opened
    assert_layers_agree(tmp_path / "store", tmp_path / "scratch")


class Receiver:
    """An HTTP server that keeps what it is told; ``statuses`` are what it answers, the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self.told: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.statuses = list(statuses) or [200]
        self.answers = threading.Event()  # nobody gets an answer while it is not set
        self.answers.set()
        self.calls = 0
        self.rejected = ""  # a subject
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = outer.statuses.pop(0) if len(outer.statuses) > 1 else outer.statuses[0]
                status = 500 if body["subject"] == outer.rejected else status
                outer.calls += 1
                outer.answers.wait(PATIENCE)
                outer.headers.append(dict(self.headers))
                if status < 300:
                    outer.told.append(body)
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Location", "/elsewhere")
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/mail?x=1"

    @property
    def messages(self) -> list[str]:
        return [each["message"] for each in self.told]

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def url_hook(receiver: Receiver, **changes: Any) -> HookSettings:
    values = {
        "url": receiver.url,
        "first_retry": Seconds(0.05),
        "longest_retry": Seconds(0.3),
        "timeout": Seconds(PATIENCE),
    }
    return HookSettings(**{**values, **changes})


@contextlib.asynccontextmanager
async def running(transport: Transport, **hooks: HookSettings) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(runner.run(transport, hooks, stop))
    await until(lambda: task.done() or all(bookmarks(transport, name) for name in hooks))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await task


def bookmarks(transport: Transport, hook: str) -> dict[str, str]:
    with transport.reading() as connection:
        return bookmark_queries.of_owner(connection, f"hook {hook}")


def _is_running(process: str) -> bool:
    return Path("/proc", process).exists()


def _head(path: str) -> str:
    return "".join(Path(path).read_text().splitlines(keepends=True)[:2])


@pytest.mark.setting("hook.url", "hook.authorization_file")
async def test_a_url_is_told(transport: Transport, receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer abc\n")
    deliver(transport, ADA)  # before the hook was there
    async with running(transport, agent=url_hook(receiver, authorization_file=str(tmp_path / "token"))):
        delivery = deliver(transport, ADA, octets=message(subject="Grüße"))
        await until(lambda: receiver.told)
    (told,) = receiver.told
    assert told["message"] == delivery.message_id
    assert (told["event"], told["hook"], told["account"], told["folder"], told["uid"]) == (
        "new-mail", "agent", ADA, "INBOX", 2,
    )  # fmt: skip
    assert told["subject"] == "Grüße"
    assert "@" in told["from"]
    assert _head(told["file"]) == f"---\nid: {delivery.message_id}\n"
    assert receiver.headers[0]["Content-Type"] == "application/json"
    assert receiver.headers[0]["Authorization"] == "Bearer abc"


@pytest.mark.setting("hook.command")
async def test_a_command_is_run(transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKPOST_RELAY_PASSWORD", "secret")
    monkeypatch.setenv("SECRET", "secret")
    script = tmp_path / "hook.py"
    script.write_text(
        "import json, os, sys\n"
        f"path = {str(tmp_path)!r} + '/told-' + os.environ['MARKPOST_UID']\n"
        "json.dump([sys.argv[1:], json.load(sys.stdin), dict(os.environ)], open(path + '.new', 'w'))\n"
        "os.rename(path + '.new', path)\n"
    )
    subject = 'a $(touch x) `b` "c" ' + "long " * 400
    async with running(transport, agent=HookSettings(command=(sys.executable, str(script), "one; two"))):
        delivery = deliver(transport, ADA, octets=message(subject=subject))
        await until(lambda: (tmp_path / "told-1").exists())
    arguments, told, variables = json.loads((tmp_path / "told-1").read_text())
    assert arguments == ["one; two"]  # no shell
    assert told["message"] == variables["MARKPOST_MESSAGE"] == delivery.message_id
    assert subject.startswith(told["subject"])
    assert variables["MARKPOST_SUBJECT"] == subject[:1000]
    assert variables["MARKPOST_FILE"] == told["file"]
    assert "secret" not in variables.values()


@pytest.mark.setting("hook.accounts", "hook.folders")
async def test_only_what_is_wanted(transport: Transport, receiver: Receiver) -> None:
    others = Receiver()
    transport.run(op.CreateFolder(ADA, "Lists"))
    async with running(
        transport,
        lists=url_hook(receiver, accounts=(ADA.upper(),), folders=("Lists", "inbox")),
        everything=url_hook(others, folders=("*",), concurrency=4),
    ):
        deliver(transport, BOB)
        append(transport, "Lists", message())
        append(transport, "Sent", message())
        transport.run(op.Copy(ADA, folder(transport, "Lists").id, [1], "INBOX"))  # not new
        deliver(transport, ADA)
        await until(lambda: len(receiver.told) == 2 and len(others.told) == 4)
    assert [(told["account"], told["folder"]) for told in receiver.told] == [(ADA, "Lists"), (ADA, "INBOX")]
    assert sorted(told["folder"] for told in others.told) == ["INBOX", "INBOX", "Lists", "Sent"]
    others.close()


async def test_a_hook_that_fails_is_tried_again_and_holds_up_nobody(transport: Transport, receiver: Receiver) -> None:
    failing = Receiver(500, 302, 500, 204)
    dead = HookSettings(command=("/nonexistent/program",), first_retry=Seconds(0.05))
    async with running(transport, failing=url_hook(failing), dead=dead, good=url_hook(receiver)):
        sent = [deliver(transport, ADA).message_id for _ in range(3)]
        await until(lambda: receiver.messages == sent)
        await until(lambda: sorted(failing.messages) == sorted(sent))
        await until(lambda: not [item for item in bookmarks(transport, "failing") if item.startswith("retry")])
        assert [item for item in bookmarks(transport, "dead") if item.startswith("retry")]
    failing.close()


@pytest.mark.setting("hook.give_up")
async def test_one_message_that_is_never_taken_does_not_stop_the_rest(
    transport: Transport, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.rejected = "poison"
    async with running(transport, agent=url_hook(receiver, give_up=Seconds(1.5))):
        subjects = ("poison", "a", "b")
        sent = [deliver(transport, ADA, octets=message(subject=subject)).message_id for subject in subjects]
        await until(lambda: receiver.messages == sent[1:])
        await until(lambda: len(bookmarks(transport, "agent")) == 1)
    assert f"giving up on {sent[0]}" in caplog.text


async def test_the_cursor_survives(transport: Transport, receiver: Receiver) -> None:
    hook = url_hook(receiver)
    async with running(transport, agent=hook):
        first = deliver(transport, ADA).message_id
        await until(lambda: receiver.messages == [first])
    missed = [deliver(transport, ADA).message_id for _ in range(5)]
    with Transport.open(transport.root) as another:
        async with running(another, agent=hook):
            await until(lambda: len(receiver.told) >= 6)
            await asyncio.sleep(0.1)
    assert receiver.messages == [first, *missed]


@pytest.mark.setting("hook.first_retry")
async def test_retries_survive(transport: Transport, receiver: Receiver) -> None:
    receiver.statuses = [500]
    async with running(transport, agent=url_hook(receiver, first_retry=Seconds(60.0), longest_retry=Seconds(60.0))):
        sent = deliver(transport, ADA).message_id
        await until(lambda: len(bookmarks(transport, "agent")) == 2)
    receiver.statuses = [200]
    (item,) = (item for item in bookmarks(transport, "agent") if item.startswith("retry"))
    retry = runner.Retry.decode(item, bookmarks(transport, "agent")[item])
    transport.run(op.SetBookmarks("hook agent", {item: retry._replace(due=0).value}))
    async with running(transport, agent=url_hook(receiver)):
        await until(lambda: receiver.messages == [sent])
        await until(lambda: len(bookmarks(transport, "agent")) == 1)


async def test_compaction_that_outran_the_cursor(transport: Transport, receiver: Receiver) -> None:
    """The index tells what came while nobody listened and the journal went."""
    hook = url_hook(receiver, accounts=(ADA,))
    async with running(transport, agent=hook):
        first = deliver(transport, ADA).message_id
        await until(lambda: receiver.messages == [first])
    missed = []
    for _ in range(3):
        missed.append(deliver(transport, ADA).message_id)
        deliver(transport, BOB)
        append(transport, "Archive", message())
        transport.snapshot()
    async with running(transport, agent=hook):
        await until(lambda: len(receiver.told) >= 4)
        last = deliver(transport, ADA).message_id
        await until(lambda: last in receiver.messages)
    told = receiver.messages
    assert [each for each in told if each in missed] == missed
    assert set(told) == {first, *missed, last}  # the first may be told of again: times in the index are seconds
    assert told[-1] == last


async def test_a_message_that_is_gone_is_not_told_of(transport: Transport, receiver: Receiver) -> None:
    hook = url_hook(receiver)
    async with running(transport, agent=hook):
        pass
    delivery = deliver(transport, ADA)
    inbox = folder(transport).id
    transport.run(op.ChangeFlags(ADA, inbox, [1], "add", 8))
    transport.run(op.Expunge(ADA, inbox))
    transport.run(op.Collect(int(time.time()) + 10))
    kept = deliver(transport, ADA)
    transport.run(op.Move(ADA, inbox, [2], "Archive"))
    async with running(transport, agent=hook):
        await until(lambda: receiver.told)
    assert receiver.messages == [kept.message_id]
    assert delivery.message_id != kept.message_id


async def test_one_process_runs_the_hooks(
    transport: Transport, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_TAKE_OVER", 0.05)
    other = Receiver()
    with Transport.open(transport.root) as beside:
        async with running(transport, agent=url_hook(receiver)), running(beside, agent=url_hook(other)):
            deliver(beside, ADA)
            await until(lambda: receiver.told)
            assert other.told == []
        async with running(beside, agent=url_hook(other)):
            deliver(transport, ADA)
            await until(lambda: other.told)
    assert (len(receiver.told), len(other.told)) == (1, 1)
    other.close()


@pytest.mark.setting("hook.timeout")
async def test_calls_end_in_time_and_are_bounded(transport: Transport, receiver: Receiver, tmp_path: Path) -> None:
    sleeper = f"echo $$ >> {tmp_path}/runs; exec sleep {PATIENCE:.0f}"
    hooks = {
        "slow": HookSettings(command=("/bin/sh", "-c", sleeper), timeout=Seconds(1.5), first_retry=Seconds(60.0)),
        "drip": url_hook(receiver, timeout=Seconds(0.5), first_retry=Seconds(60.0), longest_retry=Seconds(60.0)),
    }
    receiver.answers.clear()
    async with running(transport, **hooks):
        deliver(transport, ADA)
        for name in hooks:
            await until(lambda name=name: len(bookmarks(transport, name)) == 2)  # type: ignore[misc]
    (process,) = (tmp_path / "runs").read_text().split()  # once
    assert not _is_running(process)


async def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    program = str(tmp_path / "agent")
    with pytest.raises(call.HookFailed, match=f"^{program} cannot be started: No such file"):
        await call._run(HookSettings(command=(program,)), {}, b"")


def test_a_command_that_does_not_read_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(call._run(HookSettings(command=("/bin/sh", "-c", "exec 0<&-; sleep 0.2")), {}, b"x" * (1 << 20)))
        gc.collect()
    assert caplog.records == []


async def test_an_answer_that_drips_is_cut() -> None:
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


async def test_a_store_that_cannot_be_written_for_a_while(
    transport: Transport, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_AFTER_TROUBLE", 0.05)
    real = transport.commit
    failures = 3

    async def failing(operation: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise MailError(Reason.DISK_FULL)
        return await real(operation)

    async with running(transport, agent=url_hook(receiver)):
        monkeypatch.setattr(transport, "commit", failing)
        sent = [deliver(transport, ADA).message_id for _ in range(2)]
        await until(lambda: receiver.messages == sent)
    assert failures == 0
    assert receiver.messages == sent  # told once all the same


async def test_mail_before_a_new_hook_has_its_turn(tmp_path: Path, receiver: Receiver) -> None:
    """The server takes mail as soon as the store is open; a hook runs a little later."""
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    hooks = {"agent": url_hook(receiver)}
    store = await asyncio.to_thread(open_served_store, str(root), Settings(hook=hooks))
    first = deliver(store.transport, ADA).message_id
    runner.begin(store.transport, hooks)  # as another worker does
    async with running(store.transport, **hooks):
        await until(lambda: receiver.messages == [first])
    await asyncio.to_thread(close_store, store)


def test_killed_between_delivery_and_hook(tmp_path: Path, receiver: Receiver) -> None:
    """The server dies while the hook is called; the next one calls it again. With two workers one of them does."""
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        pass
    config = tmp_path / "markpost.toml"
    config.write_text(f'[hook.agent]\nurl = "{receiver.url}"\n')
    arguments = ("--config", str(config), "--lmtp", str(tmp_path / "l.sock"))

    def wait_for(count: int) -> None:
        wait_until(lambda: len(receiver.told) >= count, lambda: (tmp_path / "log").read_text()[-3000:])

    with served(root, *arguments, log=tmp_path / "log") as server, Transport.open(root) as transport:
        begun = bookmarks(transport, "agent")
        first = deliver(transport, ADA).message_id
        wait_for(1)
        wait_until(lambda: bookmarks(transport, "agent") != begun)  # the cursor is noted
        receiver.answers.clear()
        receiver.statuses = [500]
        second = deliver(transport, ADA).message_id
        wait_until(lambda: receiver.calls == 2)
        server.kill()  # the hook has been called and has not answered
        third = deliver(transport, ADA).message_id
    receiver.statuses = [200]
    receiver.answers.set()
    with served(root, *arguments, "--workers", "2", log=tmp_path / "log") as server:
        wait_for(3)
        assert server.stop() == 0
    assert receiver.messages == [first, second, third]
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert_layers_agree(root, tmp_path / "scratch")


def test_settings_that_cannot_be() -> None:
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
