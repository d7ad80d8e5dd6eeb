"""Call a hook: a command or a URL. Every call ends in bounded time; its output is discarded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from adapter.config.schema import HookSettings
from adapter.hooks.event import environment
from adapter.net import http

_MAX_SECRET_BYTES = 4096


class HookFailed(Exception):  # noqa: N818 - an outcome
    """The hook did not accept the event; the text may be logged."""


async def call(settings: HookSettings, event: Mapping[str, Any]) -> None:
    """Call the hook with an event. Raises :class:`HookFailed`."""
    body = orjson.dumps(event)
    if settings.command:
        await _run(settings, environment(event), body)
        return
    try:
        status = await _on_daemon_thread(lambda: _post(settings, body))
    except (OSError, ValueError) as error:
        raise HookFailed(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
    if not 200 <= status < 300:
        raise HookFailed(f"HTTP status {status}")


async def _on_daemon_thread(work: Callable[[], int]) -> int:
    """Run work on a daemon thread: unlike a pool's, it does not keep the process from exiting."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[int] = loop.create_future()

    def set_outcome(result: int, error: Exception | None) -> None:
        if not outcome.done():
            outcome.set_result(result) if error is None else outcome.set_exception(error)

    def run() -> None:
        result, failure = 0, None
        try:
            result = work()
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the caller
            loop.call_soon_threadsafe(set_outcome, result, failure)

    threading.Thread(target=run, name="markpost-hook", daemon=True).start()
    return await outcome


def _post(settings: HookSettings, body: bytes) -> int:
    headers = {"Content-Type": "application/json", "User-Agent": "Markpost"}
    if settings.authorization_file:
        with open(settings.authorization_file, "rb") as file:
            headers["Authorization"] = file.read(_MAX_SECRET_BYTES).partition(b"\n")[0].rstrip(b"\r").decode("latin-1")
    status, _ = http.post(settings.url, body, headers, settings.timeout)
    return status


async def _run(settings: HookSettings, variables: dict[str, str], body: bytes) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *settings.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=variables,
            start_new_session=True,  # so that its children can be killed with it
        )
    except OSError as error:
        raise HookFailed(f"{settings.command[0]} cannot start: {error.strerror}") from None
    try:
        async with asyncio.timeout(settings.timeout):
            await process.communicate(body)
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # unread input, which Python before 3.11.5 would log
                    await process.stdin.wait_closed()
    except TimeoutError:
        raise HookFailed(f"timeout after {settings.timeout:g} seconds") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise HookFailed(f"exit status {process.returncode}")
