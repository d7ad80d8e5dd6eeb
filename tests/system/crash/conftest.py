"""One lab for all crash tests of a process: the prepared store is made once."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator

import pytest

from adapter.store import journal
from tests.system.crash.lab.lab import Lab

#: A journal is copied and read at each of thousands of points. So little is enough for most operations; the others
#: make room for more, as they do elsewhere after many more of them.
_PADDING = 16 << 10


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    scratch = tmp_path_factory.mktemp("crash")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_LEAST_PADDING", _PADDING)
        made = Lab(str(scratch))
    yield made
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(autouse=True)
def little_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_LEAST_PADDING", _PADDING)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the store's log: recovery and rollback happen in every test here; other tests check the log."""
    logging.getLogger("adapter").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("adapter").setLevel(logging.NOTSET)
