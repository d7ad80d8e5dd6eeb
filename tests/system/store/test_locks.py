"""Locks between processes: exclusion, and release at death."""

from __future__ import annotations

import os
import time
from contextlib import closing
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import pytest

from adapter.store.disk import Directories
from adapter.store.locks import Locks
from protocol.errors import MailError
from tests.support.processes import channel, running
from tests.support.store.locking import impatient
from tests.support.waiting import PATIENCE

ADA, BOB = "ada@example.test", "bob@example.test"


def _count_up(root: str, rounds: int) -> None:
    with closing(Directories(root)) as directories, closing(Locks(directories, PATIENCE)) as own:
        for _ in range(rounds):
            with own.hold([ADA]):
                counter = Path(root, "counter")
                counter.write_text(str(int(counter.read_text()) + 1))


def test_processes_exclude_each_other(lock_directories: Directories) -> None:
    counter = Path(lock_directories.root, "counter")
    counter.write_text("0")
    with running(_count_up, lock_directories.root, 200), running(_count_up, lock_directories.root, 200):
        _count_up(lock_directories.root, 200)
    assert counter.read_text() == "600"


def _hold_and_die(root: str, answers: Queue[Any]) -> None:
    with closing(Directories(root)) as directories, closing(Locks(directories, PATIENCE)) as own, own.hold([ADA]):
        answers.put("held")
        answers.close()
        answers.join_thread()
        time.sleep(60)


def test_a_dead_process_holds_nothing(held: Locks, lock_directories: Directories) -> None:
    answers = channel()
    with running(_hold_and_die, lock_directories.root, answers, ends_with=-9) as process:
        assert answers.get(timeout=PATIENCE) == "held"
        with impatient(lock_directories) as other, pytest.raises(MailError), other.hold([ADA]):
            pytest.fail("held by the other process")
        process.kill()
        process.join()
        with held.hold([ADA]):
            pass


def test_locks_are_of_no_use_after_fork(held: Locks) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"held"
        try:
            with held.hold([ADA]):
                pass
        except RuntimeError:
            answer = b"refused"
        finally:
            os.write(writer, answer)
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"refused"
    os.close(reader)
    with held.hold([ADA]):
        pass
