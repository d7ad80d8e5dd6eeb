"""Compaction of a journal in the background."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from adapter.transport import compaction
from adapter.transport import transport as transport_module
from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.store.scenario import steps
from tests.support.stores import ADA, BOB, deliver, new_store


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three snapshots taken on the way, the last one not at the end."""
    root = tmp_path_factory.mktemp("snapshots") / "store"
    with new_store(root, ADA, BOB) as store:
        for number, _ in enumerate(steps(store)):
            if number in (6, 14, 21):
                store.snapshot()
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store", symlinks=True))


def snapshot_seqs(root: Path) -> list[int]:
    return sorted(int(path.name) for path in (root / "snapshots").iterdir())


def test_a_journal_that_has_grown_is_compacted_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    monkeypatch.setattr(transport_module, "CHECKPOINT_SECONDS", 3600.0)  # the only ones are those below
    with new_store(root, ADA, BOB) as store, Transport.open(root) as other:
        monkeypatch.setattr(compaction, "DUE_BYTES", 1000)
        deliver(store, ADA)
        store.checkpoint()
        other.checkpoint()
        snapshot = store._compactor._running
        assert snapshot is not None
        assert other._compactor._running is None  # one of them does it
        assert snapshot.wait(60) == 0
    assert len(snapshot_seqs(root)) == 1
    assert_layers_agree(root, tmp_path / "scratch")
