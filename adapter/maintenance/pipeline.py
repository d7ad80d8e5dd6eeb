"""The pipeline of ``check`` and ``repair``: inspect, apply, verify, report."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from adapter.maintenance import processes, spark, workspace
from adapter.maintenance.diff import store_identity
from adapter.maintenance.diff.inspection import TORN, Inspection, journal_size, run_inspection
from adapter.maintenance.diff.recheck import ConfirmedFindings
from adapter.maintenance.expected.replay import BASE
from adapter.maintenance.expected.replay_process import ReplayProcess
from adapter.maintenance.findings import URGENT, Finding, Outcome
from adapter.maintenance.repair import decisions
from adapter.maintenance.repair.apply import Apply
from adapter.maintenance.repair.predict import DryRun
from adapter.maintenance.report import OPEN_SEVERITIES, Report, recorded_losses
from adapter.store import layout
from adapter.store.disk import Directories
from adapter.store.index import Index, IndexDiverged, IndexMissing, IndexUnreadable
from adapter.store.journal import Journal, JournalDamaged
from adapter.store.locks import Locks
from adapter.transport.recovery import checkpoint, opening
from adapter.transport.recovery import roll_forward as recovery
from protocol.errors import MailError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

Progress = Callable[[str], None]
_MAX_RECHECKS = 2
_NOT_ROLLED_FORWARD = (
    JournalDamaged, IndexMissing, IndexUnreadable, IndexDiverged, MailError, OSError, sqlite3.Error, LookupError,
)  # fmt: skip
_MAX_ROUNDS = 4  # of repair: moving files away may uncover more findings
_MAX_REPORTED_LEFT = 100  # findings named in the report if repair does not converge
_LOCK_SECONDS = 10.0  # only a process that ignores the service lock could hold it
_SCANNED = {"message": "messages", "blob": "blobs", "link": "links", "folder": "folders", "mailbox": "accounts"}


class Pipeline:
    """One Spark session and one scratch directory for all inspections of a command."""

    def __init__(
        self, root: str, master: str, scratch: str, report_progress: Progress, session: SparkSession | None = None
    ) -> None:
        self.root = os.path.abspath(root)
        self.master = master
        self.scratch = scratch
        self.report_progress = report_progress
        self._session = session
        self._owns_session = session is None
        self._replay: ReplayProcess | None = None
        self._inspections: list[Inspection] = []
        self.phases: dict[str, float] = {}  # seconds of work, without the start of Spark

    def close(self) -> None:
        self._end_replay()
        if self._owns_session and self._session is not None:
            self._session.stop()
            self._session = None

    def abort(self) -> None:
        """Close during an inspection."""
        if self._owns_session and self._session is not None:
            spark.kill_session(self._session)
            self._session = None
        self.close()

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def inspect(self) -> Inspection:
        """Inspect the store; an inspection after the first reuses the rows of unchanged entries."""
        if self._replay is None:
            self._replay = ReplayProcess(self.root, self.scratch)
        if self._session is None:
            self.report_progress("starting Spark")
            self._session = spark.start_session(self.master, self.scratch)
        name = f"inspection-{len(self._inspections) + 1}"
        workspace.make_directories(self.scratch, [name])
        earlier = self._inspections[-1] if self._inspections else None
        with self._timed("again" if earlier else "look"):
            inspection = run_inspection(
                self._session, self._replay, self.root, f"{self.scratch}/{name}", self.report_progress, earlier
            )
        self._inspections.append(inspection)
        self.report_progress(f"{inspection.kinds.total():,} findings")
        return inspection

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.phases[phase] = round(self.phases.get(phase, 0.0) + time.monotonic() - began, 3)

    def check(self, report: Report, chosen: Mapping[str, str] = MappingProxyType({})) -> None:
        """Check the store, read-only and online. Findings count only if repeated inspections confirm them.

        ``chosen``: decisions as passed to repair. Raises ``BadDecision``.
        """
        inspection = last = self.inspect()
        decisions.check(chosen, inspection.findings)
        with contextlib.closing(ConfirmedFindings(self.scratch)) as confirmed:
            for _ in range(_MAX_RECHECKS):
                if not last.kinds or not confirmed.has_candidates or not _is_in_use(last):
                    break
                self.report_progress("the store is in use: checking the findings again")
                last = self.inspect()
                confirmed.add_round(last.findings())
            with contextlib.closing(DryRun(inspection, chosen)) as dry_run:
                others = (finding for finding in inspection.findings() if finding.kind not in URGENT)
                for finding in chain(inspection.findings(URGENT), others):
                    if confirmed.is_confirmed(finding):
                        report.add(dry_run.predict(finding))
        self._finish(report, inspection)

    def repair(self, directories: Directories, report: Report, chosen: dict[str, str]) -> None:
        """Repair and verify the store. The caller holds the service lock exclusively.

        Raises ``BadDecision`` before anything is changed.
        """
        torn = roll_forward(directories)
        if torn is not None:
            report.add(Outcome.expected(torn))
        first = inspection = self.inspect()
        decisions.check(chosen, inspection.findings)
        rounds = 0
        left: list[str] = []
        while inspection.kinds and not inspection.facts.is_blind and rounds < _MAX_ROUNDS and (left or not rounds):
            self.report_progress(f"{inspection.kinds.total():,} findings; repairing")
            self._apply(directories, inspection, report, chosen)
            rounds += 1
            self.report_progress("verifying")
            inspection = self.inspect()
            unexpected = (each for each in inspection.findings() if not report.is_open(each))
            left = [f"{each.kind} {each.subject}" for each, _ in zip(unexpected, range(_MAX_REPORTED_LEFT))]
        if inspection.facts.is_blind:
            for finding in inspection.findings():
                report.add(Outcome.expected(finding))
            left.append("not compared: the files that decide cannot be read")
        report.verified = not left
        if left:
            report.head["left"] = left
        if rounds > 1:
            report.head["rounds"] = rounds
        self._finish(report, first)

    def _apply(self, directories: Directories, inspection: Inspection, report: Report, chosen: dict[str, str]) -> None:
        """Repair all findings of an inspection. Conflicts left by an earlier round are not reported again."""

        def add_outcome(outcome: Outcome) -> None:
            if outcome.severity not in OPEN_SEVERITIES or not report.is_open(outcome.finding):
                report.add(outcome)

        with self._timed("apply"), contextlib.closing(Locks(directories, _LOCK_SECONDS)) as locks, locks.hold(()):
            # Every writer takes the index lock after those of its addresses: the index lock excludes all of them.
            Apply(directories, inspection, chosen, add_outcome).run()

    def _finish(self, report: Report, inspection: Inspection) -> None:
        sealed = layout.absolute(self.root, layout.INDEX_FILE)
        tables = f"{inspection.scratch}/{BASE}" if report.verified is None else sealed
        self._end_replay()  # the peak memory of a child process is known when it has ended
        report.finish(
            source=inspection.facts.source,
            scanned={name: inspection.counts.get(what, 0) for what, name in _SCANNED.items()},
            phases=self.phases,
            seconds=dict(zip(("look", "again"), (each.seconds for each in self._inspections))),
            memory=processes.peak_memory(),
            recorded=recorded_losses(tables),
        )


def _is_in_use(inspection: Inspection) -> bool:
    """True if the store changed during the inspection: the journal grew, or was ahead of the index."""
    facts = inspection.facts
    return journal_size(inspection.root) != inspection.journal_bytes or facts.next_seq > facts.last_seq + 1


def roll_forward(directories: Directories) -> Finding | None:
    """Finish the work of a crashed process, as opening the store does; return the torn append, if one was cut.

    A store that cannot be rolled forward is left to the inspection.
    """
    identity = store_identity.resolve_store_id(directories)
    if identity.problem or identity.unreadable:
        return None
    with contextlib.closing(Journal(directories, identity.store)) as log:
        last = checkpoint.read(directories)
        log.durable_seq = last.seq if last else 0
        before = journal_size(directories.root)
        torn = None
        try:
            newest = max(log.segments(), default=0)
            log.check_store()
            log.refresh()
            if journal_size(directories.root) < before:
                torn = Finding("journal-torn", layout.journal_segment(newest), detail=TORN)
            suspect = recovery.find_suspect(directories, log)
            if suspect is not None and not suspect.cached:
                suspect = None  # the machine has restarted: the page cache cannot differ from the disk
            if suspect is not None:
                recovery.replace_index(directories, log, suspect)
            with contextlib.closing(Index(directories)) as opened:
                if opened.applied_seq() < log.durable_seq:
                    raise IndexUnreadable("an older copy")
                recovery.Recovery(directories, log, opened).catch_up()
                if suspect is not None:
                    recovery.restore_suspect(directories, log, opened, suspect)
        except _NOT_ROLLED_FORWARD as error:
            _log.info("journal: not rolled forward (%s); inspecting the store as it is", error)
        return torn


@contextlib.contextmanager
def open_run(
    root: str,
    command: str,
    master: str,
    report_progress: Progress,
    *,
    scratch_parent: str | None = None,
    session: SparkSession | None = None,
) -> Iterator[tuple[Pipeline, Report, Directories]]:
    """Open a pipeline with its scratch directory and report, and clean up afterwards in any case."""
    began = time.monotonic()
    with contextlib.closing(opening.open_root(root)) as directories:
        opening.check_version(directories)
        opening.check_directories(directories, create=False)
        with workspace.scratch(directories, scratch_parent) as scratch:
            pipeline = Pipeline(root, master, scratch, report_progress, session)
            report = Report(command, root, master, scratch)
            try:
                yield pipeline, report, directories
            except BaseException as error:
                if not spark.is_interrupted(error):
                    raise
                pipeline.abort()
                raise KeyboardInterrupt from None
            finally:
                report.close()
                pipeline.close()
                report_progress(f"done in {time.monotonic() - began:.1f} s")
