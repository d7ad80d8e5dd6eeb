"""``check`` and ``repair`` as functions: survey, apply, verify, report."""

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

from adapter.maintenance import memory, spark, workspace
from adapter.maintenance.diff import witnesses
from adapter.maintenance.diff.recheck import Seen
from adapter.maintenance.diff.survey import TORN, Survey, journal_size, survey
from adapter.maintenance.expected.record_replay import Replayer
from adapter.maintenance.expected.recorded_losses import recorded_losses
from adapter.maintenance.expected.replay import BASE
from adapter.maintenance.findings import URGENT, Finding, Outcome
from adapter.maintenance.repair import decisions
from adapter.maintenance.repair.apply import Apply
from adapter.maintenance.repair.predict import Foretelling
from adapter.maintenance.report import STAYING, Report
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
_LOOKS_AGAIN = 2
_NOT_ROLLED_FORWARD = (
    JournalDamaged, IndexMissing, IndexUnreadable, IndexDiverged, MailError, OSError, sqlite3.Error, LookupError,
)  # fmt: skip
_MOST_ROUNDS = 4  # of repair: what one round moves away may uncover more
_MOST_LEFT = 100  # findings that the report names if repair does not converge
_LOCK_SECONDS = 10.0  # nobody can hold it while we have the service lock, but who does not know that one
_SCANNED = {"message": "messages", "blob": "blobs", "link": "links", "folder": "folders", "mailbox": "accounts"}


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
        self._replayer: Replayer | None = None
        self._looks: list[Survey] = []
        self.phases: dict[str, float] = {}  # seconds of work, start-up aside

    def close(self) -> None:
        self._end_replayer()
        if self._own and self._session is not None:
            self._session.stop()
            self._session = None

    def give_up(self) -> None:
        """Close in the middle of a look."""
        if self._own and self._session is not None:
            spark.give_up(self._session)
            self._session = None
        self.close()

    def _end_replayer(self) -> None:
        if self._replayer is not None:
            self._replayer.close()
            self._replayer = None

    def look(self) -> Survey:
        if self._replayer is None:
            self._replayer = Replayer(self.root, self.scratch)
        if self._session is None:
            self.say("starting Spark")
            self._session = spark.start(self.master, self.scratch)
        name = f"look-{len(self._looks) + 1}"
        workspace.make_directories(self.scratch, [name])
        earlier = self._looks[-1] if self._looks else None
        with self._timed("again" if earlier else "look"):
            found = survey(self._session, self._replayer, self.root, f"{self.scratch}/{name}", self.say, earlier)
        self._looks.append(found)
        self.say(f"{sum(found.found.values()):,} findings")
        return found

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.phases[phase] = round(self.phases.get(phase, 0.0) + time.monotonic() - began, 3)

    def check(self, report: Report, chosen: Mapping[str, str] = MappingProxyType({})) -> None:
        """Read-only, online: what was found while the store changed is looked at again, and must be there each time.

        ``chosen``: what repair would be told. Raises ``BadDecision``.
        """
        found = last = self.look()
        decisions.check(chosen, found.findings)
        with contextlib.closing(Seen(self.scratch)) as seen:
            for _ in range(_LOOKS_AGAIN):
                if not last.found or not seen.left or not _in_use(last):
                    break
                self.say("the store is in use: looking again at what was found")
                last = self.look()
                seen.look(last.findings())
            with contextlib.closing(Foretelling(found, chosen)) as foretelling:
                others = (finding for finding in found.findings() if finding.kind not in URGENT)
                for finding in chain(found.findings(URGENT), others):
                    if seen.each_time(finding):
                        report.tell(foretelling.outcome(finding))
        self._finish(report, found)

    def repair(self, directories: Directories, report: Report, chosen: dict[str, str]) -> None:
        """The caller holds the service lock exclusively. Raises ``BadDecision`` before anything is mended."""
        torn = roll_forward(directories)
        if torn is not None:
            report.tell(Outcome.expected(torn))
        first = found = self.look()
        decisions.check(chosen, found.findings)
        rounds = 0
        left: list[str] = []
        while found.found and not found.facts.is_blind and rounds < _MOST_ROUNDS and (left or not rounds):
            self.say(f"{sum(found.found.values()):,} findings; repairing")
            self._apply(directories, found, report, chosen)
            rounds += 1
            self.say("verifying")
            found = self.look()
            unexpected = (each for each in found.findings() if not report.stays(each))
            left = [f"{each.kind} {each.subject}" for each, _ in zip(unexpected, range(_MOST_LEFT))]
        if found.facts.is_blind:
            for finding in found.findings():
                report.tell(Outcome.expected(finding))
            left.append("not compared: what decides cannot be read")
        report.verified = not left
        if left:
            report.head["left"] = left
        if rounds > 1:
            report.head["rounds"] = rounds
        self._finish(report, first)

    def _apply(self, directories: Directories, found: Survey, report: Report, chosen: dict[str, str]) -> None:
        """Repair everything that one scan found; what an earlier round left to a person is not reported again."""

        def tell(outcome: Outcome) -> None:
            if outcome.severity not in STAYING or not report.stays(outcome.finding):
                report.tell(outcome)

        with self._timed("apply"), contextlib.closing(Locks(directories, _LOCK_SECONDS)) as locks, locks.hold(()):
            # Whoever changes anything takes the index lock, after those of its addresses: it stands for them all.
            Apply(directories, found, chosen, tell).run()

    def _finish(self, report: Report, found: Survey) -> None:
        sealed = layout.absolute(self.root, layout.INDEX_FILE)
        tables = f"{found.scratch}/{BASE}" if report.verified is None else sealed
        self._end_replayer()  # the memory of a process is known when it has ended
        report.finish(
            source=found.facts.source,
            scanned={name: found.counts.get(what, 0) for what, name in _SCANNED.items()},
            phases=self.phases,
            seconds=dict(zip(("look", "again"), (look.seconds for look in self._looks))),
            memory=memory.peaks(),
            recorded=recorded_losses(tables),
        )


