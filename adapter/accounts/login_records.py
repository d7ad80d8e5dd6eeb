"""Login records in ``credentials/``: the server's secret, and the peer groups from which users have logged in.

* ``server-secret`` is created once. The salts that SCRAM sends for unknown users are derived from it, so they are the
  same in all workers and after a restart.
* ``proven-peers`` has a line ``day user pair`` for each user and peer group of a successful login. User and pair are
  keyed digests. A line is appended when a pair is new or its line a week old; a file that has grown large is rewritten.

Invariants: both files are readable by their owner only. Memory and file are bounded, for one user and in total. A file
that cannot be read or written loses records, but never fails a login. Thread-safe.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable

from adapter.store import disk, layout, locks
from adapter.store.disk import Directories
from protocol.errors import MailError

_log = logging.getLogger(__name__)

_SECRET_BYTES = 32
_KEPT_DAYS = 90
_RENEWED_AFTER_DAYS = 7
_PEERS_OF_USER = 64
_MAX_PAIRS = 1 << 14
_MAX_PENDING = 1024
_MAX_FILE_BYTES = 2 << 20
_LOCK_SECONDS = 10.0
_LINE = re.compile(rb"([0-9]{1,6}) ([0-9a-f]{16}) ([0-9a-f]{16})")

_Stamp = tuple[int, int, int]


def _wall_clock_day() -> int:
    return int(time.time() // 86400)


class LoginRecords:
    """The records of one store; in memory only without ``root``. ``fallback`` is the secret if none can be stored."""

    def __init__(self, root: str | None, fallback: bytes, today: Callable[[], int] = _wall_clock_day) -> None:
        self._directories = None if root is None else Directories(root)
        self._today = today
        self._mutex = threading.Lock()  # of the memory: never held during file access
        self._file_mutex = threading.Lock()
        self._days: dict[str, dict[str, int]] = {}  # user -> pair -> day; the least recently changed user first
        self._pairs = 0
        self._stamp: _Stamp | None = None
        self._pending: list[str] = []  # unwritten lines
        self._is_flush_due = False
        self._is_failing = False
        self.secret = fallback if self._directories is None else self._load_secret(self._directories, fallback)
        self.refresh()

    def close(self) -> None:
        """Write pending records, and close. Blocking."""
        self.flush()
        with self._file_mutex:
            directories, self._directories = self._directories, None
            if directories is not None:
                directories.close()

    # --- the secret --------------------------------------------------------------------------------------------------

    def _load_secret(self, directories: Directories, fallback: bytes) -> bytes:
        """Return the stored secret, creating it on first use. Blocking."""
        try:
            return _read_secret(directories) or _create_secret(directories)
        except (OSError, MailError) as error:
            _log.error("server secret: cannot be stored (%s); SCRAM salts of unknown users change at restart", error)
            return fallback

    # --- proven peers ------------------------------------------------------------------------------------------------

    def is_proven(self, user: str, peer: str) -> bool:
        """Return whether this process has a recent login of the user from this peer group."""
        owner, pair = self._digests(user, peer)
        with self._mutex:
            day = self._days.get(owner, {}).get(pair)
            return day is not None and self._today() - day <= _KEPT_DAYS

    def remember(self, user: str, peer: str) -> bool:
        """Record a login of the user from this peer group. True: call :meth:`flush`, on a thread."""
        owner, pair = self._digests(user, peer)
        with self._mutex:
            day = self._days.get(owner, {}).get(pair)
            if day is not None and self._today() - day < _RENEWED_AFTER_DAYS:
                return False
            self._put(owner, pair, self._today())
            if self._directories is None or len(self._pending) >= _MAX_PENDING:
                return False
            self._pending.append(f"{self._today()} {owner} {pair}\n")
            is_first, self._is_flush_due = not self._is_flush_due, True
            return is_first

    def flush(self) -> None:
        """Write the pending records. Blocking."""
        with self._file_mutex:
            with self._mutex:
                lines, self._pending = self._pending, []
                self._is_flush_due = False
            if self._directories is None or not lines:
                return
            try:
                with locks.credentials_lock(self._directories, _LOCK_SECONDS) as directory:
                    self._write(directory, "".join(lines).encode())
            except (OSError, MailError) as error:
                if not self._is_failing:
                    _log.error("proven peers: cannot be written (%s); lost at restart", error)
                self._is_failing = True
                with self._mutex:
                    self._pending = [*lines, *self._pending][:_MAX_PENDING]  # for the next flush
            else:
                self._is_failing = False

    def refresh(self) -> None:
        """Load what other processes have written since. Blocking, but does not wait for a flush."""
        if not self._file_mutex.acquire(blocking=False):
            return
        try:
            if self._directories is not None:
                with self._directories.open(layout.CREDENTIALS) as directory:
                    self._read(directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            if not self._is_failing:
                _log.error("proven peers: cannot be read (%s); using those in memory", error)
            self._is_failing = True
        finally:
            self._file_mutex.release()

    # --- digests and files -------------------------------------------------------------------------------------------

    def _digests(self, user: str, peer: str) -> tuple[str, str]:
        # The length distinguishes "a" at "bc" from "ab" at "c".
        name = user.encode("utf-8", "surrogatepass")
        texts = (b"user\0" + name, b"pair\0%d\0" % len(name) + name + peer.encode("utf-8", "surrogatepass"))
        owner, pair = (hashlib.blake2b(text, digest_size=8, key=self.secret[:64]).hexdigest() for text in texts)
        return owner, pair

    def _put(self, owner: str, pair: str, day: int) -> None:
        """Called with the mutex held."""
        days = self._days.pop(owner, {})
        self._days[owner] = days
        self._pairs += pair not in days
        days.pop(pair, None)
        days[pair] = day
        if len(days) > _PEERS_OF_USER:
            del days[next(iter(days))]
            self._pairs -= 1
        while self._pairs > _MAX_PAIRS:
            stalest = next(iter(self._days))
            self._pairs -= len(self._days.pop(stalest))

    def _read(self, directory: int) -> None:
        status = os.stat(layout.PROVEN_PEERS_FILE, dir_fd=directory, follow_symlinks=False)
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if status.st_size > 2 * _MAX_FILE_BYTES:  # not written here: the next record replaces it
            return
        lines = disk.read_file(directory, layout.PROVEN_PEERS_FILE).split(b"\n")
        proofs = [match.groups() for match in map(_LINE.fullmatch, lines) if match is not None]
        today = self._today()
        with self._mutex:
            for written, user, at_peer in proofs:
                day, owner, pair = min(int(written), today), user.decode(), at_peer.decode()
                recorded = self._days.get(owner, {}).get(pair)
                if today - day <= _KEPT_DAYS and (recorded is None or recorded < day):
                    self._put(owner, pair, day)

    def _write(self, directory: int, lines: bytes) -> None:
        try:
            size = os.stat(layout.PROVEN_PEERS_FILE, dir_fd=directory, follow_symlinks=False).st_size
        except FileNotFoundError:
            size = 0
        if size + len(lines) <= _MAX_FILE_BYTES:
            fd = disk.open_append(directory, layout.PROVEN_PEERS_FILE)
            try:
                disk.write_all(fd, lines)
            finally:
                os.close(fd)
            return
        self._read(directory)
        oldest = self._today() - _KEPT_DAYS
        with self._mutex:
            proofs = [(day, owner, pair) for owner, days in self._days.items() for pair, day in days.items()]
        kept = [f"{day} {owner} {pair}\n" for day, owner, pair in proofs if day >= oldest]
        disk.remove_unfinished(
            directory, layout.PROVEN_PEERS_FILE, rebooted=True
        )  # no concurrent writer: we hold the lock
        disk.replace_file(directory, layout.PROVEN_PEERS_FILE, "".join(kept).encode(), mode=0o600)


def _read_secret(directories: Directories) -> bytes | None:
    try:
        with directories.open(layout.CREDENTIALS) as directory:
            secret = bytes.fromhex(disk.read_file(directory, layout.SERVER_SECRET_FILE).decode("ascii"))
    except (FileNotFoundError, ValueError):
        return None
    return secret if len(secret) == _SECRET_BYTES else None


def _create_secret(directories: Directories) -> bytes:
    with locks.credentials_lock(directories, _LOCK_SECONDS) as directory:
        stored = _read_secret(directories)  # by another process, before we had the lock
        if stored is not None:
            return stored
        secret = os.urandom(_SECRET_BYTES)
        disk.remove_unfinished(directory, layout.SERVER_SECRET_FILE, rebooted=True)
        disk.replace_file(directory, layout.SERVER_SECRET_FILE, f"{secret.hex()}\n".encode(), mode=0o600)
        return secret
