"""A server with the settings a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapter.config.schema import Settings
from tests.support.imapd import Running, Start, make_store, serving
from tests.support.stores import ADA, BOB


@pytest.fixture
def start(tmp_path: Path) -> Start:
    @asynccontextmanager
    async def run(**sections: dict[str, Any]) -> AsyncIterator[Running]:
        settings = Settings()
        for section, values in sections.items():
            changed: dict[str, Any] = {section: replace(getattr(settings, section), **values)}
            settings = replace(settings, **changed)
        root = tmp_path / "store"
        await asyncio.to_thread(make_store, root, ADA, BOB)
        async with serving(root, settings) as running:
            yield running

    return run
