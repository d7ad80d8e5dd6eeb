"""A real Dovecot that does nothing but know users, with the sockets of ``conf/dovecot-users``.

Lookups of users of ``broken.test`` fail.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import REPOSITORY
from tests.support.waiting import PATIENCE, wait_until

_CONFIG = """
base_dir = {run}
state_dir = {run}
log_path = {directory}/dovecot.log
protocols =
ssl = no
auth_failure_delay = 0
auth_mechanisms = {mechanisms}
auth_username_chars =
service auth {{
  user = root
}}
passdb {{
  driver = passwd-file
  args = {users}
}}
passdb {{
  driver = checkpassword
  args = /nonexistent/checkpassword
  username_filter = *@broken.test
}}
userdb {{
  driver = passwd-file
  args = {users}
  override_fields = uid=1000 gid=1000 home=/nonexistent
}}
"""


_EXAMPLE = REPOSITORY / "conf" / "dovecot-users" / "markpost-auth.conf"
_SOCKETS = ("auth-markpost", "auth-markpost-userdb")


class DovecotUsers:
    """``users`` is its passwd-file; change it as you like."""

    def __init__(self, directory: Path, mechanisms: str = "plain") -> None:
        self.directory = directory
        self.users = directory / "users"
        self.users.touch()
        self.run = directory / "run"
        self.auth_socket, self.userdb_socket = (str(self.run / name) for name in _SOCKETS)
        self._config = directory / "dovecot.conf"
        self._config.write_text(
            _CONFIG.format(run=self.run, directory=directory, users=self.users, mechanisms=mechanisms)
            + _EXAMPLE.read_text().replace("user = markpost", "user = root")
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            ["dovecot", "-F", "-c", str(self._config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process = self._process
        wait_until(lambda: process.poll() is not None or all((self.run / name).exists() for name in _SOCKETS))
        assert process.poll() is None, (self.directory / "dovecot.log").read_text()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=PATIENCE)
            # Its auth process runs for as long as a client is connected.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None
            for name in _SOCKETS:
                with contextlib.suppress(FileNotFoundError):
                    (self.run / name).unlink()


@contextlib.contextmanager
def dovecot_users(directory: Path, mechanisms: str = "plain") -> Iterator[DovecotUsers]:
    directory.mkdir(exist_ok=True)
    dovecot = DovecotUsers(directory, mechanisms)
    dovecot.start()
    try:
        yield dovecot
    finally:
        dovecot.stop()
