"""The servers to compare, each with its own store and its own processes on loopback."""

from __future__ import annotations

import abc
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from adapter.accounts.credentials import Credentials
from adapter.store import layout
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from tests.support.paths import REPOSITORY
from tests.support.processes.fronts import free_port, wait_for_port

ADA = "ada@example.test"
PASSWORD = "secret"
_REPOSITORY = REPOSITORY
_STOP_SECONDS = 120
FIRST_DATE = 1_736_146_800  # INTERNALDATE of the first message; the others follow by five minutes
STEP_SECONDS = 300


class Syncs(Protocol):
    """Counts syncs; see ``measure.SyncCounter``."""

    environment: dict[str, str]

    def read(self) -> int: ...


class Peer(abc.ABC):
    """One server with one store; ``name`` is the same for all its stores."""

    name: str
    settle_seconds = 0.1  # without processor time, after which it is idle

    def __init__(self, directory: str, syncs: Syncs | None = None) -> None:
        self.directory = directory
        self.syncs = syncs
        self.imap = self.lmtp = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @abc.abstractmethod
    def create(self) -> None:
        """Make an empty store with one account."""

    @abc.abstractmethod
    def fill(self, messages: Iterable[bytes]) -> None:
        """Put messages into the inbox of that account, while the server is stopped."""

    @abc.abstractmethod
    def add_accounts(self, addresses: Sequence[str]) -> None:
        """Let mail be delivered to these addresses; the first may log in."""

    @abc.abstractmethod
    def drop_caches(self, *, text: bool) -> None:
        """Remove what the stopped server derived from its mail for readers; with ``text`` also an index of texts."""

    @abc.abstractmethod
    def restore_caches(self) -> None:
        """Put back the index of texts."""

    @abc.abstractmethod
    def _command(self) -> list[str]: ...

    def start(self) -> None:
        self.imap, self.lmtp = free_port(), free_port()
        log = Path(f"{self.directory}/server.log")
        environment = {**os.environ, **self._environment(), **(self.syncs.environment if self.syncs else {})}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command(),
                cwd=_REPOSITORY,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the bench alone, which then stops the servers
            )
        for port in (self.imap, self.lmtp):
            wait_for_port(port, log)

    def _environment(self) -> dict[str, str]:
        return {}

    def terminate(self) -> None:
        """Ask the server to end; ``stop`` also waits for it."""
        if self._process is not None and not self._is_ending:
            self._process.send_signal(signal.SIGTERM)
            self._is_ending = True

    def stop(self) -> None:
        self.terminate()
        if self._process is not None:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._is_ending = False

    def restart(self) -> None:
        self.stop()
        self.start()

    def restart_cold(self, *, text: bool = False) -> None:
        """Start a server without caches, in memory and on disk."""
        self.stop()
        self.drop_caches(text=text)
        self.start()


