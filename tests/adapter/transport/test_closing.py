"""Closing, and late failures of opening: no leftovers, and no writes afterwards."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from adapter.content import ingest
from adapter.transport import compaction
from adapter.transport import transport as transport_module
from adapter.transport.staging import SPOOL_MEMORY
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.stores import ADA, deliver, new_store
from tests.support.waiting import PATIENCE, wait_until

LARGE = b"x" * (SPOOL_MEMORY + 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with new_store(tmp_path / "store", ADA):
        pass
    return tmp_path / "store"


def test_closing_waits_for_a_message_being_staged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging, proceed = threading.Event(), threading.Event()
    real = ingest.ingest

    def slowly(*all_: Any, **more: Any) -> ingest.Ingested:
        staging.set()
        assert proceed.wait(PATIENCE)
        return real(*all_, **more)

    monkeypatch.setattr(ingest, "ingest", slowly)
    store = Transport.open(root)
    with ThreadPoolExecutor() as pool:
        staged = pool.submit(store.stage, message())
        assert staging.wait(PATIENCE)
        closed = pool.submit(store.close)
        wait_until(lambda: store._staging._ended)
        assert not closed.done()
        proceed.set()
        assert staged.result(PATIENCE).content.size == len(message())
        closed.result(PATIENCE)
    assert_layers_agree(root, root.parent / "scratch")


def test_closed_store_refuses_to_stage(root: Path) -> None:
    store = Transport.open(root)
    spool = store.spool()
    store.close()
    for attempt in (lambda: store.stage(message()), lambda: spool.write(LARGE)):
        with pytest.raises(MailError) as caught:
            attempt()
        assert caught.value.reason is Reason.MAINTENANCE
    spool.close()
    assert os.listdir(root / "staging") == []


def test_interrupted_use_of_staging_does_not_block_closing(root: Path) -> None:
    store = Transport.open(root)
    interrupted_use = store._staging._using()
    interrupted_use.__enter__()  # an interrupt before the block is entered: __exit__ never runs
    store.close()
    assert os.listdir(root / "staging") == []


def test_spool_closed_after_the_store_removes_no_foreign_file(root: Path, tmp_path: Path) -> None:
    """The number of a closed descriptor is reused by the next file that is opened."""
    store = Transport.open(root)
    spool = store.spool()
    spool.write(LARGE)
    number = store._staging._directory
    store.close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / spool._name).touch()
    foreign_fd = os.open(elsewhere, os.O_RDONLY)
    os.dup2(foreign_fd, number)
    spool.close()
    assert os.listdir(elsewhere) == [spool._name]
    for fd in {foreign_fd, number}:
        os.close(fd)


def test_checkpoint_succeeds_although_compaction_cannot_start(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unable(_: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(compaction, "is_due", unable)
    with Transport.open(root) as store:
        deliver(store, ADA)
    assert "checkpoint failed" not in caplog.text
    assert "compaction check failed" in caplog.text
    assert_layers_agree(root, root.parent / "scratch")


def test_late_failure_of_opening_leaves_no_thread_and_no_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = set(threading.enumerate())
    for name in ("Compactor", "_Checkpointer"):
        with monkeypatch.context() as patch:
            patch.setattr(transport_module, name, unable)
            with pytest.raises(MailError) as caught:
                Transport.open(root)
        assert caught.value.temporary
        assert set(threading.enumerate()) == before
        assert_layers_agree(root, root.parent / "scratch")
