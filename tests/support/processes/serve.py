"""``markpost serve`` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.paths import REPOSITORY
from tests.support.waiting import PATIENCE

_REPOSITORY = REPOSITORY


class Served:
    """A server process: its ports by kind, and ways to end it."""

    def __init__(self, root: str | os.PathLike[str], arguments: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "adapter.cli", "serve", "--root", os.fspath(root), *arguments],
                cwd=_REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=stream,
            )
        assert self.process.stdout is not None
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            if self.lines[-1] == "ready":
                break
        else:
            self.process.wait(PATIENCE)
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")

    @property
    def ports(self) -> dict[str, int]:
        matches = (re.fullmatch(r"(\w+) 127\.0\.0\.1:(\d+)", line) for line in self.lines)
        return {match[1]: int(match[2]) for match in matches if match}

    def memory(self, field: str = "VmRSS") -> int:
        """Octets of resident memory, as the kernel counts them."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(rf"{field}:\s+(\d+) kB", status)
        assert match
        return int(match[1]) << 10

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def served(root: str | os.PathLike[str], *arguments: str, log: Path) -> Iterator[Served]:
    server = Served(root, arguments, log)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
        if server.process.stdout is not None:
            server.process.stdout.close()
