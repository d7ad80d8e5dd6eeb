"""Scenarios in child processes that are killed, or meet a failing disk, before a chosen step.

A child is forked from this (warm) process and opens the store itself. It reports through a pipe: each step it is about
to take, what was acknowledged, and how it ended. Steps are those that :mod:`adapter.store.disk` announces, and two more
inside each write: before its first octet (the file is empty), and in its middle (the file is torn; not in staging,
where torn and empty are the same).
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from adapter.store import disk
from adapter.transport import operations as op
from adapter.transport import transport as transport_module
from adapter.transport.operations.base import AnyOperation
from adapter.transport.transport import PROGRAM, Transport
from adapter.transport.writer import _Job
from protocol.errors import MailError
from tests.system.crash.lab.scenarios import Scenario

_TIME_LIMIT = 60.0

#: Called with the number of a step, its action and what it acts on, before it happens.
OnStep = Callable[[int, str, int, str], None]


@dataclass
class Report:
    """The messages of a child, up to its end."""

    steps: list[str] = field(default_factory=list)
    acknowledged: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    problems: list[tuple[str, list[str]]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    closing: int = 0  # how many steps came before the store was closed
    killed: bool = False


class Reporter:
    """The child's end of the pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def report(self, **fact: object) -> None:
        data = json.dumps(fact).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]


class Child(NamedTuple):
    pid: int
    reading: int


def run_child(body: Callable[[Reporter], None]) -> Report:
    """Fork, run ``body`` in the child, and return what it reported. A child that hangs is an error."""
    return finish_child(start_child(body), _TIME_LIMIT)


def start_child(body: Callable[[Reporter], None]) -> Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        gc.freeze()  # children skip the objects of all tests in their collections, so the pages stay shared
        try:
            os.close(reading)
            reporter = Reporter(writing)
            try:
                body(reporter)
                status = 0
            except BaseException:
                reporter.report(failure=traceback.format_exc())
        finally:
            os._exit(status)
    os.close(writing)
    return Child(pid, reading)


def finish_child(child: Child, limit: float) -> Report:
    pieces, hung = _collect(child.reading, limit)
    if hung:
        os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    report = Report(killed=os.WIFSIGNALED(status) and not hung)
    lists: dict[str, list[Any]] = {
        "step": report.steps,
        "acknowledged": report.acknowledged,
        "error": report.errors,
        "problem": report.problems,
    }
    for line in b"".join(pieces).splitlines():
        for key, value in json.loads(line).items():
            if key in lists:
                lists[key].append(value)
            elif key == "failure":
                report.failure = value
            elif key == "closing":
                report.closing = len(report.steps)
            else:
                report.notes[key] = value
    if hung:
        report.failure = f"the child hung after {report.steps[-3:]}"
    return report


