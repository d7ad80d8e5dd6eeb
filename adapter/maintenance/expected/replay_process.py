"""The replay process, separate from the driver: started with the run, and asked once for each inspection."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

import orjson

from adapter.maintenance.expected.store_facts import Facts, read_facts


class ReplayProcess:
    def __init__(self, root: str, scratch: str) -> None:
        """Start the process. ``scratch``: the run's scratch directory, where SQLite sorts."""
        self._root = root
        self._idle = True
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "adapter.maintenance.expected.replay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path]), "SQLITE_TMPDIR": scratch},
        )

    def request(self, scratch: str, store: str, earlier: str) -> None:
        """Request the tables of an inspection. ``earlier``: scratch directory of the inspection to continue from."""
        self._idle = False
        request: dict[str, Any] = {"root": self._root, "scratch": scratch, "store": store, "earlier": earlier}
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError("the replay process has ended")
        with contextlib.suppress(BrokenPipeError):  # result() raises the error
            stdin.write(orjson.dumps(request) + b"\n")
            stdin.flush()

    def result(self, scratch: str) -> Facts:
        """Wait for the requested tables."""
        stdout = self._process.stdout
        if stdout is None or not stdout.readline():
            _, errors = self._process.communicate()
            raise RuntimeError(f"the replay failed: {errors.decode(errors='replace')[-2000:]}")
        self._idle = True
        return read_facts(scratch)

    def close(self) -> None:
        """End the process; a replay in progress is abandoned."""
        if self._idle:
            self._process.communicate()  # closes its input: the process exits
        else:
            self._process.kill()
            self._process.communicate()
