"""One lab for all crash tests of a process: the prepared store is made once."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator

import pytest

from tests.crash.lab import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    scratch = tmp_path_factory.mktemp("crash")
    yield Lab(str(scratch))
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the store recovers and takes back is no news here; tests elsewhere do look at the log."""
    logging.getLogger("adapter").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("adapter").setLevel(logging.NOTSET)
