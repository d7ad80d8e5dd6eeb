"""Several workers: they share listeners, limits and the store; they are replaced and drained, and none is orphaned."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import smtplib
import socket
import time
from collections.abc import Iterator
from imaplib import IMAP4
from pathlib import Path

import pytest

from adapter.maintenance import gate
from adapter.server.process_state import read_process_state
from adapter.store import layout
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.processes.serve import Served, served
from tests.support.processes.tree import children, is_alive
from tests.support.relays import queue, send
from tests.support.sink import Sink
from tests.support.smtpd import PASSWORD, make_store
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE, until, wait_until

_CONFIG = """
[server]
workers = 2
drain = "3 s"
[limits]
exempt = []
connections_per_ip = 12
connections_per_user = 3
[login]
free_failures = 2
delay = "700 ms"
longest_delay = "700 ms"
"""


def _greeting(port: int) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            return client.makefile("rb").readline().decode()
    except ConnectionError:
        return ""


def _send(port: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
        client.sendmail("x@y.test", [ADA], message())


def _stored(root: Path) -> int:
    return len(list((root / "mailboxes" / ADA / "inbox").glob("*.md")))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workers") / "store"
    make_store(place)
    return place


@contextlib.contextmanager
def _two_workers(root: Path, directory: Path, drain: float = 3.0) -> Iterator[Served]:
    (directory / "conf.toml").write_text(_CONFIG.replace('"3 s"', f'"{drain} s"'))
    listeners = ("--smtp", "127.0.0.1:0", "--imap", "127.0.0.1:0", "--lmtp", str(directory / "lmtp.sock"))
    with served(root, "--config", str(directory / "conf.toml"), *listeners, log=directory / "log") as server:
        yield server


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests that leave it unchanged."""
    directory = tmp_path_factory.mktemp("server")
    with _two_workers(root, directory) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in (directory / "log").read_text()
        assert not (directory / "lmtp.sock").exists()


@pytest.mark.setting("server.workers")
def test_connections_are_balanced_between_workers(server: Served) -> None:
    workers = children(server.process.pid)
    assert len(workers) == 2
    before = [_sockets(worker) for worker in workers]
    shares: list[int] = []

    def are_even() -> bool:
        """Five each, except for a worker that is not scheduled on a busy machine."""
        with contextlib.ExitStack() as clients:
            for _ in range(10):
                client = clients.enter_context(socket.create_connection(("127.0.0.1", server.ports["smtp"])))
                assert client.recv(1000).startswith(b"220 ")
            shares[:] = [_sockets(worker) - others for worker, others in zip(workers, before, strict=True)]
        wait_until(lambda: [_sockets(worker) for worker in workers] == before)
        return min(shares) >= 4

    wait_until(are_even, lambda: shares)
    assert sum(shares) == 10


def _sockets(process: int) -> int:
    """Return the open connections: sockets beyond those of every worker."""
    names = (os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir() if entry.is_symlink())
    return sum(name.startswith("socket:") for name in names)


def test_limits_apply_to_all_workers_together(server: Served) -> None:
    port = server.ports["smtp"]
    with _as_many_as_allowed(port):
        assert _greeting(port).startswith("421 ")
    wait_until(lambda: _greeting(port).startswith("220 "))


@contextlib.contextmanager
def _as_many_as_allowed(port: int) -> Iterator[None]:
    """Open all twelve connections of one address; earlier ones may take a moment to be closed."""
    deadline = time.monotonic() + PATIENCE
    while True:
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        try:
            if all(client.recv(4) == b"220 " for client in clients):
                yield
                return
        finally:
            for client in clients:
                client.close()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_connections_of_a_user_are_limited_across_workers(server: Served) -> None:
    sessions = []
    try:
        for _ in range(3):
            sessions.append(IMAP4("127.0.0.1", server.ports["imap"]))
            sessions[-1].login(ADA, PASSWORD)
        one_more = IMAP4("127.0.0.1", server.ports["imap"])
        sessions.append(one_more)
        with pytest.raises(IMAP4.error, match="Too many connections of this user"):
            one_more.login(ADA, PASSWORD)
    finally:
        for session in sessions:
            session.logout()


