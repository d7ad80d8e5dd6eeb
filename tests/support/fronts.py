"""The configuration files that Markpost gives to other mail servers, put to work in a directory of a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, log: Path, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "no log"
        time.sleep(0.05)


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that other users may pass, as the programs of a mail server want."""
    path = Path(tempfile.mkdtemp(prefix="markpost-front-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def adapted(name: str, changes: Mapping[str, str]) -> str:
    """A file below ``conf/`` with paths, ports and domains of the test; each change must find something to change."""
    text = (CONF / name).read_text()
    for old, new in changes.items():
        assert old in text, f"{name} does not say {old!r}"
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def postfix(home: Path, main: str, master: str, port: int) -> Iterator[Path]:
    """A private Postfix; yields its log. It must be started by root."""
    for name in ("conf", "queue", "data"):
        (home / name).mkdir()
    shutil.chown(home / "data", "postfix", "postfix")
    (home / "conf" / "main.cf").write_text(main)
    (home / "conf" / "master.cf").write_text(master)
    log = home / "log"

    def control(command: str) -> None:
        done = subprocess.run(["postfix", "-c", home / "conf", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    control("start")
    try:
        wait_for_port(port, log)
        yield log
    finally:
        control("stop")