class Markpost(Peer):
    settle_seconds = 1.5  # the text index is filled after one second without new mail

    def __init__(self, directory: str, syncs: Syncs | None = None, *, workers: int = 1) -> None:
        super().__init__(directory, syncs)
        self.name = f"markpost-{workers}"
        self._workers = workers
        self.root = f"{directory}/store"
        self._text_index = f"{self.root}/{layout.TEXT_INDEX_FILE}"

    def create(self) -> None:
        create_store(self.root)
        self.add_accounts([ADA])

    def add_accounts(self, addresses: Sequence[str]) -> None:
        with Transport.open(self.root) as transport, Credentials.open(transport) as credentials:
            for future in [transport.submit(op.Register(address)) for address in addresses]:
                future.result()
            credentials.set_password(addresses[0], PASSWORD)

    def fill(self, messages: Iterable[bytes]) -> None:
        with Transport.open(self.root) as transport:
            waiting = []
            items: list[op.AppendItem] = []

            def flush() -> None:
                waiting.append(transport.submit(op.Append(ADA, "INBOX", list(items))))
                items.clear()
                if len(waiting) > 8:
                    waiting.pop(0).result()

            for number, octets in enumerate(messages):
                date = FIRST_DATE + number * STEP_SECONDS
                items.append(op.AppendItem(transport.stage(octets), internal_date=date))
                if len(items) == 100:
                    flush()
            if items:
                flush()
            for future in waiting:
                future.result()

    def fill_from(self, other: Markpost) -> None:
        """Copy the store of another Markpost that is stopped."""
        subprocess.run(["cp", "-a", other.root, self.root], check=True)

    def drop_caches(self, *, text: bool) -> None:
        if text:
            _replace(self._text_index, f"{self.directory}/text-index")

    def restore_caches(self) -> None:
        self.stop()
        _replace(f"{self.directory}/text-index", self._text_index)
        self.start()

    def _command(self) -> list[str]:
        return [
            sys.executable, "-m", "adapter.cli", "serve", "--root", self.root, "--workers", str(self._workers),
            "--imap", f"127.0.0.1:{self.imap}", "--lmtp", f"127.0.0.1:{self.lmtp}",
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        return {"MARKPOST_SERVER_LOG_LEVEL": "warning", "MARKPOST_LIMITS_CONNECTIONS_PER_USER": "5000"}


def _replace(source: str, target: str) -> None:
    if os.path.exists(source):
        os.replace(source, target)


_DOVECOT = """
base_dir = {directory}/run
state_dir = {directory}/run
log_path = {directory}/server.log
import_environment = TZ LD_PRELOAD MARKPOST_BENCH_SYNCS
protocols = imap lmtp
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
mail_location = {format}:{directory}/mail/%n/mail
first_valid_uid = 1
mail_max_userip_connections = 5000
default_process_limit = 2000
default_client_limit = 6000
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid=mail gid=mail home={directory}/mail/%n allow_all_users=yes
}}
namespace inbox {{
  inbox = yes
  separator = /
}}
service imap-login {{
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service lmtp {{
  inet_listener lmtp {{
    address = 127.0.0.1
    port = {lmtp}
  }}
}}
"""


class Dovecot(Peer):
    """Debian's Dovecot with its own defaults, ``mail_fsync`` among them."""

    def __init__(self, directory: str, syncs: Syncs | None = None, *, storage: str = "maildir") -> None:
        super().__init__(directory, syncs)
        self.name = f"dovecot-{storage}"
        self._storage = storage
        self._config = f"{directory}/dovecot.conf"
        self._home = f"{directory}/mail/{ADA.partition('@')[0]}"

    @staticmethod
    def missing() -> str | None:
        """The reason that it cannot run here."""
        if shutil.which("dovecot") is None or not os.path.exists("/usr/lib/dovecot/lmtp"):
            return "dovecot-imapd or dovecot-lmtpd is not installed"
        return None if os.geteuid() == 0 else "needs root"

    def create(self) -> None:
        self._write_config()
        for path in (f"{self.directory}/mail", self._home):
            os.makedirs(path)
            shutil.chown(path, "mail", "mail")
        let_other_users_pass(self.directory)

    def add_accounts(self, addresses: Sequence[str]) -> None:
        """Dovecot accepts every address here, and makes its mailbox at the first delivery."""

    def fill(self, messages: Iterable[bytes]) -> None:
        if self._storage == "maildir":
            _write_maildir(f"{self._home}/mail", messages)
            return
        source = f"{self._home}/import"
        _write_maildir(source, messages)
        self.start()
        self.administer("import", "-u", ADA, f"maildir:{source}", "", "all")
        self.stop()
        shutil.rmtree(source)

    def administer(self, command: str, *arguments: str) -> None:
        """Run doveadm, which asks the running server about users."""
        subprocess.run(["doveadm", "-c", self._config, command, *arguments], check=True, stdout=subprocess.DEVNULL)

    def drop_caches(self, *, text: bool) -> None:
        for path in Path(self._home).rglob("dovecot.index.cache"):
            path.unlink()

    def restore_caches(self) -> None:
        """Dovecot has no index of texts."""

    def drop_index(self) -> None:
        for path in Path(self._home).rglob("dovecot*"):
            if path.is_file():
                path.unlink()

    def _write_config(self) -> None:
        values = {"storage": self._storage, "password": PASSWORD, "imap": self.imap, "lmtp": self.lmtp}
        Path(self._config).write_text(_DOVECOT.format(directory=self.directory, format=values.pop("storage"), **values))

    def _command(self) -> list[str]:
        self._write_config()
        return ["dovecot", "-F", "-c", self._config]


def _write_maildir(place: str, messages: Iterable[bytes]) -> None:
    owner = pwd.getpwnam("mail")
    for path in (place, f"{place}/cur", f"{place}/new", f"{place}/tmp"):
        os.mkdir(path)
        os.chown(path, owner.pw_uid, owner.pw_gid)
    for number, octets in enumerate(messages):
        date = FIRST_DATE + number * STEP_SECONDS
        path = f"{place}/cur/{date}.M{number}P1.bench,S={len(octets)},W={len(octets)}:2,"
        with open(path, "wb") as file:
            file.write(octets)
            os.fchown(file.fileno(), owner.pw_uid, owner.pw_gid)
        os.utime(path, (date, date))


def let_other_users_pass(path: str) -> None:
    """Let servers that run as another user reach this directory."""
    while path != "/":
        mode = os.stat(path).st_mode
        if not mode & 0o001:
            os.chmod(path, mode | 0o011)
        path = os.path.dirname(path)
