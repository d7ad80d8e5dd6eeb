"""The servers to compare: ours, and Debian's Dovecot with a Maildir, each as its own processes on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter.accounts import Credentials
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from tests.support.fronts import free_port, wait_for_port

ADA, BOB, PASSWORD = "ada@example.test", "bob@example.test", "secret"
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Server:
    name: str
    imap: int
    lmtp: int
    process: subprocess.Popen[bytes]

    def memory(self) -> float:
        """MiB of all its processes, shared pages split among those that share them (PSS)."""
        return sum(_pss(pid) for pid in _tree(self.process.pid)) / 1024

    def settle(self, patience: float = 60.0) -> None:
        """Wait until it does nothing any more: what is done in the background is done."""
        deadline = time.monotonic() + patience
        before = self._cpu()
        while time.monotonic() < deadline:
            time.sleep(1)
            now = self._cpu()
            if now - before < 0.05:
                return
            before = now

    def _cpu(self) -> float:
        """Seconds of processor time."""
        spent = 0.0
        for pid in _tree(self.process.pid):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return spent


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


# --- ours ------------------------------------------------------------------------------------------------------------


def fill_markpost(directory: str, messages: Sequence[bytes]) -> str:
    root = f"{directory}/markpost"
    create_store(root)
    with Transport.open(root) as transport, Credentials.open(transport) as credentials:
        for address in (ADA, BOB):
            transport.run(op.Register(address))
            credentials.set_password(address, PASSWORD)
        for at in range(0, len(messages), 500):
            items = [op.AppendItem(transport.stage(octets)) for octets in messages[at : at + 500]]
            transport.run(op.Append(ADA, "INBOX", items))
    return root


@contextlib.contextmanager
def markpost(root: str) -> Iterator[Server]:
    imap, lmtp = free_port(), free_port()
    log = Path(f"{root}.log")
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "adapter.cli", "serve", "--root", root,
             "--imap", f"127.0.0.1:{imap}", "--lmtp", f"127.0.0.1:{lmtp}"],
            cwd=_REPOSITORY, stdout=subprocess.DEVNULL, stderr=errors,
            env={**os.environ, "MARKPOST_SERVER_LOG_LEVEL": "warning", "MARKPOST_LIMITS_CONNECTIONS_PER_USER": "5000"},
        )  # fmt: skip
    try:
        wait_for_port(imap, log)
        yield Server("markpost", imap, lmtp, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


# --- Dovecot ---------------------------------------------------------------------------------------------------------


def fill_maildir(directory: str, messages: Sequence[bytes]) -> str:
    home = f"{directory}/dovecot"
    for part in ("cur", "new", "tmp"):
        os.makedirs(f"{home}/mail/{part}")
    for number, octets in enumerate(messages):
        size = len(octets)
        with open(f"{home}/mail/cur/{1700000000 + number}.M{number}P1.bench,S={size},W={size}:2,", "wb") as file:
            file.write(octets)
    for above in (directory, os.path.dirname(directory)):
        os.chmod(above, os.stat(above).st_mode | 0o111)  # Dovecot reads mail as another user
    for path, folders, files in os.walk(home):
        for name in (path, *(f"{path}/{each}" for each in (*folders, *files))):
            shutil.chown(name, "mail", "mail")
    return home


_DOVECOT = """
base_dir = {home}/run
state_dir = {home}/run
log_path = {home}/dovecot.log
protocols = imap lmtp
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
auth_mechanisms = plain
mail_location = maildir:{home}/mail
first_valid_uid = 1
mail_max_userip_connections = 5000
passdb {{
  driver = static
  args = password=secret
}}
userdb {{
  driver = static
  args = uid=mail gid=mail home={home}/home
}}
namespace inbox {{
  inbox = yes
  separator = /
  mailbox Trash {{
    auto = create
  }}
}}
service imap-login {{
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service imap {{
  process_limit = 2048
}}
service lmtp {{
  inet_listener lmtp {{
    address = 127.0.0.1
    port = {lmtp}
  }}
}}
"""


@contextlib.contextmanager
def dovecot(home: str) -> Iterator[Server]:
    imap, lmtp = free_port(), free_port()
    config = f"{home}/dovecot.conf"
    Path(config).write_text(_DOVECOT.format(home=home, imap=imap, lmtp=lmtp))
    process = subprocess.Popen(["dovecot", "-F", "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(imap, Path(f"{home}/dovecot.log"))
        yield Server("dovecot", imap, lmtp, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def drop_dovecot_index(home: str) -> None:
    """As if the folder had never been opened."""
    for path in Path(f"{home}/mail").glob("dovecot*"):
        if path.is_file():
            path.unlink()
