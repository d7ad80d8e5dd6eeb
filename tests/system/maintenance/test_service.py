"""Commands against a running server with retrying clients: no acknowledged message is lost or duplicated."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import smtplib
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from adapter.accounts.credentials import Credentials
from adapter.store import journal, layout
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.paths import REPOSITORY
from tests.support.processes.serve import served
from tests.support.stores import ADA, BOB, deliver, folder, new_store, rows
from tests.support.waiting import PATIENCE, wait_until
from tests.system.maintenance.lab import lab, load
from tests.system.maintenance.lab.victims import records

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs("java")]

_REPOSITORY = REPOSITORY
_CONFIRMED = ("--i-know-what-im-doing", "ALL-SERVICES-ARE-OFFLINE")


def _markpost(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "adapter.cli", *arguments]
    return subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, timeout=300, check=False, **options)


class _Gate:
    """Records when the service lock is held exclusively."""

    def __init__(self, root: Path) -> None:
        self._fd = os.open(lab.path(root, *layout.LOCKS, layout.SERVICE_LOCK), os.O_RDONLY)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.closed: list[int] = []  # microseconds

    def __enter__(self) -> _Gate:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        os.close(self._fd)

    def _watch(self) -> None:
        while not self._ending.wait(0.003):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            except BlockingIOError:
                self.closed.append(time.time_ns() // 1000)


def test_repair_under_load(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport, Credentials.open(transport) as credentials:
        credentials.set_password(ADA, load.PASSWORD)
        for number in range(20):
            deliver(transport, BOB, octets=message(f"Before {number}", to=BOB))
    with served(root, "--smtp", "127.0.0.1:0", "--imap", "127.0.0.1:0", log=tmp_path / "log") as server:
        with load.running(server.ports["smtp"], server.ports["imap"]) as clients:
            clients.wait_for(5)
            _assert_check_online(root)
            expected = _damage(root)
            with _Gate(root) as gate:
                repaired = _markpost("repair", "--root", str(root), "--json", *_CONFIRMED)
            clients.wait_for(5)
        assert repaired.returncode == 0, repaired.stderr
        assert server.stop() == 0
        assert not [line for line in (tmp_path / "log").read_text().splitlines() if "Traceback" in line]
    report = json.loads(repaired.stdout)
    assert report["counts"] == expected
    assert report["verified"] is True
    _assert_report_is_saved(root, repaired)
    assert clients.turned_away, "no client was refused"
    # A BYE can cross a command, which is then not executed. An accepted message is always acknowledged.
    assert not [subject for subject in clients.unclear if not subject.startswith("Draft")]
    _assert_nothing_lost_or_duplicated(root, clients)
    assert len(gate.closed) > 5
    done = [record.op for record in _records(root) if gate.closed[0] < record.at < gate.closed[-1]]
    assert done
    assert set(done) == {"repair"}
    assert not list(lab.path(root, *layout.MAINTENANCE).glob("run-*"))


def _assert_check_online(root: Path) -> None:
    """Check on a terminal: progress lines, no findings, and no output of Spark."""
    master, terminal = pty.openpty()
    terminal_output = bytearray()
    command = [sys.executable, "-m", "adapter.cli", "check", "--root", str(root), "--json"]
    with subprocess.Popen(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, stderr=terminal) as process:
        os.close(terminal)
        reader = threading.Thread(target=_read_terminal, args=(master, terminal_output), daemon=True)
        reader.start()
        output, _ = process.communicate(timeout=300)
    reader.join(10)
    os.close(master)
    assert process.returncode == 0, output
    report = json.loads(output)
    assert report["counts"] == {}
    assert report["scanned"]["messages"] >= 20
    lines = terminal_output.decode().split("\r")
    assert not [line for line in lines if line.strip("\n") and not re.fullmatch("\x1b\\[K(markpost: .+)?", line)]
    assert any("messages" in line for line in lines)


def _read_terminal(master: int, output: bytearray) -> None:
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:
            return
        if not chunk:
            return
        output += chunk


def _damage(root: Path) -> dict[str, int]:
    """Damage entries that the load does not touch, while the server runs."""
    inbox = lab.path(root, *layout.folder_directory(BOB, "INBOX"))
    links = sorted(each for each in inbox.iterdir() if each.is_symlink())
    links[0].unlink()
    by_hand = inbox.parent / "By hand"
    by_hand.mkdir()
    (by_hand / links[1].name).symlink_to(os.readlink(links[1]))
    connection = lab.index(root)
    connection.execute("PRAGMA busy_timeout = 30000")
    connection.execute(
        "UPDATE message_recipients SET kind = 'bcc' WHERE message_id = ?", (links[2].stem.split("-", 1)[1],)
    )
    connection.close()
    return {"folder-unidentified": 1, "projection-missing": 1, "recipients-wrong": 1}


def _assert_report_is_saved(root: Path, repaired: subprocess.CompletedProcess[str]) -> None:
    (kept,) = lab.path(root, *layout.MAINTENANCE, "reports").iterdir()
    assert kept.read_text() == repaired.stdout
    assert kept.stat().st_mode & 0o777 == 0o600
    assert repaired.stderr == f"the report is kept in {kept}\n"


def _assert_nothing_lost_or_duplicated(root: Path, clients: load.Load) -> None:
    with Transport.open(root) as transport:
        with transport.reading() as connection:
            subjects = dict(connection.execute("SELECT message_id, subject FROM messages").fetchall())
        inbox = Counter(subjects[row.message_id] for row in rows(transport))
        assert inbox == Counter(dict.fromkeys(clients.sent, 1))
        drafts = {row.uid: subjects[row.message_id] for row in rows(transport, "Drafts")}
        assert drafts == clients.appended
        assert folder(transport, "By hand", BOB).messages == 1


def _records(root: Path) -> Iterator[journal.Record]:
    for segment in sorted(lab.path(root, *layout.JOURNAL).glob("*.jsonl")):
        yield from map(journal.decode, records(segment)[1:])


def _processes_in(place: Path) -> list[str]:
    """Command lines of the processes with a directory in their arguments."""
    commands = []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdigit() and str(place) in (
                command := (each / "cmdline").read_bytes().decode("utf-8", "replace")
            ):
                commands.append(command)
    return commands


def test_killed_repair_brings_mail_back_and_leaves_no_process(tmp_path: Path) -> None:
    """After kill -9 mail is back at once, no child process survives, and the next run removes the scratch files."""
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        for number in range(20):
            deliver(transport, BOB, octets=message(f"Before {number}", to=BOB))
    expected = _damage(root)
    maintenance = lab.path(root, *layout.MAINTENANCE)
    command = [sys.executable, "-m", "adapter.cli", "repair", "--root", str(root), *_CONFIRMED]
    with subprocess.Popen(command, cwd=_REPOSITORY, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: list(maintenance.glob("run-*/inspection-1/*")))
        process.kill()
    assert list(maintenance.glob("run-*")), "it was running"
    with Transport.open(root) as transport:
        deliver(transport, ADA)
    wait_until(lambda: not _processes_in(maintenance), lambda: _processes_in(maintenance))
    repaired = _markpost("repair", "--root", str(root), "--json", *_CONFIRMED)
    assert repaired.returncode == 0, repaired.stderr
    assert json.loads(repaired.stdout)["counts"] == expected
    assert not list(maintenance.glob("run-*"))


# --- maintenance on --------------------------------------------------------------------------------------------------


@contextmanager
def _conversation(port: int, *lines: bytes) -> Iterator[socket.socket]:
    """Open a connection and send lines, each after the reply to the previous one."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.recv(1000)
        for line in lines:
            connection.sendall(line + b"\r\n")
            connection.recv(4000)
        yield connection


