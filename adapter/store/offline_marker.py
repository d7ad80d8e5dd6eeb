"""The offline marker: the command that took the store offline, when, why and until when.

``maintenance on`` leaves a marker that lasts until ``maintenance off``. A command that works offline (repair) leaves
one while it runs and holds a lock: if it dies, the lock is free, and the marker is ignored.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from dataclasses import dataclass

import orjson

from adapter.store import disk, layout, locks
from adapter.store.disk import Directories


@dataclass(frozen=True, slots=True)
class Marker:
    why: str
    lasting: bool  # stays until it is taken away; else it ends with its process
    until: str = ""  # when mail is expected back, for people
    who: str = ""
    since: str = ""
    pid: int = 0
    boot: str = ""

    def __str__(self) -> str:
        until = f", until {self.until}" if self.until else ""
        return f"{self.why} (by {self.who}, since {self.since}{until})"


def signed(why: str, *, lasting: bool, until: str = "") -> Marker:
    """A marker of this process, now."""
    who = f"{os.environ.get('SUDO_USER') or os.environ.get('USER') or os.geteuid()}@{socket.gethostname()}"
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Marker(why, lasting, until, who, since, os.getpid(), disk.boot_id())


def read(directories: Directories) -> Marker | None:
    """The marker, if there is one that counts. One that cannot be read counts: better offline than unsafe."""
    with directories.stable(layout.MAINTENANCE) as maintenance:
        try:
            raw = disk.read_file(maintenance, layout.OFFLINE_MARKER)
        except FileNotFoundError:
            return None
    try:
        marker = Marker(**orjson.loads(raw))
    except (ValueError, TypeError):
        return Marker(raw.decode("utf-8", "replace").strip() or "offline", lasting=True, who="?", since="?")
    return marker if marker.lasting or locks.is_offline_claimed(directories) else None


def write(directories: Directories, marker: Marker) -> None:
    with directories.stable(layout.MAINTENANCE) as maintenance:
        disk.replace_file(
            maintenance, layout.OFFLINE_MARKER, orjson.dumps(dataclasses.asdict(marker)) + b"\n", mode=0o644
        )


def remove(directories: Directories) -> None:
    with directories.stable(layout.MAINTENANCE) as maintenance:
        if disk.exists(maintenance, layout.OFFLINE_MARKER):
            disk.unlink(maintenance, layout.OFFLINE_MARKER)
            disk.sync_directory(maintenance)
