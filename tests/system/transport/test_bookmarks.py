"""One process mirrors an account."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from adapter.store.disk import Directories
from adapter.store.locks import duty_lock
from tests.support.paths import REPOSITORY
from tests.support.stores import ADA, new_store


def test_a_duty_is_one_process_s(tmp_path: Path) -> None:
    holder = (
        "import sys; from adapter.store.disk import Directories; from adapter.store.locks import duty_lock\n"
        "with duty_lock(Directories(sys.argv[1]), 'pull-work') as ours:\n print(ours, flush=True); sys.stdin.read()"
    )
    with new_store(tmp_path / "store", ADA) as transport, closing(Directories(transport.root)) as directories:
        with subprocess.Popen(
            [sys.executable, "-c", holder, transport.root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"True\n"
            with duty_lock(directories, "pull-work") as ours, duty_lock(directories, "pull-home") as free:
                assert (ours, free) == (False, True)
            other.kill()
        with duty_lock(directories, "pull-work") as ours:
            assert ours