def _collect(reading: int, limit: float) -> tuple[list[bytes], bool]:
    pieces: list[bytes] = []
    deadline = time.monotonic() + limit
    with open(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = pipe.read(1 << 16)
            if not data:
                return pieces, False
            pieces.append(data)
    return pieces, True


# --- steps -----------------------------------------------------------------------------------------------------------


def describe(action: str, fd: int, name: str) -> str:
    if fd < 0:
        return action
    place = os.readlink(f"/proc/self/fd/{fd}")
    return f"{action} {place}/{name}" if name else f"{action} {place}"


@contextmanager
def stepping(on_step: OnStep) -> Iterator[None]:
    """Call ``on_step`` before every step. Only one at a time; steps of other threads wait."""
    mutex = threading.Lock()
    count = 0

    def announce(action: str, fd: int, name: str) -> None:
        nonlocal count
        with mutex:
            number = count
            count += 1
            on_step(number, action, fd, name)

    whole_write, whole_write_at = disk.write_all, disk.write_at

    def write_in_halves(fd: int, data: bytes | memoryview) -> None:
        announce("write", fd, "")
        half = len(data) // 2
        if half and "/staging/" not in os.readlink(f"/proc/self/fd/{fd}"):
            whole_write(fd, memoryview(data)[:half])
            announce("write-rest", fd, "")
            data = memoryview(data)[half:]
        whole_write(fd, data)

    def write_at_in_halves(fd: int, pieces: Iterable[bytes | memoryview], offset: int, spaces: int = 0) -> None:
        data = b"".join(pieces)
        half = len(data) // 2
        whole_write_at(fd, [data[:half]], offset)
        announce("write-rest", fd, "")
        whole_write_at(fd, [data[half:]], offset + half, spaces)

    disk.on_step, disk.write_all, disk.write_at = announce, write_in_halves, write_at_in_halves
    try:
        yield
    finally:
        disk.on_step, disk.write_all, disk.write_at = None, whole_write, whole_write_at


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- scenarios -------------------------------------------------------------------------------------------------------


@contextmanager
def no_background_checkpoints() -> Iterator[None]:
    """Checkpoints happen when a test says so, and at the end: steps come in the same order every time."""
    seconds = transport_module.CHECKPOINT_SECONDS
    transport_module.CHECKPOINT_SECONDS = 3600.0
    try:
        yield
    finally:
        transport_module.CHECKPOINT_SECONDS = seconds


def spill(transport: Transport) -> None:
    """Let SQLite write pages before the commit: a kill then leaves a rollback journal behind."""
    transport.index.writer.execute("PRAGMA cache_spill=ON")
    transport.index.writer.execute("PRAGMA cache_size=2")


def perform(transport: Transport, scenario: Scenario, done: Callable[[int, Any], None]) -> None:
    """Do what the scenario says; ``done(number, result or error)`` is called when an action is acknowledged."""
    if scenario.grouped:
        operations: list[AnyOperation] = []
        try:
            for action in scenario.actions:
                operation = action(transport)
                assert operation is not None
                operations.append(operation)
        except (MailError, OSError) as error:  # content could not be staged: the others are given up as well
            for staged in (staged for operation in operations for staged in operation.staged_content()):
                transport.discard(staged)
            for number in range(len(scenario.actions)):
                done(number, error)
            return
        jobs = [_Job(operation, PROGRAM) for operation in operations]
        transport._writer._commit(jobs)
        for number, job in enumerate(jobs):
            done(number, job.future.exception(timeout=0) or job.future.result())
        return
    for number, action in enumerate(scenario.actions):
        try:
            operation = action(transport)
            result = transport.run(operation) if operation is not None else None
        except (MailError, OSError) as error:
            done(number, error)
        else:
            done(number, result)


def used_uids(result: object) -> list[tuple[int, int, int]]:
    """(folder, UIDVALIDITY, UID) of everything a result promises."""
    if isinstance(result, op.Delivery):
        placed = [*result.recipients.values(), *([result.sent] if result.sent else [])]
        return [(item.folder, item.uidvalidity, item.uid) for item in placed if isinstance(item, op.Placed)]
    if isinstance(result, op.Copied):
        return [(result.folder, result.uidvalidity, uid) for _, uid in result.uids]
    if isinstance(result, list):
        return [(item.folder, item.uidvalidity, item.uid) for item in result if isinstance(item, op.Placed)]
    return []


def describe_error(error: BaseException) -> dict[str, Any]:
    temporary = error.temporary if isinstance(error, MailError) else None
    return {"type": type(error).__name__, "text": str(error), "temporary": temporary}


def tell_result(reporter: Reporter, number: int, result: object) -> None:
    if isinstance(result, BaseException):
        reporter.report(error={"action": number, **describe_error(result)})
    else:
        reporter.report(acknowledged={"action": number, "uids": used_uids(result)})


def killed_at(root: str, scenario: Scenario, step: int | None, *, spilling: bool = False) -> Report:
    """Run the scenario in a child that dies before ``step`` (None: it survives, and reports its steps)."""

    def body(reporter: Reporter) -> None:
        def on_step(number: int, action: str, fd: int, name: str) -> None:
            if step is None:
                reporter.report(step=describe(action, fd, name))
            elif number == step:
                die()

        with no_background_checkpoints(), Transport.open(root) as transport:
            if spilling:
                spill(transport)
            with stepping(on_step):
                perform(transport, scenario, lambda number, result: tell_result(reporter, number, result))
                reporter.report(closing=True)
                transport.close()
            os._exit(0)

    return run_child(body)


def killed_in_place(root: str, scenario: Scenario, step: int) -> None:
    """Run the scenario in this process, which dies before ``step``, or at the end."""

    def on_step(number: int, action: str, fd: int, name: str) -> None:
        if number == step:
            die()

    try:
        with no_background_checkpoints():
            transport = Transport.open(root)
            with stepping(on_step):
                perform(transport, scenario, lambda number, result: None)
    finally:
        die()


def reopened_and_killed_at(root: str, step: int | None, boot: str | None = None) -> Report:
    """Open and close the store in a child that dies before ``step``."""

    def body(reporter: Reporter) -> None:
        def on_step(number: int, action: str, fd: int, name: str) -> None:
            if step is None:
                reporter.report(step=describe(action, fd, name))
            elif number == step:
                die()

        with no_background_checkpoints(), another_boot(boot), stepping(on_step):
            transport = Transport.open(root)
            reporter.report(opened=True)
            transport.close()
        os._exit(0)

    return run_child(body)


@contextmanager
def another_boot(boot: str | None) -> Iterator[None]:
    """The machine has started again since (None: it has not)."""
    real = disk.boot_id
    if boot is not None:
        disk.boot_id = lambda: boot
    try:
        yield
    finally:
        disk.boot_id = real


def quiet() -> None:
    """Silence the store's log: every child recovers a store."""
    import logging

    logging.getLogger("adapter").setLevel(logging.CRITICAL)
