"""``check`` and ``repair`` as functions: survey, apply, verify, report."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from adapter.maintenance import spark, workspace
from adapter.maintenance.apply import Apply
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.report import Report
from adapter.maintenance.survey import Survey, journal_size, survey
from adapter.store import disk, index, journal
from adapter.store.disk import Directories
from adapter.store.index import Index
from adapter.store.journal import Journal
from adapter.transport import checkpoint, opening, recovery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[str], None]


class Pipeline:
    """One Spark session and one scratch directory, for as many looks at the store as a command needs."""

    def __init__(
        self, root: str, master: str, scratch: str, say: Progress, session: SparkSession | None = None
    ) -> None:
        self.root = os.path.abspath(root)
        self.master = master
        self.scratch = scratch
        self.say = say
        self._session = session
        self._own = session is None
        self._looks = 0

    def close(self) -> None:
        if self._own and self._session is not None:
            self._session.stop()
            self._session = None

    def look(self) -> Survey:
        if self._session is None:
            self.say("starting Spark")
            self._session = spark.start(self.master, self.scratch)
        self._looks += 1
        place = f"{self.scratch}/look-{self._looks}"
        parent = os.open(self.scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            disk.make_directory(parent, f"look-{self._looks}")
        finally:
            os.close(parent)
        return survey(self._session, self.root, place, self.say)

    def check(self, report: Report) -> None:
        """Read-only, online: what changed while it looked is looked at again."""
        found = self.look()
        items: Iterator[Finding] = found.findings()
        if found.found and journal_size(self.root) != found.journal_at:
            self.say("the store is in use: looking again at what was found")
            again = self.look()
            seen = {(finding.kind, finding.subject) for finding in again.findings()}
            items = (finding for finding in items if (finding.kind, finding.subject) in seen)
        for finding in items:
            report.tell(Outcome.expected(finding))
        _finish(report, found)

    def repair(self, directories: Directories, report: Report, decisions: dict[str, str]) -> None:
        """The caller holds the service lock exclusively."""
        roll_forward(directories)
        found = self.look()
        if found.found:
            self.say(f"{sum(found.found.values())} findings; repairing")
            Apply(directories, found, decisions, report.tell).run()
            self.say("verifying")
            left = self.look()
            conflicts = report.severities["conflict"]
            report.verified = sum(left.found.values()) <= conflicts
            if not report.verified:
                report.head["left"] = [f"{each.kind} {each.subject}" for each, _ in zip(left.findings(), range(100))]
        else:
            report.verified = True
        _finish(report, found)


def _finish(report: Report, found: Survey) -> None:
    plural = {"message": "messages", "blob": "blobs", "link": "links", "folder": "folders", "mailbox": "accounts"}
    report.finish(
        source=found.facts.source,
        scanned={name: found.counts.get(what, 0) for what, name in plural.items()},
        seconds={name: round(value, 3) for name, value in found.seconds.items()},
    )


def roll_forward(directories: Directories) -> None:
    """What a dead process left half-way is finished as every opening does; what that cannot do is for the pipeline."""
    with contextlib.closing(Journal(directories)) as log:
        last = checkpoint.read(directories)
        log.durable_seq = last.seq if last else 0
        with contextlib.suppress(journal.JournalDamaged, index.IndexMissing, index.IndexUnreadable, Exception):
            log.refresh()
            with contextlib.closing(Index(directories)) as opened:
                recovery.Recovery(directories, log, opened).catch_up()


@contextlib.contextmanager
def running(
    root: str,
    command: str,
    master: str,
    say: Progress,
    *,
    elsewhere: str | None = None,
    session: SparkSession | None = None,
) -> Iterator[tuple[Pipeline, Report, Directories]]:
    """A pipeline with its scratch directory and report, cleaned up afterwards whatever happens."""
    began = time.monotonic()
    with contextlib.closing(opening.open_root(root)) as directories:
        opening._check_version(directories)
        with workspace.scratch(directories, elsewhere) as scratch:
            pipeline = Pipeline(root, master, scratch, say, session)
            report = Report(command, root, master, scratch)
            try:
                yield pipeline, report, directories
            finally:
                report.close()
                pipeline.close()
                say(f"done in {time.monotonic() - began:.1f} s")
