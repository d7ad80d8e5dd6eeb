"""The process that replays, apart from the driver: started with the run, asked once for each look."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

import orjson

from adapter.maintenance.expected.store_facts import Facts, read_facts


class Replayer:
    def __init__(self, root: str, scratch: str) -> None:
        """``scratch`` is the run's: SQLite sorts there."""
        self._root = root
        self._idle = True
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "adapter.maintenance.expected.replay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path]), "SQLITE_TMPDIR": scratch},
        )

    def ask(self, scratch: str, store: str, earlier: str) -> None:
        """Begin with the tables of a look; ``earlier`` is the scratch directory of one to go on from."""
        self._idle = False
        request: dict[str, Any] = {"root": self._root, "scratch": scratch, "store": store, "earlier": earlier}
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError("the replay has ended")
        with contextlib.suppress(BrokenPipeError):  # the answer tells why
            stdin.write(orjson.dumps(request) + b"\n")
            stdin.flush()

    def answer(self, scratch: str) -> Facts:
        """Wait for what was asked for."""
        stdout = self._process.stdout
        if stdout is None or not stdout.readline():
            _, errors = self._process.communicate()
            raise RuntimeError(f"the replay failed: {errors.decode(errors='replace')[-2000:]}")
        self._idle = True
        return read_facts(scratch)

    def close(self) -> None:
        """Nothing more is asked for; what is under way is given up."""
        if self._idle:
            self._process.communicate()  # closes its input, at which it ends
        else:
            self._process.kill()
            self._process.communicate()
