"""The configuration files that Markpost gives to other mail servers, put to work in a directory of a test."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.paths import REPOSITORY
from tests.support.waiting import PATIENCE, wait_until

CONF = REPOSITORY / "conf"


#: Below the kernel's ephemeral ports: a port that is free now is not taken by a connection a moment later.
_PORTS = range(15_000, 32_000)


def free_port() -> int:
    """A free port of loopback, for a program that cannot choose one itself."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def wait_for_port(port: int, log: Path) -> None:
    wait_until(lambda: is_listened_on(port), lambda: log.read_text() if log.exists() else "no log")


def is_listened_on(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
        return True
    return False


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