def test_password_guesses_are_delayed_across_workers(server: Served) -> None:
    took = []
    for _ in range(4):
        session = IMAP4("127.0.0.1", server.ports["imap"])
        began = time.monotonic()
        with pytest.raises(IMAP4.error):
            session.login("nobody@example.test", "wrong")
        took.append(time.monotonic() - began)
        session.logout()
    assert min(took[2:]) > 0.7  # neither worker alone has seen more than the free failures


def test_new_mail_reaches_a_client_of_the_other_worker(server: Served) -> None:
    watchers = [IMAP4("127.0.0.1", server.ports["imap"]) for _ in range(2)]
    for watcher in watchers:  # on different workers
        watcher.login(ADA, PASSWORD)
        watcher.select("INBOX")
    before = int(watchers[0].status("INBOX", "(MESSAGES)")[1][0].split()[2].rstrip(b")"))
    _send(server.ports["smtp"])
    for watcher in watchers:
        wait_until(lambda watcher=watcher: watcher.noop() and watcher.response("EXISTS")[1][-1] == b"%d" % (before + 1))  # type: ignore[misc]
        watcher.logout()


def test_maintenance_closes_the_store_in_every_worker(server: Served, root: Path) -> None:
    port = server.ports["smtp"]
    idle = IMAP4("127.0.0.1", server.ports["imap"])
    idle.login(ADA, PASSWORD)
    gate.turn_on(str(root), reason="test", deadline=PATIENCE)  # raises unless both close the store
    assert b"BYE" in idle.readline()
    assert [_greeting(port)[:4] for _ in range(4)] == ["421 "] * 4
    assert len(children(server.process.pid)) == 2
    gate.turn_off(str(root))
    wait_until(lambda: server.log.read_text().count("online again") == 2)
    assert [_greeting(port)[:4] for _ in range(4)] == ["220 "] * 4
    _send(port)


def test_sighup_reaches_every_worker(server: Served) -> None:
    config = server.log.parent / "conf.toml"
    config.write_text(_CONFIG.replace("[limits]", "hostname = 'other.example.test'\n[limits]"))
    server.process.send_signal(signal.SIGHUP)
    port = server.ports["smtp"]
    wait_until(lambda: all("other.example.test" in _greeting(port) for _ in range(4)))
    wait_until(lambda: server.log.read_text().count("settings and certificates reloaded") == 2)
    config.write_text(_CONFIG)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: not any("other.example.test" in _greeting(port) for _ in range(4)))


def test_killed_worker_is_replaced(server: Served, root: Path) -> None:
    port = server.ports["smtp"]
    stored = _stored(root)
    for _ in range(2):
        victim, other = children(server.process.pid)
        os.kill(victim, signal.SIGKILL)
        _send(port)  # at once: the other worker serves
        wait_until(lambda victim=victim: _is_replaced(server, victim))  # type: ignore[misc]
        assert other in children(server.process.pid)
    wait_until(lambda: _greeting(port).startswith("220 "))
    assert _stored(root) == stored + 2
    assert "exited (signal 9); restarting" in server.log.read_text()
    with _as_many_as_allowed(port):
        pass  # the counts of the dead worker are removed: no client is refused


def _is_replaced(server: Served, victim: int) -> bool:
    workers = children(server.process.pid)
    return len(workers) == 2 and victim not in workers


def test_stopped_worker_that_holds_a_lock_does_not_stop_deliveries(root: Path, tmp_path: Path) -> None:
    stored = _stored(root)
    with _two_workers(root, tmp_path, drain=0.5) as server, contextlib.ExitStack() as scope:
        index_lock = scope.enter_context((root / "locks" / layout.INDEX_LOCK).open("rb"))
        fcntl.flock(index_lock, fcntl.LOCK_EX)
        client = scope.enter_context(socket.create_connection(("127.0.0.1", server.ports["smtp"])))
        envelope = b"HELO c\r\nMAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nDATA\r\n"
        client.sendall(envelope + message() + b".\r\n")
        address_lock = root / "locks" / "addresses" / layout.address_lock(ADA)
        wait_until(lambda: _holders(address_lock))
        (victim,) = _holders(address_lock)  # waits for our lock
        assert victim in children(server.process.pid)
        os.kill(victim, signal.SIGSTOP)
        wait_until(lambda: (state := read_process_state(victim)) and state.is_stopped)  # with all its threads
        index_lock.close()
        began = time.monotonic()
        _send(server.ports["smtp"])
        assert time.monotonic() - began < 20  # 5 or 6 on a machine that is not busy
        wait_until(lambda: _is_replaced(server, victim))
        assert _stored(root) == stored + 1
        assert re.search(r"worker \d: stopped for \d s, killing", server.log.read_text())
        assert server.stop() == 0


