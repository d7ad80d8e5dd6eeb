"""The demo as a process: the steps it prints, and a port in use."""

from __future__ import annotations

import contextlib
import imaplib
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from adapter.cli import main
from adapter.demo import store as demo
from tests.support.waiting import PATIENCE


def _start(directory: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "adapter.cli", "demo", "--dir", str(directory), "--free-ports"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    screen = ""
    while not screen.endswith("ready\n"):
        line = process.stdout.readline()
        assert line, "the demo exited before it was ready"
        screen += line
    return process, screen


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


@contextlib.contextmanager
def _client(screen: str, directory: Path) -> Iterator[imaplib.IMAP4]:
    port = re.search(r"^imaps 127\.0\.0\.1:(\d+)$", screen, re.MULTILINE)
    assert port is not None
    context = ssl.create_default_context(cafile=str(directory / "authority.pem"))
    client = imaplib.IMAP4_SSL(demo.HOSTNAME, int(port[1]), ssl_context=context)
    try:
        client.login(demo.ADA, demo.PASSWORD)
        yield client
    finally:
        with contextlib.suppress(OSError):
            client.shutdown()


def _inbox(screen: str, directory: Path) -> int:
    with _client(screen, directory) as client:
        _, count = client.select("INBOX")
        assert count[0] is not None
        return int(count[0])


def _commands(screen: str) -> list[str]:
    """Return the commands on the screen."""
    return re.findall(r"^      (\S(?:.*\\\n)?.*)$", screen, re.MULTILINE)


def _type(screen: str, start: str) -> subprocess.CompletedProcess[str]:
    (command,) = (line for line in _commands(screen) if line.startswith(start))
    command = re.sub(r"(^|\| )markpost ", rf"\1{sys.executable} -m adapter.cli ", command)
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)


@pytest.mark.needs("bash", "curl")
def test_commands_on_the_screen_work_as_typed(tmp_path: Path) -> None:
    """Ctrl-C ends the demo at once, and a second run keeps the mail."""
    process, screen = _start(tmp_path)
    try:
        assert demo.PASSWORD in screen
        inbox = tmp_path / "mail" / "mailboxes" / demo.ADA / "inbox"
        assert _inbox(screen, tmp_path) == len(list(inbox.glob("*.md"))) == 4
        assert len(_type(screen, "ls ").stdout.splitlines()) == 4
        assert "Dear Ada" in _type(screen, "cat ").stdout
        for sends in ("echo ", "printf "):
            sent = _type(screen, sends)
            assert sent.returncode == 0, sent.stderr
        assert _inbox(screen, tmp_path) == 6
        assert _type(screen, "rm ").returncode == 0
        assert len(list(inbox.glob("*.md"))) == 5
        with _client(screen, tmp_path) as waiting:
            waiting.select("INBOX")  # a connected client does not delay the shutdown
            _stop(process)
    finally:
        process.kill()
    # check and repair take Spark too long: only their options are parsed.
    for line in _commands(screen):
        if re.match("markpost (check|repair) ", line):
            _, command, arguments = main.resolve_command(click.Context(main), shlex.split(line)[1:])
            assert command is not None
            command.make_context(command.name, arguments)
    process, screen = _start(tmp_path)
    try:
        assert _inbox(screen, tmp_path) == 6
    finally:
        _stop(process)


def test_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # another process has the port, which serves as well
            taken.bind(("127.0.0.1", 1143))
            taken.listen()
        command = [sys.executable, "-m", "adapter.cli", "demo", "--dir", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "--free-ports" in done.stderr
    assert len(done.stderr.splitlines()) == 1
