"""A damaged store and what becomes of it: one Spark session for all tests of a process."""

from __future__ import annotations

import atexit
import os
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from adapter.maintenance import gate, pipeline, spark
from adapter.store import layout
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, folder, new_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"


@cache
def session() -> SparkSession:
    scratch = tempfile.mkdtemp(prefix="markpost-spark-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    started = spark.start(MASTER, scratch)
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    atexit.register(started.stop)
    return started


@dataclass
class Result:
    report: dict[str, Any]

    @property
    def kinds(self) -> dict[str, int]:
        counts: dict[str, int] = self.report["counts"]
        return counts

    def items(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.report["items"] if item["kind"] == kind]


def _quiet(_: str) -> None:
    pass


def check(root: Path) -> Result:
    with pipeline.running(str(root), "check", MASTER, _quiet, session=session()) as (run, report, _):
        run.check(report)
        return Result(orjson.loads(b"".join(report.json())))


def repair(root: Path, decisions: dict[str, str] | None = None) -> Result:
    with (
        pipeline.running(str(root), "repair", MASTER, _quiet, session=session()) as (run, report, _),
        gate.offline(str(root), reason="a test", deadline=5) as held,
    ):
        run.repair(held, report, decisions or {})
        return Result(orjson.loads(b"".join(report.json())))


def build(root: Path, *, snapshot: bool = False) -> None:
    """A store with a bit of everything: flags, keywords, copies, expunges, folders, attachments, threads."""
    with new_store(root, ADA, BOB) as transport:
        for number in range(6):
            octets = message(
                f"Message {number}",
                message_id=f"<{number}@example.test>",
                in_reply_to=f"<{number - 1}@example.test>" if number % 2 else None,
                to=f"{ADA}, {BOB}" if number < 3 else ADA,
                attachments=[b"part %d" % number] if number in (1, 4) else [],
            )
            deliver(transport, *((ADA, BOB) if number < 3 else (ADA,)), octets=octets)
        if snapshot:
            transport.snapshot()
        transport.run(op.CreateFolder(ADA, "Projects/Engine"))
        transport.run(op.Subscribe(ADA, "Projects/Engine"))
        append(transport, "Projects/Engine", message("Note 1", message_id="<n1@x>"), flags=1, keywords=("todo",))
        append(transport, "Projects/Engine", message("Note 2", message_id="<n2@x>"), flags=4)
        append(transport, "Archive", message("Old", message_id="<old@x>"), flags=1)
        inbox = folder(transport)
        transport.run(op.ChangeFlags(ADA, inbox.id, [1, 2], "add", 1, ["seen-it"]))
        transport.run(op.Copy(ADA, inbox.id, [1], "Projects"))
        transport.run(op.ChangeFlags(ADA, inbox.id, [3], "add", 8))
        transport.run(op.Expunge(ADA, inbox.id))


def path(root: Path, *parts: str) -> Path:
    return Path(layout.absolute(str(root), *parts))


def index(root: Path) -> sqlite3.Connection:
    return sqlite3.connect(path(root, layout.INDEX_FILE), isolation_level=None)


def view(root: Path) -> dict[str, Any]:
    """What a mail client sees, and what is on record."""
    connection = index(root)
    try:
        queries = {
            "registrations": "SELECT registration_id, address, status FROM mailbox_registrations ORDER BY 1",
            "folders": "SELECT folder_id, name, special_use, uidvalidity, uidnext, messages, unseen, deleted, size"
            " FROM folders ORDER BY 1",
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
    """Every projection on disk and where it points."""
    top = path(root, *layout.MAILBOXES)
    return {str(each.relative_to(top)): os.readlink(each) for each in sorted(top.rglob("*.md")) if each.is_symlink()}


def opens(root: Path) -> None:
    """The store opens and every message shown can be read."""
    with Transport.open(root) as transport, transport.reading() as connection:
        shown = connection.execute("SELECT DISTINCT message_id FROM mailbox_projections").fetchall()
        for (message_id,) in shown:
            assert transport.content.octets(message_id)
