"""The harness notices: with a promise broken on purpose, the crash tests fail."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import pytest

from adapter.store import disk
from adapter.store import journal as journal_module
from adapter.store.effects import Unproject
from adapter.store.journal import Journal, Record
from adapter.store.queries import projections
from adapter.transport import apply as effects
from adapter.transport import operations as op
from adapter.transport import transport as transport_module
from adapter.transport import writer
from adapter.transport.apply import content
from adapter.transport.apply.content import Belief
from adapter.transport.apply.undo import Undo
from adapter.transport.recovery import checkpoint, reconcile, roll_forward
from adapter.transport.staging import Staged, StagingArea
from adapter.transport.writer import Writer, _Job
from tests.system.crash.lab import world
from tests.system.crash.lab.children import killed_at
from tests.system.crash.lab.faults import once, outcome, steps_of
from tests.system.crash.lab.lab import Lab, Prepared
from tests.system.crash.lab.outage import failed_sync, judge_all, watched
from tests.system.crash.lab.scenarios import BY_NAME, SCENARIOS

Broken = Callable[[pytest.MonkeyPatch], None]
Tried = Callable[[Lab, Prepared], Iterable[object]]


def _kill(lab: Lab, prepared: Prepared) -> Iterable[object]:
    for step in range(len(steps_of(lab, prepared))):
        root = lab.fresh(prepared)
        yield lab.judge(root, prepared, killed_at(root, prepared.scenario, step))
        world.remove(root)


def _errors(lab: Lab, prepared: Prepared) -> Iterable[object]:
    for step in range(len(steps_of(lab, prepared))):
        yield outcome(lab, prepared, once(step))


def _power(lab: Lab, prepared: Prepared) -> Iterable[object]:
    for attempt in range(5):
        yield judge_all(lab, prepared, watched(lab, prepared, f"broken {attempt}", 1.0))


def _failed_sync(lab: Lab, prepared: Prepared) -> Iterable[object]:
    yield judge_all(lab, prepared, failed_sync(lab, prepared, "broken", 0.0))


# --- broken promises -------------------------------------------------------------------------------------------------


def _unsynced(function: str, where: str) -> Broken:
    """Files or directories in a certain place are not synced, though the code believes so."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        real = getattr(disk, function)

        def sync(fd: int) -> None:
            if where not in f"{os.readlink(f'/proc/self/fd/{fd}')}/":
                real(fd)

        patch.setattr(disk, function, sync)

    return breaks


def _segments_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_module, "SEGMENT_BYTES", 1)
    _unsynced("sync_directory", "/journal/")(patch)


def _large_content_leaves_staging_at_once(patch: pytest.MonkeyPatch) -> None:
    real = StagingArea.release

    def release(area: StagingArea, staged: Staged, *, committed: bool) -> None:
        real(area, staged, committed=committed)
        for name in area.retiring():
            area.remove(name)

    patch.setattr(StagingArea, "release", release)


def _index_is_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roll_forward, "find_suspect", lambda directories, journal: None)


def _content_is_trusted(patch: pytest.MonkeyPatch) -> None:
    real = content.restore
    patch.setattr(content, "restore", lambda effect, place, _, **more: real(effect, place, Belief.NAMES, **more))


def _failed_syncs_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "distrust", lambda directories: None)


def _what_is_shown_is_believed(patch: pytest.MonkeyPatch) -> None:
    real = roll_forward.restore_files
    patch.setattr(
        roll_forward,
        "restore_files",
        lambda directories, connection, records, _, **more: real(
            directories, connection, records, Belief.CONTENT, **more
        ),
    )


def _files_come_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    append, apply = Journal.append, effects.apply_files

    def early(journal: Journal, records: list[Record]) -> None:
        apply(records, journal._directories, Undo())
        append(journal, records)

    patch.setattr(Journal, "append", early)
    patch.setattr(effects, "apply_files", lambda *_: None)


def _answers_come_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    real = Writer._attempt

    def attempt(writer: Writer, jobs: list[_Job]) -> bool:
        try:
            with writer._index.transaction() as connection:
                for job in jobs:
                    writer._plan(job, connection)
                raise InterruptedError
        except InterruptedError:
            pass
        for job in jobs:
            early, job.future = job.future, Future()
            early.set_result(job.result)
        time.sleep(0.02)  # time for the caller to report
        return real(writer, jobs)

    patch.setattr(Writer, "_attempt", attempt)


