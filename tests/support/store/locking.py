"""A directory with lock files, and locks of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from adapter.store import layout
from adapter.store.disk import Directories
from adapter.store.locks import Locks
from tests.support.waiting import PATIENCE


@pytest.fixture
def lock_directories(tmp_path: Path) -> Iterator[Directories]:
    """An empty store with the directories for lock files."""
    with closing(Directories(str(tmp_path))) as opened:
        with opened.stable(layout.ADDRESS_LOCKS, create=True):
            pass
        yield opened


@pytest.fixture
def held(lock_directories: Directories) -> Iterator[Locks]:
    """Locks that wait for other holders."""
    with closing(Locks(lock_directories, PATIENCE)) as opened:
        yield opened


def impatient(directories: Directories) -> closing[Locks]:
    """Locks that fail soon if another holder has one."""
    return closing(Locks(directories, 0.05))
