"""Watching a mailbox that another process delivers to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.api import Mailbox, Store
from tests.support.paths import REPOSITORY
from tests.support.waiting import PATIENCE

ROOT = REPOSITORY


ADA, BOB, EVE = "ada@example.test", "bob@example.test", "eve@example.test"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store") as opened:
        for address in (ADA, BOB, EVE):
            opened.add_mailbox(address)
        yield opened


@pytest.fixture
def bob(store: Store) -> Mailbox:
    return store.mailbox(BOB)


def test_watch_hears_of_other_processes(bob: Mailbox, store: Store) -> None:
    code = (
        "from adapter.api import Store\n"
        f"with Store.open({store.transport.root!r}) as store:\n"
        f"    store.mailbox({ADA!r}).send('x', to={BOB!r}, subject='from afar')\n"
    )
    watch = bob.watch(timeout=PATIENCE)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
    assert next(watch).subject == "from afar"
    watch.close()
