"""One lab for all crash tests of a process: the prepared store is made once."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator

import pytest

from tests.crash.lab import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    logging.getLogger("adapter").setLevel(logging.CRITICAL)  # what it recovers and takes back is no news here
    scratch = tmp_path_factory.mktemp("crash")
    yield Lab(str(scratch))
    logging.getLogger("adapter").setLevel(logging.NOTSET)
    shutil.rmtree(scratch, ignore_errors=True)
