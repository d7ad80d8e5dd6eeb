"""The serving process: output, shutdown, maintenance, and failures to start."""

from __future__ import annotations

import logging
import signal
import smtplib
import socket
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner

from adapter.cli import main
from adapter.store import layout
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.processes.fronts import is_listened_on
from tests.support.processes.serve import Served, served
from tests.support.smtpd import make_store
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


def send(port: int, **options: str) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
        client.sendmail("x@y.test", [ADA], message(**options))  # type: ignore[arg-type]


def greeting(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        return client.makefile("rb").readline().decode()


def stored(root: Path) -> int:
    return len(list((root / "mailboxes" / ADA / "inbox").glob("*.md")))


def test_listeners_are_announced_and_sigterm_ends_cleanly(root: Path, tmp_path: Path) -> None:
    arguments = ("--smtp", "127.0.0.1:0", "--lmtp", str(tmp_path / "l.sock"), "--submission", "127.0.0.1:0")
    with served(root, *arguments, log=tmp_path / "log") as server:
        assert server.lines[-1] == "ready"
        assert sorted(line.split()[0] for line in server.lines[:-1]) == ["lmtp", "smtp", "submission"]
        assert f"lmtp unix:{tmp_path}/l.sock" in server.lines
        send(server.ports["smtp"])
        idle = socket.create_connection(("127.0.0.1", server.ports["smtp"]))
        assert idle.recv(1000).startswith(b"220 ")
        assert server.stop() == 0
        assert idle.recv(1000).startswith(b"421 4.3.2 ")
        idle.close()
    assert stored(root) == 1
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text
    assert "accepted as msg-" in text
    assert not [path for path in (root / "staging").rglob("*") if path.is_file()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_commands_in_flight_are_finished_before_exit(root: Path, tmp_path: Path, number: int) -> None:
    (tmp_path / "conf.toml").write_text(f'[server]\ndrain = "{PATIENCE} s"\n')
    arguments = ("--config", str(tmp_path / "conf.toml"), "--smtp", "127.0.0.1:0")
    with served(root, *arguments, log=tmp_path / "log") as server:
        client = socket.create_connection(("127.0.0.1", server.ports["smtp"]))
        reader = client.makefile("rb")
        reader.readline()
        client.sendall(b"HELO c\r\nMAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nDATA\r\n")
        assert [reader.readline()[:3] for _ in range(4)] == [b"250", b"250", b"250", b"354"]
        server.process.send_signal(number)
        wait_until(lambda: not is_listened_on(server.ports["smtp"]))
        client.sendall(message() + b".\r\n")
        assert reader.readline().startswith(b"250 ")
        assert reader.readline().startswith(b"421 ")
        assert server.process.wait(PATIENCE) == 0
        reader.close()
        client.close()
    assert stored(root) == 1


@pytest.mark.setting("server.drain")
def test_session_that_does_not_finish_is_cut_off(root: Path, tmp_path: Path) -> None:
    (tmp_path / "conf.toml").write_text('[server]\ndrain = "500 ms"\n')
    arguments = ("--config", str(tmp_path / "conf.toml"), "--smtp", "127.0.0.1:0")
    with served(root, *arguments, log=tmp_path / "log") as server:
        client = socket.create_connection(("127.0.0.1", server.ports["smtp"]))
        client.sendall(b"HELO c\r\nMAIL FROM:<x@y.test>\r\n")
        reader = client.makefile("rb")
        assert [reader.readline()[:3] for _ in range(3)] == [b"220", b"250", b"250"]
        assert server.stop() == 0  # although the client neither continues nor disconnects
        assert "drain timeout: cutting off 1 session" in (tmp_path / "log").read_text()
        reader.close()
        client.close()


def test_maintenance_turns_clients_away_and_closes_the_store(root: Path, tmp_path: Path) -> None:
    marker = root.joinpath(*layout.MAINTENANCE, layout.OFFLINE_MARKER)
    with served(root, "--smtp", "127.0.0.1:0", log=tmp_path / "log") as server:
        port = server.ports["smtp"]
        send(port)
        open_session = socket.create_connection(("127.0.0.1", port))
        assert open_session.recv(1000).startswith(b"220 ")
        marker.write_text("repair\n")
        open_session.settimeout(PATIENCE)
        assert open_session.recv(1000).startswith(b"421 4.3.2 ")
        open_session.close()
        wait_until(lambda: greeting(port).startswith("421 4.3.2 "))
        wait_until(lambda: _can_lock_alone(root))
        marker.unlink()
        wait_until(lambda: greeting(port).startswith("220 "))
        send(port)
        assert stored(root) == 2


def test_server_starts_below_an_offline_store(root: Path, tmp_path: Path) -> None:
    marker = root.joinpath(*layout.MAINTENANCE, layout.OFFLINE_MARKER)
    marker.write_text("repair\n")
    with served(root, "--smtp", "127.0.0.1:0", log=tmp_path / "log") as server:
        assert greeting(server.ports["smtp"]).startswith("421 4.3.2 ")
        marker.unlink()
        wait_until(lambda: greeting(server.ports["smtp"]).startswith("220 "))


def _can_lock_alone(root: Path) -> bool:
    import fcntl

    with root.joinpath(*layout.LOCKS, layout.SERVICE_LOCK).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_sighup_reloads_certificates(root: Path, tmp_path: Path) -> None:
    tls = make_certificate(tmp_path)
    config = tmp_path / "conf.toml"
    config.write_text(f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n')
    with served(root, "--config", str(config), "--submissions", "127.0.0.1:0", log=tmp_path / "log") as server:
        before = _certificate(server)
        make_certificate(tmp_path)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: _certificate(server) != before)
        Path(tls.certificate).write_text("broken")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reload failed" in (tmp_path / "log").read_text())
        assert _certificate(server) != before
        assert server.stop() == 0


def _certificate(server: Served) -> str:
    return ssl.get_server_certificate(("127.0.0.1", server.ports["submissions"]), timeout=PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "config", "expected"),
    [
        ((), "", "nothing to serve"),
        (("--smtp", "nonsense"), "", "neither host:port"),
        (("--smtp", "192.0.2.1:0"), "", "cannot listen"),
        (("--submissions", "127.0.0.1:0"), "", "needs a certificate"),
        (("--smtp", "127.0.0.1:0"), "[smtp]\nline_end = 1\n", "did you mean 'line_ends'"),
        (("--smtp", "127.0.0.1:0"), '[tls]\ncertificate = "/nonexistent"\n', "no such file"),
        (("--smtp", "127.0.0.1:0"), '[limits]\nexempt = ["here"]\n', "neither a network"),
        (("--smtp", "127.0.0.1:0"), '[aliases]\n"x" = ["y"]\n', "not an address"),
        (("--smtp", "127.0.0.1:0"), '[login]\ntoken_url = "file:///etc/passwd"\n', "http or https"),
    ],
)
def test_start_failure_is_reported_in_one_line(
    root: Path, tmp_path: Path, arguments: tuple[str, ...], config: str, expected: str
) -> None:
    (tmp_path / "conf.toml").write_text(config)
    given = ["serve", "--root", str(root), "--config", str(tmp_path / "conf.toml"), *arguments]
    handlers, level = logging.root.handlers[:], logging.root.level
    result = CliRunner().invoke(main, given)
    logging.root.handlers[:], logging.root.level = handlers, level
    assert result.exit_code == 1
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


@pytest.mark.setting("listen.smtp", "server.hostname", "server.log_format")
def test_configured_listeners_are_opened(root: Path, tmp_path: Path) -> None:
    config = tmp_path / "conf.toml"
    config.write_text('[listen]\nsmtp = ["127.0.0.1:0"]\n[server]\nlog_format = "json"\nhostname = "mx.here.test"\n')
    with served(root, "--config", str(config), log=tmp_path / "log") as server:
        assert greeting(server.ports["smtp"]).startswith("220 mx.here.test ")
        server.stop()
    assert (tmp_path / "log").read_text().startswith("{")
