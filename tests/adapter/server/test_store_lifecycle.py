"""The store is opened and closed completely, whenever the server is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from adapter.config.schema import Settings
from adapter.net.shared_counts import SharedCounts
from adapter.net.tls import Certificates
from adapter.server import store_lifecycle
from adapter.server.store_lifecycle import StoreLifecycle
from adapter.sessions.admission import Admission
from adapter.sessions.context import OpenStore, ServerContext, open_store
from adapter.store import offline_marker
from adapter.store.disk import Directories
from tests.support.layers import assert_layers_agree
from tests.support.stores import ADA, new_store
from tests.support.waiting import PATIENCE, until


async def test_shutdown_while_the_store_is_reopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    settings = Settings()
    services = ServerContext(settings, "mail.example.test", Certificates(settings.tls), Admission(settings.limits))
    opening, go_on, stop = threading.Event(), threading.Event(), asyncio.Event()

    def slowly(root: str, settings: Settings, counts: SharedCounts | None) -> OpenStore:
        opening.set()
        assert go_on.wait(PATIENCE)
        return open_store(root, settings, counts)

    with contextlib.closing(Directories(str(root))) as directories:
        lifecycle = StoreLifecycle(str(root), services, directories)
        await lifecycle.open()
        watching = asyncio.create_task(lifecycle.watch(stop))
        offline_marker.write(directories, offline_marker.signed("test", lasting=True))
        await until(lambda: services.store is None)
        monkeypatch.setattr(store_lifecycle, "open_store", slowly)
        offline_marker.remove(directories)
        await until(opening.is_set)
        stop.set()
        go_on.set()
        async with asyncio.timeout(PATIENCE):
            await watching
        await lifecycle.close()
    assert_layers_agree(root, tmp_path / "scratch")  # and no staging session is left


@pytest.mark.parametrize("error", [OSError("not now"), RuntimeError("not now")])
async def test_store_is_closed_even_if_its_users_fail_to_close(tmp_path: Path, error: Exception) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    settings = Settings()
    services = ServerContext(settings, "mail.example.test", Certificates(settings.tls), Admission(settings.limits))
    errors = [error]
    stop = asyncio.Event()

    async def close() -> None:
        if errors:
            raise errors.pop()

    services.before_close.append(close)
    with contextlib.closing(Directories(str(root))) as directories:
        lifecycle = StoreLifecycle(str(root), services, directories)
        await lifecycle.open()
        watching = asyncio.create_task(lifecycle.watch(stop))
        offline_marker.write(directories, offline_marker.signed("test", lasting=True))
        await until(lambda: services.store is None and not errors)
        offline_marker.remove(directories)
        await until(lambda: services.store is not None)
        stop.set()
        await watching
        await lifecycle.close()
    assert_layers_agree(root, tmp_path / "scratch")
