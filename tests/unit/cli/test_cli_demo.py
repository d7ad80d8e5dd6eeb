"""The demo: one command, and there is mail to read and a server to read it from; a second run keeps it."""

from __future__ import annotations

import imaplib
import re
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

from adapter.demo import place


def _start(directory: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "adapter.cli", "demo", "--dir", str(directory), "--free-ports"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    screen = ""
    while not screen.endswith("ready\n"):
        line = process.stdout.readline()
        assert line, "the demo ended before it was ready"
        screen += line
    return process, screen


def _stop(process: subprocess.Popen[str]) -> float:
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    return time.monotonic() - started


def _inbox(screen: str, directory: Path) -> int:
    port = re.search(r"^imaps 127\.0\.0\.1:(\d+)$", screen, re.MULTILINE)
    assert port is not None
    context = ssl.create_default_context(cafile=str(directory / "authority.pem"))
    with imaplib.IMAP4_SSL(place.HOSTNAME, int(port[1]), ssl_context=context) as client:
        client.login(place.ADA, place.PASSWORD)
        _, count = client.select("INBOX")
        assert count[0] is not None
        return int(count[0])


def test_there_is_mail_in_a_client_and_on_disk_and_it_stays(tmp_path: Path) -> None:
    process, screen = _start(tmp_path)
    try:
        assert place.PASSWORD in screen
        inbox = tmp_path / "mail" / "mailboxes" / place.ADA / "inbox"
        assert _inbox(screen, tmp_path) == len(list(inbox.glob("*.md"))) == 4
    finally:
        assert _stop(process) < 10
    assert process.returncode == 0
    process, screen = _start(tmp_path)
    try:
        assert _inbox(screen, tmp_path) == 4
    finally:
        _stop(process)
