"""A private Postfix: configuration, queue and log are in a directory of the test. Only root can start it."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes.fronts import free_port, is_listened_on, wait_for_port
from tests.support.waiting import wait_until

#: Settings of every Postfix; a test adds to them.
_MAIN = """
compatibility_level = 3.6
queue_directory = {home}/queue
data_directory = {home}/data
maillog_file = {home}/log
maillog_file_prefixes = {home}
mydestination =
alias_maps =
alias_database =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
smtputf8_enable = yes
queue_run_delay = 1s
minimal_backoff_time = 1s
"""
_MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
lmtp unix - - n - - lmtp
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
tlsmgr unix - - n 1000? 1 tlsmgr
postlog unix-dgram n - n - 1 postlogd
"""


@dataclass(frozen=True)
class Postfix:
    home: Path
    port: int

    @property
    def log(self) -> str:
        path = self.home / "log"
        return path.read_text() if path.exists() else "no log"

    def start(self) -> None:
        self._control("start")
        wait_for_port(self.port, self.home / "log")

    def stop(self) -> None:
        self._control("stop")
        wait_until(lambda: not is_listened_on(self.port), lambda: self.log)

    def _control(self, command: str) -> None:
        done = subprocess.run(["postfix", "-c", self.home / "conf", command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def running_postfix(home: Path, main: str, master: str = "", port: int | None = None) -> Iterator[Postfix]:
    """``home`` must be passable for everybody. A service that ``master`` has replaces the usual one."""
    made = Postfix(home, port or free_port())
    for name in ("conf", "queue", "data"):
        (home / name).mkdir()
    shutil.chown(home / "data", "postfix", "postfix")
    (home / "conf" / "main.cf").write_text(_MAIN.format(home=home) + main)
    replaced = set(re.findall(r"^(\w+ unix)\b", master, re.MULTILINE))
    usual = [line for line in _MASTER.format(port=made.port).splitlines() if " ".join(line.split()[:2]) not in replaced]
    (home / "conf" / "master.cf").write_text("\n".join(usual) + "\n" + master)
    made.start()
    try:
        yield made
    finally:
        made.stop()
