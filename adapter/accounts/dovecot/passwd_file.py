"""A Dovecot passwd-file, read and never written.

::

    user:{SCHEME}password:uid:gid:comment:home:shell:extra fields

Invariants: a changed file takes effect at the next lookup. Checking an unknown user takes as much time as checking a
known one. Extra fields that restrict logins (``allow_nets``, ``nologin``) are respected; one that would admit anyone
(``nopassword``) is refused. Every method blocks.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass

from adapter.accounts import password_schemes
from adapter.accounts.password_schemes import SchemeError
from adapter.net.networks import Networks

_log = logging.getLogger(__name__)

_MAX_FILE_BYTES = 256 << 20
_FIELDS = 8
_EXTRA = 7

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class User:
    """One line of the file."""

    name: str
    password: str
    extra: dict[str, str]


class PasswdFile:
    """The users of a file. Thread-safe."""

    def __init__(self, path: str, default_scheme: str) -> None:
        self.path = path
        self._default_scheme = default_scheme
        self._mutex = threading.Lock()
        self._stamp: _Stamp | None = None
        self._users: dict[str, User] = {}
        self._domains: frozenset[str] = frozenset()

    def find(self, name: str) -> User | None:
        """Find a user by name, ignoring case. Raises OSError."""
        with self._mutex:
            self._refresh()
            return self._users.get(name.lower())

    def domains(self) -> frozenset[str]:
        """Return the domains of all names. Raises OSError."""
        with self._mutex:
            self._refresh()
            return self._domains

    def verify(self, user: User | None, password: str, peer: str) -> bool:
        """Return whether this user may log in with this password from ``peer``. Slow."""
        checked = user or next(iter(self._users.values()), None)  # the same work for unknown users
        if checked is None or not checked.password:
            return False
        try:
            is_correct = password_schemes.verify(checked.password, password, self._default_scheme)
        except SchemeError as error:
            if user is not None:
                _log.error("%s cannot log in: %s: %s", user.name, self.path, error)
            return False
        return is_correct and user is not None and self._is_allowed(user, peer)

    def _is_allowed(self, user: User, peer: str) -> bool:
        for field in ("nologin", "nopassword"):
            if field in user.extra:
                _log.warning("%s cannot log in: field %s in %s", user.name, field, self.path)
                return False
        if "allow_nets" not in user.extra:
            return True
        try:
            texts = [text.strip() for text in user.extra["allow_nets"].split(",")]
            return peer in Networks("unix" if text == "local" else text for text in texts)
        except ValueError as error:
            _log.error("%s cannot log in: allow_nets in %s: %s", user.name, self.path, error)
            return False

    def _refresh(self) -> None:
        """Read the file if it has changed."""
        status = os.stat(self.path)
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        if status.st_size > _MAX_FILE_BYTES:
            raise OSError(f"{self.path} is too large")
        with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
            users: dict[str, User] = {}
            for line in file:
                user = _parse(line.rstrip("\r\n"))
                if user is not None:
                    users.setdefault(user.name, user)
        self._users = users
        self._domains = frozenset(name.rpartition("@")[2] for name in users if "@" in name)
        self._stamp = stamp


def _parse(line: str) -> User | None:
    """Parse a line; None: a comment or blank."""
    if not line or line.startswith("#"):
        return None
    fields = line.split(":", _FIELDS - 1)
    fields += [""] * (_FIELDS - len(fields))
    if not fields[0]:
        return None
    extra = {}
    for word in fields[_EXTRA].split():
        name, _, value = word.partition("=")
        extra[name] = value
    return User(fields[0].lower(), fields[1], extra)
