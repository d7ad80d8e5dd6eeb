"""Collect the states a disk may hold while a store runs, to check each as if the power had failed then."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from dataclasses import dataclass

from adapter.transport.transport import Transport
from tests.system.crash.lab import world
from tests.system.crash.lab.children import Report, no_background_checkpoints, perform, stepping, used_uids
from tests.system.crash.lab.durability import Shadow, Tree, write_out
from tests.system.crash.lab.lab import Lab, Prepared
from tests.system.crash.lab.spread import spread


@dataclass(frozen=True)
class State:
    when: str
    tree: Tree
    report: Report  # the acknowledgements up to then


class Outage:
    """Follows a store from step to step. A strict state is taken whenever it may differ from the one before."""

    def __init__(self, shadow: Shadow, seed: str, *, scrambled: float = 1.0) -> None:
        self.shadow = shadow
        self.states: list[State] = []
        self.looking = True
        self._chance = random.Random(seed)
        self._scrambled = scrambled  # at how many of the steps a scrambled state is taken as well
        self._acknowledged: list[dict[str, object]] = []
        self._last = (-1, -1)

    def on_step(self, number: int, action: str, fd: int, name: str) -> None:
        self.shadow.before_step(fd, action, name)
        if self.looking:
            self.take(f"before step {number}, {action} {name}", self._scrambled)
        self.shadow.after_announcement(fd, action)

    def acknowledge(self, number: int, result: object) -> None:
        if not isinstance(result, BaseException):
            self._acknowledged.append({"action": number, "uids": used_uids(result)})

    def take(self, when: str, scrambled: float = 1.0) -> None:
        report = Report(acknowledged=list(self._acknowledged))
        mark = (self.shadow.version, len(self._acknowledged))
        if mark != self._last:
            self._last = mark
            self.states.append(State(f"{when}, strict", self.shadow.strict(), report))
        if self._chance.random() < scrambled:
            self.states.append(State(f"{when}, scrambled", self.shadow.scrambled(self._chance), report))


def watched(lab: Lab, prepared: Prepared, seed: str, scrambled: float) -> list[State]:
    """Run a scenario and return what the disk may hold before each step, and at the end."""
    root = lab.fresh(prepared)
    outage = Outage(Shadow(root), f"{seed} {prepared.scenario.name}", scrambled=scrambled)
    outage.looking = False  # a store that was closed properly opens without recovery
    with no_background_checkpoints(), stepping(outage.on_step), Transport.open(root) as transport:
        outage.looking = True
        perform(transport, prepared.scenario, outage.acknowledge)
        outage.take("at the end")
        outage.looking = prepared.scenario.closing
    outage.take("closed")
    world.remove(root)
    return outage.states


def failed_sync(lab: Lab, prepared: Prepared, seed: str, scrambled: float) -> list[State]:
    """Run a scenario and a checkpoint that fails; what the disk may hold then, and until the store is open again."""
    root = lab.fresh(prepared)
    outage = Outage(Shadow(root), f"{seed} {prepared.scenario.name}", scrambled=scrambled)
    outage.looking = False

    def fail(number: int, action: str, fd: int, name: str) -> None:
        if action == "syncfs":
            outage.shadow.before_step(fd, action, name)
            outage.shadow.sync_failed()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        outage.on_step(number, action, fd, name)

    with no_background_checkpoints():
        with stepping(outage.on_step):
            transport = Transport.open(root)
            perform(transport, prepared.scenario, outage.acknowledge)
        with stepping(fail), contextlib.suppress(OSError):
            transport.checkpoint()
        with stepping(outage.on_step):
            with contextlib.suppress(OSError):
                transport.checkpoint()
            outage.take("after one more checkpoint")
            transport.close()
            outage.take("closed")
            outage.looking = True
            Transport.open(root).close()
            outage.take("opened and closed")
    world.remove(root)
    return outage.states


def judge_all(
    lab: Lab, prepared: Prepared, states: list[State], *, boot: str = "the next", exactly: int | None = None
) -> dict[str, list[str]]:
    def check(state: State) -> list[str]:
        root = write_out(state.tree, lab.path())
        problems = lab.judge(root, prepared, state.report, boot=boot, quarantine=True, exactly=exactly)
        world.remove(root)
        return problems

    return spread(states, check, lambda state: state.when)
