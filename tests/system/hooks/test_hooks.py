"""Hooks that run commands, and a server killed before its hook has run."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path

import pytest
import uvloop

from adapter.config.loader import Seconds
from adapter.config.schema import HookSettings
from adapter.hooks import call
from adapter.transport.transport import Transport
from tests.support.hooks import HookReceiver, hook_bookmarks, running_hooks, url_hook
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.processes.serve import served
from tests.support.stores import ADA, deliver, new_store
from tests.support.waiting import PATIENCE, until, wait_until


def _is_running(process: str) -> bool:
    return Path("/proc", process).exists()


@pytest.mark.setting("hook.command")
async def test_command_gets_the_event(transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKPOST_RELAY_PASSWORD", "secret")
    monkeypatch.setenv("SECRET", "secret")
    script = tmp_path / "hook.py"
    script.write_text(
        "import json, os, sys\n"
        f"path = {str(tmp_path)!r} + '/event-' + os.environ['MARKPOST_UID']\n"
        "json.dump([sys.argv[1:], json.load(sys.stdin), dict(os.environ)], open(path + '.new', 'w'))\n"
        "os.rename(path + '.new', path)\n"
    )
    subject = 'a $(touch x) `b` "c" ' + "long " * 400
    async with running_hooks(transport, agent=HookSettings(command=(sys.executable, str(script), "one; two"))):
        delivery = deliver(transport, ADA, octets=message(subject=subject))
        await until(lambda: (tmp_path / "event-1").exists())
    arguments, event, variables = json.loads((tmp_path / "event-1").read_text())
    assert arguments == ["one; two"]  # no shell
    assert event["message"] == variables["MARKPOST_MESSAGE"] == delivery.message_id
    assert subject.startswith(event["subject"])
    assert variables["MARKPOST_SUBJECT"] == subject[:1000]
    assert variables["MARKPOST_FILE"] == event["file"]
    assert "secret" not in variables.values()


async def test_failing_hook_is_retried_and_delays_no_other_hook(transport: Transport, receiver: HookReceiver) -> None:
    failing = HookReceiver(500, 302, 500, 204)
    dead = HookSettings(command=("/nonexistent/program",), first_retry=Seconds(0.05))
    async with running_hooks(transport, failing=url_hook(failing), dead=dead, good=url_hook(receiver)):
        sent = [deliver(transport, ADA).message_id for _ in range(3)]
        await until(lambda: receiver.messages == sent)
        await until(lambda: sorted(failing.messages) == sorted(sent))
        await until(lambda: not [item for item in hook_bookmarks(transport, "failing") if item.startswith("retry")])
        assert [item for item in hook_bookmarks(transport, "dead") if item.startswith("retry")]
    failing.close()


@pytest.mark.setting("hook.timeout")
async def test_calls_have_a_timeout_and_bounded_size(
    transport: Transport, receiver: HookReceiver, tmp_path: Path
) -> None:
    sleeper = f"echo $$ >> {tmp_path}/runs; exec sleep {PATIENCE:.0f}"
    hooks = {
        "slow": HookSettings(command=("/bin/sh", "-c", sleeper), timeout=Seconds(1.5), first_retry=Seconds(60.0)),
        "drip": url_hook(receiver, timeout=Seconds(0.5), first_retry=Seconds(60.0), longest_retry=Seconds(60.0)),
    }
    receiver.answers.clear()
    async with running_hooks(transport, **hooks):
        deliver(transport, ADA)
        for name in hooks:
            await until(lambda name=name: len(hook_bookmarks(transport, name)) == 2)  # type: ignore[misc]
    (process,) = (tmp_path / "runs").read_text().split()  # once
    assert not _is_running(process)


async def test_missing_command_is_named(tmp_path: Path) -> None:
    program = str(tmp_path / "agent")
    with pytest.raises(call.HookFailed, match=f"^{program} cannot start: No such file"):
        await call._run(HookSettings(command=(program,)), {}, b"")


def test_command_that_does_not_read_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(call._run(HookSettings(command=("/bin/sh", "-c", "exec 0<&-; sleep 0.2")), {}, b"x" * (1 << 20)))
        gc.collect()
    assert caplog.records == []


def test_hook_is_called_after_the_server_was_killed(tmp_path: Path, receiver: HookReceiver) -> None:
    """The server is killed during the call; the next one repeats it, in one of its two workers."""
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        pass
    config = tmp_path / "markpost.toml"
    config.write_text(f'[hook.agent]\nurl = "{receiver.url}"\n')
    arguments = ("--config", str(config), "--lmtp", str(tmp_path / "l.sock"))

    def wait_for(count: int) -> None:
        wait_until(lambda: len(receiver.events) >= count, lambda: (tmp_path / "log").read_text()[-3000:])

    with served(root, *arguments, log=tmp_path / "log") as server, Transport.open(root) as transport:
        begun = hook_bookmarks(transport, "agent")
        first = deliver(transport, ADA).message_id
        wait_for(1)
        wait_until(lambda: hook_bookmarks(transport, "agent") != begun)  # the cursor is saved
        receiver.answers.clear()
        receiver.statuses = [500]
        second = deliver(transport, ADA).message_id
        wait_until(lambda: receiver.calls == 2)
        server.kill()  # the hook was called and has not responded
        third = deliver(transport, ADA).message_id
    receiver.statuses = [200]
    receiver.answers.set()
    with served(root, *arguments, "--workers", "2", log=tmp_path / "log") as server:
        wait_for(3)
        assert server.stop() == 0
    assert receiver.messages == [first, second, third]
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert_layers_agree(root, tmp_path / "scratch")
