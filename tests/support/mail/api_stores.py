"""Stores with mail that the Python API made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.api import Mailbox, Store

ADA, BOB, EVE = "ada@example.test", "bob@example.test", "eve@example.test"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open store with three empty mailboxes."""
    with Store.create(tmp_path / "store") as opened:
        for address in (ADA, BOB, EVE):
            opened.add_mailbox(address)
        yield opened


@pytest.fixture
def ada(store: Store) -> Mailbox:
    return store.mailbox(ADA)


@pytest.fixture
def bob(store: Store) -> Mailbox:
    return store.mailbox(BOB)


@pytest.fixture
def exchange_root(tmp_path: Path) -> Path:
    """A store of two accounts, to be exported: messages in several folders, some with flags."""
    with Store.create(tmp_path / "store") as store:
        ada, bob = store.add_mailbox(ADA), store.add_mailbox(BOB)
        for number in range(3):
            ada.send(f"text {number}\n", to=BOB, subject=f"subject {number}")
        bob.create_folder("Work/Plans")
        bob.set_flags(bob.move(bob.messages()[0], "Work/Plans"), "read", "todo")
    return tmp_path / "store"
