"""Compaction of a journal in the background."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.transport import compaction
from adapter.transport import transport as transport_module
from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.stores import ADA, BOB, deliver, new_store, snapshot_seqs


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
