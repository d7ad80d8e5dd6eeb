"""Calling a hook: a command, or a URL. Each call ends in bounded time; what it prints or answers is not kept."""

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

_LONGEST_SECRET = 4096


class HookFailed(Exception):  # noqa: N818 - an outcome
    """The hook did not take it; the text may be logged."""


async def call(settings: HookSettings, told: Mapping[str, Any]) -> None:
    """Raises :class:`HookFailed`."""
    body = orjson.dumps(told)
    if settings.command:
        await _run(settings, environment(told), body)
        return
    try:
        status = await _on_daemon_thread(lambda: _post(settings, body))
    except (OSError, ValueError) as error:
        raise HookFailed(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
    if not 200 <= status < 300:
        raise HookFailed(f"HTTP status {status}")


async def _on_daemon_thread(work: Callable[[], int]) -> int:
    """Unlike one of a pool, such a thread does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[int] = loop.create_future()

    def settle(result: int, error: Exception | None) -> None:
        if not outcome.done():
            outcome.set_result(result) if error is None else outcome.set_exception(error)

    def run() -> None:
        result, failure = 0, None
        try:
            result = work()
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="markpost-hook", daemon=True).start()
    return await outcome


def _post(settings: HookSettings, body: bytes) -> int:
    headers = {"Content-Type": "application/json", "User-Agent": "Markpost"}
    if settings.authorization_file:
        with open(settings.authorization_file, "rb") as file:
            headers["Authorization"] = file.read(_LONGEST_SECRET).partition(b"\n")[0].rstrip(b"\r").decode("latin-1")
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
            start_new_session=True,  # so that all it starts can be ended with it
        )
    except OSError as error:
        raise HookFailed(f"{settings.command[0]} cannot be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(settings.timeout):
            await process.communicate(body)
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # it need not read; Python before 3.11.5 logs that unless asked
                    await process.stdin.wait_closed()
    except TimeoutError:
        raise HookFailed(f"not done after {settings.timeout:g} seconds") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise HookFailed(f"exit status {process.returncode}")
