"""Check and repair damaged stores, on one Spark session for all tests of a process."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from adapter.maintenance import gate, pipeline, spark
from adapter.maintenance.report import Report
from adapter.store import layout
from adapter.store.disk import Directories
from adapter.store.queries import mailboxes as queries
from adapter.transport.transport import Transport
from tests.system.maintenance.lab import failing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"
Folder = dict[int, tuple[str, int, str, str]]
Seen = dict[tuple[str, str], Folder]


def memory() -> str | None:
    """A directory in memory, if there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@cache
def session() -> SparkSession:
    scratch = tempfile.mkdtemp(prefix="markpost-spark-", dir=memory())
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = failing.environment()
    try:
        started = spark.start_session(MASTER, scratch)
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    atexit.register(started.stop)
    return started


@dataclass
class Result:
    report: dict[str, Any]
    needs_attention: bool = False  # repair exits with status 1

    @property
    def kinds(self) -> dict[str, int]:
        counts: dict[str, int] = self.report["counts"]
        return counts

    def items(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.report["items"] if item["kind"] == kind]


def _quiet(_: str) -> None:
    pass


@contextlib.contextmanager
def run(
    root: Path, command: str, report_progress: Callable[[str], None] = _quiet, scratch_parent: Path | None = None
) -> Iterator[tuple[pipeline.Pipeline, Report, Directories]]:
    """Open a run of ``check`` or ``repair`` on the session of the tests."""
    parent = str(scratch_parent) if scratch_parent else None
    with pipeline.open_run(
        str(root), command, MASTER, report_progress, scratch_parent=parent, session=session()
    ) as opened:
        yield opened


def check(
    root: Path, report_progress: Callable[[str], None] = _quiet, decisions: dict[str, str] | None = None
) -> Result:
    with run(root, "check", report_progress) as (pipeline_run, report, _):
        pipeline_run.check(report, decisions or {})
        return Result(orjson.loads(b"".join(report.json())), report.needs_attention)


def repair(root: Path, decisions: dict[str, str] | None = None, scratch_parent: Path | None = None) -> Result:
    """Repair a store. ``scratch_parent``: directory for scratch files, by default in the store."""
    with (
        run(root, "repair", scratch_parent=scratch_parent) as (pipeline_run, report, _),
        gate.offline(str(root), reason="a test", deadline=5) as held,
    ):
        pipeline_run.repair(held, report, decisions or {})
        return Result(orjson.loads(b"".join(report.json())), report.needs_attention)


def path(root: Path, *parts: str) -> Path:
    return Path(layout.absolute(str(root), *parts))


def index(root: Path) -> sqlite3.Connection:
    return sqlite3.connect(path(root, layout.INDEX_FILE), isolation_level=None)


def view(root: Path) -> dict[str, Any]:
    """The mail that a client sees, and the rows of the tables."""
    connection = index(root)
    try:
        queries = {
            "registrations": "SELECT registration_id, address, status FROM mailbox_registrations ORDER BY 1",
            "folders": "SELECT folder_id, registration_id, name, special_use, uidvalidity, uidnext, messages, unseen,"
            " deleted, size FROM folders ORDER BY 1",
            "rows": "SELECT p.folder_id, p.uid, p.message_id, p.internal_date, s.flags, s.keywords, s.modseq"
            " FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid) ORDER BY 1, 2",
            "subscriptions": "SELECT registration_id, name FROM subscriptions ORDER BY 1, 2",
            "history": "SELECT message_id, sender, thread_id, size, wire_sha256 FROM messages ORDER BY 1",
            "recipients": "SELECT message_id, address, kind FROM message_recipients ORDER BY 1, 2",
            "threads": "SELECT registration_id, thread_id, messages, unread, latest_message_id FROM thread_summaries"
            " ORDER BY 1, 2",
            "expunged": "SELECT folder_id, modseq, uids FROM expunged ORDER BY 1, 2",
        }
        return {name: connection.execute(sql).fetchall() for name, sql in queries.items()}
    finally:
        connection.close()


def links(root: Path) -> dict[str, str]:
    """All projections on disk with their targets."""
    top = path(root, *layout.MAILBOXES)
    return {str(each.relative_to(top)): os.readlink(each) for each in sorted(top.rglob("*.md")) if each.is_symlink()}


def seen(root: Path) -> Seen:
    """The mail that a client sees: account and folder -> UID -> message, flags, keywords, and the hash of its octets.

    Empty folders are included; UIDVALIDITY and UIDNEXT have the key 0.
    """
    seen_folders: Seen = {}
    with Transport.open(root) as transport, transport.reading() as connection:
        for registration in queries.registrations(connection):
            owner = registration.address if registration.status == "active" else registration.id
            for folder in queries.folders(connection, registration.id):
                shown = seen_folders.setdefault((owner, folder.name), {})
                shown[0] = (f"{folder.uidvalidity} {folder.uidnext}", folder.messages, folder.special_use, "")
                for row in queries.rows(connection, folder.id):
                    octets = transport.content.octets(row.message_id)
                    shown[row.uid] = (row.message_id, row.flags, row.keywords, sha256(octets).hexdigest())
    return seen_folders
