"""Hooks under test: a receiver of calls, and running hooks."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import HookSettings
from adapter.hooks import runner
from adapter.store.queries import bookmarks as bookmark_queries
from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.stores import ADA, BOB, new_store
from tests.support.waiting import PATIENCE, until


class HookReceiver:
    """An HTTP server that records calls; ``statuses`` are its answers, the last one repeated."""

    def __init__(self, *statuses: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.statuses = list(statuses) or [200]
        self.answers = threading.Event()  # calls wait while it is not set
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
                    outer.events.append(body)
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
        return [each["message"] for each in self.events]

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[HookReceiver]:
    started = HookReceiver()
    yield started
    started.close()


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    """An open store with two accounts; all its layers must agree once it is closed."""
    with new_store(tmp_path / "store", ADA, BOB) as opened:
        yield opened
    assert_layers_agree(tmp_path / "store", tmp_path / "scratch")


def url_hook(receiver: HookReceiver, **changes: Any) -> HookSettings:
    values = {
        "url": receiver.url,
        "first_retry": Seconds(0.05),
        "longest_retry": Seconds(0.3),
        "timeout": Seconds(PATIENCE),
    }
    return HookSettings(**{**values, **changes})


@contextlib.asynccontextmanager
async def running_hooks(transport: Transport, **hooks: HookSettings) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(runner.run(transport, hooks, stop))
    await until(lambda: task.done() or all(hook_bookmarks(transport, name) for name in hooks))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await task


def hook_bookmarks(transport: Transport, hook: str) -> dict[str, str]:
    with transport.reading() as connection:
        return bookmark_queries.of_owner(connection, f"hook {hook}")
