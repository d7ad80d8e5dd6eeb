"""The replay process, separate from the driver: started with the run, with one request per inspection."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapter.store.segments import BEGINNING

FACTS = "facts.json"


@dataclass(slots=True)
class ReplayFacts:
    """Facts about index, journal and snapshots; ``source`` is the origin of the tables in ``base.sqlite``."""

    source: str = "journal"  # journal, index, salvage or nothing
    store: str = ""  # id of the store
    index_kind: str = ""  # kind of the finding about the index as a whole, or ""
    index_detail: str = ""
    index_problem: str = ""  # why the index cannot be compared with the tables, or ""
    last_seq: int = 0  # last record in base.sqlite
    last_checksum: str = BEGINNING  # checksum of that record
    next_seq: int = 1  # greater than any record number in use
    torn: str = ""  # the segment that ends with an incomplete append
    damaged_segments: dict[str, str] = field(default_factory=dict)
    damaged_snapshots: list[str] = field(default_factory=list)
    foreign_segments: dict[str, str] = field(default_factory=dict)  # name -> id of its store
    foreign_snapshots: dict[str, str] = field(default_factory=dict)
    behind: bool = False  # the journal ends before its snapshot: a repair crashed while sealing the tables
    wrong_meta: dict[str, str] = field(default_factory=dict)  # key of the index's meta -> problem
    gap: str = ""  # why snapshots and journal are incomplete
    read: dict[str, list[int]] = field(default_factory=dict)  # segment -> inode, octets; empty unless all are intact

    unchanged: bool = False  # the tables equal those of the earlier inspection
    unreadable: dict[str, str] = field(default_factory=dict)  # path -> cause and remedy
    is_blind: bool = False  # a file that decides cannot be read: the tables are not valid

    @property
    def complete(self) -> bool:
        """True if snapshots and journal have no gap."""
        return self.source == "journal"


def read_facts(scratch: str) -> ReplayFacts:
    with open(f"{scratch}/{FACTS}", "rb") as file:
        return ReplayFacts(**orjson.loads(file.read()))


class ReplayProcess:
    def __init__(self, root: str, scratch: str) -> None:
        """Start the process. ``scratch``: the run's scratch directory, where SQLite sorts."""
        self._root = root
        self._idle = True
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "adapter.maintenance.expected.replay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path]), "SQLITE_TMPDIR": scratch},
        )

    def request(self, scratch: str, store: str, earlier: str) -> None:
        """Request the tables of an inspection. ``earlier``: scratch directory of the inspection to continue from."""
        self._idle = False
        request: dict[str, Any] = {"root": self._root, "scratch": scratch, "store": store, "earlier": earlier}
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError("the replay process has ended")
        with contextlib.suppress(BrokenPipeError):  # result() raises the error
            stdin.write(orjson.dumps(request) + b"\n")
            stdin.flush()

    def result(self, scratch: str) -> ReplayFacts:
        """Wait for the requested tables."""
        stdout = self._process.stdout
        if stdout is None or not stdout.readline():
            _, errors = self._process.communicate()
            raise RuntimeError(f"the replay failed: {errors.decode(errors='replace')[-2000:]}")
        self._idle = True
        return read_facts(scratch)

    def close(self) -> None:
        """End the process; a replay in progress is abandoned."""
        if self._idle:
            self._process.communicate()  # closes its input: the process exits
        else:
            self._process.kill()
            self._process.communicate()
