"""What tests of the journal share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from adapter.store import layout, store_id
from adapter.store.disk import Directories
from adapter.store.journal import Journal
from tests.support.stores import STORE


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Directories]:
    with closing(Directories(str(tmp_path))) as opened:
        for parts in layout.DIRECTORIES:
            with opened.stable(parts, create=True):
                pass
        store_id.write(opened, STORE)
        yield opened


@pytest.fixture
def written(directories: Directories) -> Iterator[Journal]:
    with closing(Journal(directories)) as opened:
        opened.refresh()
        yield opened
