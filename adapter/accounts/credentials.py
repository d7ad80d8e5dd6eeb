"""Credentials: ``credentials/passwd`` below the root, in the format of Dovecot's passwd-file driver.

::

    ada@example.test:{ARGON2ID}$argon2id$v=19$…:::markpost_scram=4096,<salt>,<StoredKey>,<ServerKey>:::

The fields are user, password, uid, gid, comment, home, shell and extra fields. The keys for SCRAM-SHA-256 are in the
comment: Dovecot passes extra fields on at login, but ignores comments.

Invariants: the directory and the file are readable by their owner only; the file is replaced atomically and durably,
under a lock. Unknown lines, fields and comments survive a change. Checking an unknown address takes as much time as
checking a known one. A changed file takes effect at the next check.
"""

from __future__ import annotations

import logging
import os
import threading
from base64 import b64encode
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from adapter.store import disk, layout, locks, names
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason
from protocol.sasl.scram import ScramKeys, parse_scram_keys, saslprep, scram_keys

_log = logging.getLogger(__name__)

_SCHEME = "{ARGON2ID}"
_SCRAM = "markpost_scram="
SCRAM_ITERATIONS = 4096  # clients, including phones, compute them too (RFC 7677 section 4)
_MAX_PASSWORD_BYTES = 1024
_LOCK_SECONDS = 10.0
_FIELDS = 8
_USER, _PASSWORD, _COMMENT = 0, 1, 4

#: Parallelism 1, because some readers of the format support no more; memory and time as OWASP recommends.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 << 10, parallelism=1)

_Stamp = tuple[int, int, int]
_Fields = list[str]
_Lines = list[str]


class _HasRoot(Protocol):
    @property
    def root(self) -> str: ...


