"""The account commands as processes: closed streams, an ASCII locale, a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from adapter.accounts.credentials import Credentials
from tests.support.mail.command_line import Cli
from tests.support.paths import REPOSITORY

ADA, BOB = "ada@example.test", "bob@example.test"


SECRET = "correct horse"


def test_commands_as_processes_with_ascii_locale_and_closed_streams(tmp_path: Path) -> None:
    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "adapter.cli", *arguments, "--root", str(tmp_path / "store")]
        return subprocess.run(command, input=stdin, capture_output=True, cwd=REPOSITORY, timeout=60, env=environment)

    # a locale with ASCII only
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def run_without_streams(*arguments: str) -> int:
        command = [sys.executable, "-m", "adapter.cli", *arguments, "--root", str(tmp_path / "store")]
        closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
        return subprocess.run(closed, cwd=REPOSITORY, timeout=60).returncode

    assert run("init").returncode == 0
    assert run_without_streams("account", "add", BOB) == 0
    assert run_without_streams("account", "passwd", BOB, "--password-stdin") == 1
    assert run("account", "remove", BOB).returncode == 0
    assert run("account", "add", ADA, "--password-stdin", stdin=b"secret\n").returncode == 0
    delivered = run("deliver", "--from", "x@y.test", "--to", ADA, "-", stdin=b"# Hello\n")
    assert (delivered.returncode, delivered.stderr) == (0, b"")
    assert delivered.stdout.startswith(b"msg-")
    refused = run("deliver", "--from", "x@y.test", "--to", BOB, "-", stdin=b"# Hello\n")
    assert (refused.returncode, refused.stdout) == (67, b"")
    assert refused.stderr.count(b"\n") == 1


def test_password_is_read_from_the_terminal_without_echo(cli: Cli) -> None:
    command = [sys.executable, "-m", "adapter.cli", "account", "add", ADA, "--root", str(cli.root)]
    pid, terminal = pty.fork()
    if pid == 0:  # the child process, with the terminal
        os.chdir(REPOSITORY)
        os.execv(command[0], command)
    shown = b""
    for prompt in (b"Password: ", b"Repeat for confirmation: "):
        while prompt not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, f"{SECRET}\n".encode())
    try:
        while chunk := os.read(terminal, 1024):
            shown += chunk
    except OSError:  # on Linux: the other side is closed
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    assert SECRET.encode() not in shown
    with Credentials.open(cli.root) as credentials:
        assert credentials.verify(ADA, SECRET)
