"""neomutt on a terminal: look, read, flag, delete, save, new mail during IDLE; once plainly and once with QRESYNC."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter.store.flags import Flag
from adapter.transport.transport import Transport
from tests.support.imapd import PASSWORD, make_store
from tests.support.messages import message
from tests.support.processes.serving import Served, served
from tests.support.stores import ADA, append, deliver, rows
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.needs("neomutt")

_CONTROL = re.compile(rb"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])|[\x00-\x08\x0b-\x1f]")


class Terminal:
    """A program on a pseudo-terminal; what it shows is kept as text without control sequences."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**os.environ, **environment})
        self.shown = b""

    def wait_for(self, text: str) -> None:
        """Read until the text shows up, and forget what came before."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} does not show up in {self.shown[-2000:]!r}"
            self._read(0.2)
        self.shown = self.shown.partition(text.encode())[2]

    def wait_until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline, self.shown[-2000:]
            self._read(0.1)

    def _read(self, seconds: float) -> None:
        if select.select([self._fd], [], [], seconds)[0]:
            try:
                self.shown += _CONTROL.sub(b"", os.read(self._fd, 1 << 16))
            except OSError:
                self.shown += b"<end>"

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self._fd)
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            self._read(0.1)


def _configure(place: Path, server: Served, *, qresync: bool) -> Path:
    config = place / "muttrc"
    config.write_text(
        f"""
set imap_user="{ADA}" imap_pass="{PASSWORD}"
set folder="imaps://localhost:{server.ports["imaps"]}/" spoolfile="+INBOX" record="" postponed="+Drafts"
set ssl_ca_certificates_file="{server.tls.certificate}" certificate_file="{place}/certificates"
set header_cache="{place}/headers" message_cachedir="{place}/bodies"
set imap_condstore={"yes" if qresync else "no"} imap_qresync={"yes" if qresync else "no"} imap_idle=yes
set mail_check=1 timeout=1 sort=mailbox-order delete=yes quit=yes move=no confirmappend=no confirmcreate=no
set wait_key=no beep=no mark_old=no index_format="%C [%Z] %s" status_format="%f %m messages" pager_index_lines=0
"""
    )
    return config


@pytest.mark.parametrize("qresync", [False, True], ids=["plain", "qresync"])
def test_a_session_with_neomutt(tmp_path: Path, qresync: bool) -> None:
    root = tmp_path / "store"
    make_store(root, ADA)
    with Transport.open(root) as transport:
        append(transport, "INBOX", *(message(f"Letter {number}", f"Body {number}\r\n") for number in range(1, 7)))
    (tmp_path / "certificates").touch()
    (tmp_path / "bodies").mkdir()
    with served(root, ["imaps"], tmp_path) as server:
        config = _configure(tmp_path, server, qresync=qresync)
        environment = {"TERM": "xterm", "LANG": "C.UTF-8", "HOME": str(tmp_path)}
        for visit in (1, 2):
            terminal = Terminal(["neomutt", "-n", "-F", str(config)], environment)
            terminal.wait_for("Letter 6")
            if visit == 1:
                terminal.type("1\n")  # to the first message
                terminal.type("\n")  # read it
                terminal.wait_for("Body 1")
                terminal.type("q")
                terminal.wait_for("Letter 2")
                terminal.type("2\nF")  # flag the second
                terminal.type("3\nd")  # delete the third
                terminal.type("4\ns=Archive\n")  # save the fourth
                terminal.wait_for("Archive")
                terminal.type("$")  # synchronise
                with Transport.open(root) as transport:
                    terminal.wait_until(lambda: len(rows(transport)) == 4)
                    deliver(transport, ADA, octets=message("Fresh news", "News\r\n"))
                terminal.wait_for("Fresh news")
            else:
                terminal.wait_for("Fresh news")
                terminal.type("5\nN$")  # mark the fifth as not new
            terminal.type("q")
            assert terminal.end() == 0
        assert server.refused_commands() == []
        with Transport.open(root) as transport:
            inbox = {row.uid: row.flags for row in rows(transport)}
            assert inbox == {1: Flag.READ, 2: Flag.STARRED, 5: 0, 6: 0, 7: Flag.READ}
            (archived,) = rows(transport, "Archive")
            assert transport.content.octets(archived.message_id) == message("Letter 4", "Body 4\r\n")