class Credentials:
    """The passwords of one store. Safe to use from several threads."""

    def __init__(self, root: str) -> None:
        self._directories = Directories(root)
        self._mutex = threading.Lock()
        self._stamp: _Stamp | None = None
        self._fields: dict[str, _Fields] = {}
        self._decoy = _decoy()
        self._decoy_scram = _write_scram(scram_keys("decoy", os.urandom(16), SCRAM_ITERATIONS))

    @classmethod
    def open(cls, store: _HasRoot | str | os.PathLike[str]) -> Credentials:
        """Open the credentials of an open store, or of the store at a path."""
        return cls(os.fspath(store) if isinstance(store, str | os.PathLike) else store.root)

    def close(self) -> None:
        self._directories.close()

    def __enter__(self) -> Credentials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- checks ------------------------------------------------------------------------------------------------------

    def verify(self, address: str, password: str) -> bool:
        """Return whether this is the password of the address. Slow: never call it on an event loop."""
        fields = self._find(address)
        has_hash = fields is not None and fields[_PASSWORD].startswith(_SCHEME)
        stored = fields[_PASSWORD].removeprefix(_SCHEME) if fields is not None and has_hash else self._decoy
        try:
            prepared = prepare(password)
        except MailError:
            has_hash, prepared = False, ""
        try:
            return _HASHER.verify(stored, prepared) and has_hash
        except VerifyMismatchError:
            return False
        except (VerificationError, InvalidHashError):
            _log.error("%s: stored password is malformed; set it again with markpost account passwd", address)
            return False

    def has_password(self, address: str) -> bool:
        """Return whether the address has a password here."""
        fields = self._find(address)
        return fields is not None and bool(fields[_PASSWORD])

    def scram(self, address: str) -> ScramKeys | None:
        """Return the keys for SCRAM-SHA-256, or None."""
        fields = self._find(address)
        words = fields[_COMMENT].split() if fields else []
        stored = next((word.removeprefix(_SCRAM) for word in words if word.startswith(_SCRAM)), None)
        keys = _read_scram(self._decoy_scram if stored is None else stored)  # the same work for known and unknown users
        return None if stored is None else keys

    def list(self) -> list[str]:
        """Return the addresses that have a password, sorted."""
        return sorted(address for address, fields in self._current().items() if fields[_PASSWORD])

    # --- changes -----------------------------------------------------------------------------------------------------

    def set_password(self, address: str, password: str) -> None:
        """Set or replace the password of an address. Raises ``NOT_ALLOWED`` for an unusable one."""
        user = _user_field(address)
        prepared = prepare(password)
        hashed = f"{_SCHEME}{_HASHER.hash(prepared)}"
        scram = _SCRAM + _write_scram(scram_keys(prepared, os.urandom(16), SCRAM_ITERATIONS))

        def change(lines: _Lines) -> _Lines:
            ours = [number for number, line in enumerate(lines) if _user_of(line) == user]
            fields = _split(lines[ours[0]]) if ours else [user, *[""] * (_FIELDS - 1)]
            fields[_PASSWORD] = hashed
            comment = [word for word in fields[_COMMENT].split() if not word.startswith(_SCRAM)]
            fields[_COMMENT] = " ".join([*comment, scram])
            if not ours:
                return [*lines, ":".join(fields)]
            lines[ours[0]] = ":".join(fields)
            return [line for number, line in enumerate(lines) if number not in ours[1:]]

        self._change(change)

    def remove(self, address: str) -> bool:
        """Remove the password of an address; return whether it had one."""
        user = names.normalise_address(address)
        removed = False

        def change(lines: _Lines) -> _Lines:
            nonlocal removed
            kept = [line for line in lines if _user_of(line) != user]
            removed = len(kept) != len(lines)
            return kept

        self._change(change)
        return removed

    # --- the file ----------------------------------------------------------------------------------------------------

    def _find(self, address: str) -> _Fields | None:
        try:
            return self._current().get(names.normalise_address(address))
        except MailError:
            return None

    def _current(self) -> dict[str, _Fields]:
        """Return the fields of every address; the file is read again only if it has changed."""
        with self._mutex:
            stamp = self._file_stamp()
            if stamp != self._stamp:
                self._fields = {}
                for line in self._read() if stamp else ():
                    user = _user_of(line)
                    if user is not None:
                        self._fields.setdefault(user, _split(line))
                self._stamp = stamp
            return self._fields

    def _file_stamp(self) -> _Stamp | None:
        try:
            with self._directories.open(layout.CREDENTIALS) as directory:
                status = os.stat(layout.CREDENTIALS_FILE, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> _Lines:
        try:
            with self._directories.open(layout.CREDENTIALS) as directory:
                data = disk.read_file(directory, layout.CREDENTIALS_FILE)
        except FileNotFoundError:
            return []
        return data.decode("utf-8", "surrogateescape").split("\n")

    def _change(self, change: Callable[[_Lines], _Lines]) -> None:
        with locks.credentials_lock(self._directories, _LOCK_SECONDS) as directory:
            before = self._read()
            while before and not before[-1]:
                before.pop()
            after = change(before.copy())
            disk.remove_unfinished(
                directory, layout.CREDENTIALS_FILE, rebooted=True
            )  # no concurrent writer: we hold the lock
            if after != before:
                data = "".join(f"{line}\n" for line in after).encode("utf-8", "surrogateescape")
                disk.replace_file(directory, layout.CREDENTIALS_FILE, data, mode=0o600)


def check(address: str, password: str) -> None:
    """Raise what :meth:`Credentials.set_password` would raise, without changing anything."""
    _user_field(address)
    prepare(password)


def prepare(password: str) -> str:
    """Prepare a password (SASLprep). Raises ``NOT_ALLOWED`` for an unusable one."""
    try:
        prepared = saslprep(password)
        if len(prepared.encode()) <= _MAX_PASSWORD_BYTES:
            return prepared
        problem = f"longer than {_MAX_PASSWORD_BYTES} octets"
    except ValueError as error:
        problem = str(error)
    raise MailError(Reason.NOT_ALLOWED, f"unusable password: {problem}")


def _decoy() -> str:
    """Make a hash that matches no password, to verify against for unknown addresses."""
    salt, tag = (b64encode(os.urandom(size)).rstrip(b"=").decode() for size in (16, 32))
    cost = f"m={_HASHER.memory_cost},t={_HASHER.time_cost},p={_HASHER.parallelism}"
    return f"$argon2id$v=19${cost}${salt}${tag}"


def _user_field(address: str) -> str:
    user = names.normalise_address(address)
    if ":" in user or "#" in user[:1] or any(character.isspace() for character in user):
        raise MailError(Reason.BAD_ADDRESS, f"{user} cannot have a password: its name has a colon, blank or leading #")
    return user


def _user_of(line: str) -> str | None:
    """Return the address of a line, or None for a comment or anything else."""
    if line.startswith("#") or ":" not in line:
        return None
    try:
        return names.normalise_address(line.partition(":")[0])
    except MailError:
        return None


def _split(line: str) -> _Fields:
    """Split a line into eight fields; the last one includes any further colons."""
    fields = line.rstrip("\r").split(":", _FIELDS - 1)
    return fields + [""] * (_FIELDS - len(fields))


def _write_scram(stored: str) -> str:
    """Format as ``iterations,salt,StoredKey,ServerKey``, as Dovecot does: a colon would end the field."""
    _, head, keys = stored.split("$")
    return ",".join((*head.split(":"), *keys.split(":")))


def _read_scram(text: str) -> ScramKeys | None:
    parts = text.split(",")
    if len(parts) != 4:
        return None
    iterations, salt, stored, server = parts
    return parse_scram_keys(f"SCRAM-SHA-256${iterations}:{salt}${stored}:{server}")