def _in_use(look: Survey) -> bool:
    """Whether anything changed while it was looked at: the journal grew, or was ahead of the index."""
    return journal_size(look.root) != look.journal_at or look.facts.next_seq > look.facts.last_seq + 1


def roll_forward(directories: Directories) -> Finding | None:
    """What a dead process left half-way is finished as every opening does; returns the append that was cut, if any.

    Whatever keeps that from being done is for the pipeline to find.
    """
    verdict = witnesses.resolve(directories)
    if verdict.problem or verdict.unreadable:
        return None
    with contextlib.closing(Journal(directories, verdict.store)) as log:
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
                suspect = None  # the machine has restarted: what the pipeline will look at is what is on disk
            if suspect is not None:
                recovery.replace_index(directories, log, suspect)
            with contextlib.closing(Index(directories)) as opened:
                if opened.applied_seq() < log.durable_seq:
                    raise IndexUnreadable("an older copy")
                recovery.Recovery(directories, log, opened).catch_up()
                if suspect is not None:
                    recovery.restore_suspect(directories, log, opened, suspect)
        except _NOT_ROLLED_FORWARD as error:
            _log.info("not rolled forward: %s", error)
        return torn


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
        opening.check_version(directories)
        opening.check_directories(directories, create=False)
        with workspace.scratch(directories, elsewhere) as scratch:
            pipeline = Pipeline(root, master, scratch, say, session)
            report = Report(command, root, master, scratch)
            try:
                yield pipeline, report, directories
            except BaseException as error:
                if not spark.is_interrupted(error):
                    raise
                pipeline.give_up()
                raise KeyboardInterrupt from None
            finally:
                report.close()
                pipeline.close()
                say(f"done in {time.monotonic() - began:.1f} s")
