"""The upstream Dovecot of the mirrored accounts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.upstream import Dovecot, running_dovecot


@pytest.fixture(scope="session")
def dovecot() -> Iterator[Dovecot]:
    with running_dovecot() as running:
        yield running