def test_servers_refuse_at_once_and_give_the_reason(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as transport, Credentials.open(transport) as credentials:
        credentials.set_password(ADA, load.PASSWORD)
    marker = lab.path(root, *layout.MAINTENANCE, layout.OFFLINE_MARKER)
    with served(root, "--smtp", "127.0.0.1:0", "--imap", "127.0.0.1:0", log=tmp_path / "log") as server:
        smtp, imap = server.ports["smtp"], server.ports["imap"]
        with (
            _conversation(smtp, b"EHLO x") as waiting_smtp,
            _conversation(imap, b"a LOGIN ada@example.test secret", b"b SELECT INBOX") as waiting_imap,
        ):
            command = threading.Thread(target=_markpost, args=("maintenance", "on", "--root", str(root)))
            command.start()
            wait_until(marker.exists)
            assert waiting_imap.recv(1000).startswith(b"* BYE [UNAVAILABLE]")
            assert waiting_smtp.recv(1000).startswith(b"421 4.3.2")
            command.join(PATIENCE)
        assert _greeting(imap).startswith(b"* BYE [UNAVAILABLE] System is down for maintenance")
        assert _greeting(smtp).startswith(b"421 4.3.2")
        assert "offline" in _markpost("maintenance", "status", "--root", str(root)).stdout
        assert _markpost("maintenance", "off", "--root", str(root)).stdout == "mail is back\n"
        wait_until(lambda: _greeting(smtp).startswith(b"220"))
        with smtplib.SMTP("127.0.0.1", smtp) as client:
            client.sendmail("x@y.test", [ADA], message("Back").decode())


def _greeting(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        return connection.recv(1000)


# --- without a server ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("check",), ("repair", *_CONFIRMED)])
def test_missing_java_is_reported_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    with new_store(tmp_path / "store", ADA):
        pass
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    result = _markpost(*command, "--root", str(tmp_path / "store"), env=environment)
    assert result.returncode == 75, "neither clean nor findings: try again when it is there"
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "need Java 17 or later" in result.stderr
    with Transport.open(tmp_path / "store"):
        pass


def test_old_java_is_reported_in_one_line(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA):
        pass
    java = tmp_path / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'UnsupportedClassVersionError: and much more' >&2\nexit 1\n")
    java.chmod(0o755)
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "old")}
    result = _markpost("check", "--root", str(tmp_path / "store"), env=environment)
    assert result.returncode == 75, "neither clean nor findings"
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "check that Java is 17 or later" in result.stderr
    assert not list(lab.path(tmp_path / "store", *layout.MAINTENANCE).glob("run-*"))
