"""systemd: notifications, the watchdog, inherited sockets, and the unit files."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.config.loader import ConfigError
from adapter.server.service_manager import SystemdNotifier
from adapter.server.socket_activation import inherited_sockets
from tests.support.paths import REPOSITORY
from tests.support.processes.tree import children
from tests.support.smtpd import make_store
from tests.support.waiting import PATIENCE

_REPOSITORY = REPOSITORY
_UNITS = _REPOSITORY / "conf" / "systemd"


class _Systemd:
    """Receives the notifications of a service."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(PATIENCE)

    def receive(self) -> list[str]:
        return self._socket.recv(4096).decode().split("\n")

    def wait_for(self, word: str) -> list[str]:
        deadline = time.monotonic() + PATIENCE
        while word not in (received := self.receive()):
            assert time.monotonic() < deadline
        return received

    def is_silent(self, seconds: float) -> bool:
        return not select.select([self._socket], [], [], seconds)[0]

    def drop(self) -> None:
        with contextlib.suppress(TimeoutError):
            while not self.is_silent(0.0):
                self.receive()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("systemd") / "store"
    make_store(place)
    return place


@contextlib.contextmanager
def _service(
    root: Path, log: Path, arguments: tuple[str, ...], sockets: dict[str, socket.socket], **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``markpost serve`` with sockets from descriptor 3 on and LISTEN_PID, as systemd does."""
    moves = " ".join(f"{3 + number}<&{each.fileno()}" for number, each in enumerate(sockets.values()))
    command = [sys.executable, "-m", "adapter.cli", "serve", "--root", str(root), *arguments]
    if sockets:
        environment |= {"LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": ":".join(sockets)}
        command = ["bash", "-c", f'LISTEN_PID=$$ exec "$@" {moves}', "bash", *command]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=_REPOSITORY,
            env=os.environ | environment,
            pass_fds=[each.fileno() for each in sockets.values()],
            stdout=subprocess.PIPE,
            stderr=stream,
        )
    assert process.stdout is not None
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        process.stdout.close()


def _listening(family: socket.AddressFamily = socket.AF_INET, address: object = ("127.0.0.1", 0)) -> socket.socket:
    one = socket.socket(family)
    one.bind(address)  # type: ignore[arg-type]
    one.listen(10)
    return one


def _greeting(listening: socket.socket) -> bytes:
    with socket.socket(listening.family) as client:
        client.settimeout(PATIENCE)
        client.connect(listening.getsockname())
        return client.makefile("rb").readline()


@pytest.mark.parametrize(("workers", "abstract"), [(1, False), (2, True)])
def test_service_notifies_systemd_of_its_state(root: Path, tmp_path: Path, workers: int, abstract: bool) -> None:
    systemd = _Systemd(f"@markpost-test-{os.getpid()}" if abstract else str(tmp_path / "notify"))
    smtp, lmtp = _listening(), _listening(socket.AF_UNIX, str(tmp_path / "lmtp.sock"))
    arguments = ("--workers", str(workers))
    environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "2000000"}
    with _service(root, tmp_path / "log", arguments, {"smtp": smtp, "lmtp": lmtp}, **environment) as process:
        assert "STATUS=Serving mail" in systemd.wait_for("READY=1")
        assert _greeting(smtp).startswith(b"220 ")
        assert b"LMTP" in _greeting(lmtp)
        systemd.drop()
        assert systemd.receive() == ["WATCHDOG=1"]
        assert systemd.receive() == ["WATCHDOG=1"]
        process.send_signal(signal.SIGHUP)
        assert any(line.startswith("MONOTONIC_USEC=") for line in systemd.wait_for("RELOADING=1"))
        systemd.wait_for("READY=1")
        process.send_signal(signal.SIGSTOP)  # hangs: no more watchdog notifications
        time.sleep(0.2)
        systemd.drop()
        assert systemd.is_silent(1.5)
        process.send_signal(signal.SIGCONT)
        systemd.wait_for("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        systemd.wait_for("STOPPING=1")
        assert process.wait(PATIENCE) == 0
        assert process.stdout is not None
        announced = process.stdout.read().decode().splitlines()
        assert announced == [f"smtp 127.0.0.1:{smtp.getsockname()[1]}", f"lmtp unix:{tmp_path}/lmtp.sock", "ready"]
    assert (tmp_path / "lmtp.sock").exists()  # owned by the service manager
    assert "Traceback" not in (tmp_path / "log").read_text()
    for each in (smtp, lmtp):
        each.close()
    systemd.close()


def test_clients_wait_while_the_service_restarts(root: Path, tmp_path: Path) -> None:
    smtp = _listening()
    with _service(root, tmp_path / "log", (), {"smtp": smtp}) as process:
        assert _greeting(smtp).startswith(b"220 ")
        process.terminate()
        assert process.wait(PATIENCE) == 0
    client = socket.create_connection(smtp.getsockname(), PATIENCE)
    with _service(root, tmp_path / "log", (), {"smtp": smtp}):
        assert client.recv(1000).startswith(b"220 ")
    client.close()
    smtp.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_hanging_event_loop_is_detected(root: Path, tmp_path: Path, workers: int) -> None:
    """A single process stops notifying; a hanging worker is replaced by the supervisor, which continues."""
    systemd = _Systemd(str(tmp_path / "notify"))
    environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "2000000"}
    arguments = ("--smtp", "127.0.0.1:0", "--workers", str(workers))
    with _service(root, tmp_path / "log", arguments, {}, **environment) as process:
        systemd.wait_for("READY=1")
        victim = children(process.pid)[0] if workers > 1 else process.pid
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.2)
        systemd.drop()
        if workers == 1:
            assert systemd.is_silent(1.5)
        else:
            systemd.wait_for("WATCHDOG=1")
        os.kill(victim, signal.SIGCONT)
    systemd.close()


def test_only_named_sockets_for_this_process_are_inherited() -> None:
    kinds = ["imap", "smtp"]
    assert inherited_sockets(kinds, {}) == []
    assert inherited_sockets(kinds, {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "imap"}) == []
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "markpost.socket"}
    with pytest.raises(
        ConfigError, match=r"named 'markpost.socket': its FileDescriptorName= must be one of imap, smtp"
    ):
        inherited_sockets(kinds, environment)
    assert not environment  # children must not inherit them


def test_inherited_socket_must_be_listening(root: Path, tmp_path: Path) -> None:
    with socket.socket() as deaf, _service(root, tmp_path / "log", (), {"imap": deaf}) as process:
        assert process.wait(PATIENCE) == 1
    assert "is not listening: use ListenStream=" in (tmp_path / "log").read_text()


def test_inherited_implicit_tls_socket_needs_a_certificate(root: Path, tmp_path: Path) -> None:
    with contextlib.closing(_listening()) as imaps, _service(root, tmp_path / "log", (), {"imaps": imaps}) as process:
        assert process.wait(PATIENCE) == 1
    assert "imaps needs a certificate" in (tmp_path / "log").read_text()


def test_missing_service_manager_is_harmless() -> None:
    announced: list[str] = []
    for address in ("", "/nonexistent/notify", "@nobody-listens-here"):
        manager = SystemdNotifier(announced.append, {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
        manager.ready()
        manager.alive()
        manager.stopping()
    assert announced == ["ready"] * 3


# --- the unit files --------------------------------------------------------------------------------------------------


def _unit(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    return unit


def test_every_listener_has_a_socket_unit() -> None:
    from adapter.cli.serve_options import LISTENER_KINDS

    names = {path.name for path in _UNITS.glob("*.socket")}
    assert names == {f"markpost-{kind}.socket" for kind in LISTENER_KINDS}
    for kind in LISTENER_KINDS:
        socket_section = _unit(_UNITS / f"markpost-{kind}.socket")["Socket"]
        assert socket_section["FileDescriptorName"] == kind
        assert socket_section["Service"] == "markpost.service"


def test_service_has_time_to_drain() -> None:
    from adapter.config.schema import Settings
    from adapter.server.store_lifecycle import max_close_seconds
    from adapter.server.supervisor import _COMMIT_SECONDS

    service = _unit(_UNITS / "markpost.service")["Service"]
    assert float(service["TimeoutStopSec"]) > max_close_seconds(Settings().server.drain) + _COMMIT_SECONDS


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units with a program and a group that exist on this machine."""
    for path in _UNITS.glob("markpost*.s*"):
        text = re.sub(r"/usr/bin/markpost\b", sys.executable, path.read_text())
        (tmp_path / path.name).write_text(text.replace("SocketGroup=postfix", "SocketGroup=root"))
    return tmp_path


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.needs("systemd-analyze")
def test_systemd_accepts_the_units(installed: Path) -> None:
    units = [str(path) for path in sorted(installed.iterdir())]
    done = _analyze("verify", "--man=no", "--recursive-errors=no", *units)
    assert not [line for line in done.stderr.splitlines() if "markpost" in line]
    assert done.returncode == 0, done.stderr
    service = installed / "markpost.service"
    service.write_text(service.read_text().replace("PrivateTmp=", "PrivatTmp="))
    assert "PrivatTmp" in _analyze("verify", "--man=no", "--recursive-errors=no", str(service)).stderr


@pytest.mark.needs("systemd-analyze")
def test_sandbox_is_tight(installed: Path) -> None:
    done = _analyze("security", "--offline=yes", "--threshold=20", str(installed / "markpost.service"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