def _directories_are_not_reconciled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "reconcile", lambda *_, **__: None)


def _index_is_not_rolled_forward(patch: pytest.MonkeyPatch) -> None:
    real = roll_forward.restore_files
    patch.setattr(roll_forward, "restore_files", lambda *all_, **more: real(*all_, **{**more, "apply": False}))


def _torn_records_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "truncate", lambda fd, size: None)


def _dead_sessions_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transport_module, "remove_dead_sessions", lambda directories: [])


def _nothing_is_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Undo, "run", lambda self: True)
    patch.setattr(roll_forward, "taken_back", lambda records: [])


def _aborts_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writer, "_take_back", lambda writer, records, undo: undo.run())


def _errors_are_permanent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writer, "as_mail_error", lambda error: error)


def _uids_are_given_again(patch: pytest.MonkeyPatch) -> None:
    real = projections.unproject

    def unproject(connection: sqlite3.Connection, effect: Unproject, now: int) -> None:
        real(connection, effect, now)
        connection.execute("UPDATE folders SET uidnext = uidnext - 1 WHERE folder_id = ?", (effect.folder,))

    patch.setattr(projections, "unproject", unproject)


_BROKEN: dict[str, tuple[Broken, str, Tried]] = {
    "journal not synced": (_unsynced("sync_data", ".jsonl/"), "append", _power),
    "new journal segment not synced": (_segments_are_not_synced, "append", _power),
    "checkpoint not synced": (_unsynced("sync_file_system", "/"), "deliver large file", _power),
    "large content not synced": (_unsynced("sync_data", "/staging/"), "deliver large file", _power),
    "names in staging not synced": (_unsynced("sync_directory", "/staging/"), "deliver large file", _power),
    "large content leaves staging at once": (_large_content_leaves_staging_at_once, "deliver large file", _power),
    "index trusted after a power loss": (_index_is_trusted, "move", _power),
    "content trusted after a power loss": (_content_is_trusted, "deliver small files", _power),
    "failed syncs forgotten": (_failed_syncs_are_forgotten, "deliver small files", _failed_sync),
    "what is shown after a failed sync believed": (_what_is_shown_is_believed, "deliver small files", _failed_sync),
    "files before the journal": (_files_come_before_the_journal, "append", _kill),
    "answer before the commit": (_answers_come_before_the_commit, "append", _kill),
    "directories not reconciled": (_directories_are_not_reconciled, "move", _kill),
    "index not rolled forward": (_index_is_not_rolled_forward, "copy", _kill),
    "torn records kept": (_torn_records_stay, "subscribe", _kill),
    "dead sessions kept": (_dead_sessions_stay, "append", _kill),
    "nothing undone": (_nothing_is_undone, "copy", _errors),
    "abort not recorded": (_aborts_are_not_recorded, "copy", _errors),
    "errors not temporary": (_errors_are_permanent, "subscribe", _errors),
    "UIDs given again": (_uids_are_given_again, "expunge", _kill),
}


def test_every_operation_is_tried(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: set[type[op.Operation[object]]] = set()
    plan = Writer._plan

    def noting(writer: Writer, job: _Job, connection: sqlite3.Connection) -> Record | None:
        record = plan(writer, job, connection)
        if record is not None:
            tried.add(type(job.operation))
        return record

    monkeypatch.setattr(Writer, "_plan", noting)
    for scenario in SCENARIOS:
        world.remove(lab.prepare(scenario).root)
    operations = {getattr(op, name) for name in op.__all__}
    assert tried == {kind for kind in operations if issubclass(kind, op.Operation) and kind is not op.Operation}


@pytest.mark.parametrize("promise", _BROKEN)
def test_a_broken_promise_is_noticed(lab: Lab, promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, scenario, tried = _BROKEN[promise]
    prepared = lab.prepare(BY_NAME[scenario])
    breaks(monkeypatch)
    try:
        assert any(tried(lab, prepared))
    finally:
        monkeypatch.undo()
        world.remove(prepared.root)