def _holders(lock: Path) -> list[int]:
    """Return the processes that hold the kernel lock on a file."""
    if not lock.exists():
        return []
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [int(line[-4]) for line in lines if "->" not in line and line[-3].endswith(f":{lock.stat().st_ino}")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_waits_for_commands_in_flight(root: Path, tmp_path: Path, number: int) -> None:
    stored = _stored(root)
    with _two_workers(root, tmp_path, drain=PATIENCE) as server:
        idle = [IMAP4("127.0.0.1", server.ports["imap"]) for _ in range(2)]
        sending = []
        for _ in range(2):
            client = socket.create_connection(("127.0.0.1", server.ports["smtp"]))
            reader = client.makefile("rb")
            reader.readline()
            client.sendall(b"HELO c\r\nMAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nDATA\r\n")
            assert [reader.readline()[:3] for _ in range(4)] == [b"250", b"250", b"250", b"354"]
            sending.append((client, reader))
        server.process.send_signal(number)
        for each in idle:
            assert each.readline().startswith(b"* BYE ")
        wait_until(lambda: not _greeting(server.ports["smtp"]))
        assert server.process.poll() is None
        for client, reader in sending:
            client.sendall(message() + b".\r\n")
            assert reader.readline().startswith(b"250 ")
            assert reader.readline().startswith(b"421 ")
            reader.close()
            client.close()
        assert server.process.wait(PATIENCE) == 0
    assert _stored(root) == stored + 2
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_workers_exit_after_their_supervisor(root: Path, tmp_path: Path) -> None:
    with _two_workers(root, tmp_path) as server:
        workers = children(server.process.pid)
        client = socket.create_connection(("127.0.0.1", server.ports["smtp"]))
        client.sendall(b"HELO c\r\nMAIL FROM:<x@y.test>\r\n")  # a transaction that is drained
        server.kill()
        wait_until(lambda: not any(map(is_alive, workers)))
        client.close()


async def test_single_process_job_moves_over_when_its_worker_dies(root: Path, tmp_path: Path) -> None:
    async with Sink() as sink:
        (tmp_path / "conf.toml").write_text(
            f'[server]\nworkers = 2\n[relay]\nhost = "127.0.0.1"\nport = {sink.port}\ntls = "none"\n'
        )
        arguments = ("--config", str(tmp_path / "conf.toml"), "--smtp", "127.0.0.1:0")
        server = await asyncio.to_thread(Served, root, arguments, tmp_path / "log")
        try:
            for number in range(1, 3):
                await asyncio.to_thread(wait_until, lambda: _relaying(root) in children(server.process.pid))
                with Transport.open(root) as transport:
                    send(transport)
                    await until(lambda opened=transport: not queue(opened))  # type: ignore[misc]
                assert len(sink.taken) == number
                relaying = _relaying(root)
                os.kill(relaying, signal.SIGKILL)
                await asyncio.to_thread(wait_until, lambda before=relaying: _relaying(root) not in (0, before))  # type: ignore[misc]
            assert await asyncio.to_thread(server.stop) == 0
        finally:
            if server.process.poll() is None:
                server.kill()
            assert server.process.stdout is not None
            server.process.stdout.close()
        assert len(sink.taken) == 2  # once each


def _relaying(root: Path) -> int:
    """Return the process that holds the relay's lock, by the kernel's list; 0: none."""
    place = root.joinpath(*layout.LOCKS, layout.duty_lock("relay"))
    inode = place.stat().st_ino if place.exists() else -1
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[-3].endswith(f":{inode}") and "->" not in fields:
            return int(fields[-4])
    return 0


def test_start_failure_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(RuntimeError, match=r"not a store: make one with markpost init\n\Z"):
        Served(tmp_path / "store", ("--workers", "2", "--smtp", "127.0.0.1:0"), tmp_path / "log")
    assert len(re.findall(r"^markpost: ", (tmp_path / "log").read_text(), re.M)) == 1
