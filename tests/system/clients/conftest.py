"""What several tests with other programs share: a Dovecot whose accounts are mirrored, and an empty store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.processes.upstream import Dovecot, running_dovecot
from tests.support.stores import ADA, new_store


@pytest.fixture(scope="session")
def dovecot() -> Iterator[Dovecot]:
    with running_dovecot() as running:
        yield running


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    with new_store(tmp_path / "store", ADA) as opened:
        yield opened
    assert_layers_agree(tmp_path / "store", tmp_path / "scratch")
