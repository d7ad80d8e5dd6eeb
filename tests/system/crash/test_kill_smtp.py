"""Sixteen clients send while the server is killed again and again: what was acknowledged is there exactly once."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from pathlib import Path

from tests.support.processes.fronts import free_port
from tests.support.processes.serve import Served
from tests.support.smtpd import make_store
from tests.support.waiting import PATIENCE
from tests.system.crash.lab.senders import Sender, check_delivered

CLIENTS = 16
SECONDS = 9.0
ADDRESSES = [f"user{number}@example.test" for number in range(4)]


def test_every_acknowledged_message_survives(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root, *ADDRESSES)
    port = free_port()
    arguments = ("--smtp", f"127.0.0.1:{port}")
    server = Served(root, arguments, tmp_path / "log")
    stop = threading.Event()
    clients = [Sender(number, port, ADDRESSES, stop) for number in range(CLIENTS)]
    try:
        for client in clients:
            client.start()
        source = random.Random(os.urandom(8))
        kills = 0
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline or kills < 2:
            time.sleep(source.uniform(0.2, 1.2))
            server.kill()
            kills += 1
            server = Served(root, arguments, tmp_path / "log")
        stop.set()
        for client in clients:
            client.join(PATIENCE)
        assert all(client.finished for client in clients)
        assert server.stop() == 0
    finally:
        stop.set()
        with contextlib.suppress(OSError):
            server.process.kill()
            server.process.wait()
    check_delivered(root, clients, ADDRESSES, tmp_path / "scratch")
    assert "Traceback" not in (tmp_path / "log").read_text()
