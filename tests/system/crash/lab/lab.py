"""Prepared stores, what each scenario should lead to, and the judgement over a store after a crash."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from adapter.store.flags import parse_uids
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.store.checker import Checker
from tests.support.store.tables import connect
from tests.system.crash.lab import letters, view, world
from tests.system.crash.lab.children import Report, another_boot, no_background_checkpoints, perform, used_uids
from tests.system.crash.lab.scenarios import Scenario
from tests.system.crash.lab.view import BaseIds, View

Uid = tuple[int, int, int]  # folder, UIDVALIDITY, UID


@dataclass(frozen=True)
class Prepared:
    """A store to start a scenario from. ``views[n]``: what it looks like after the scenario's first n actions."""

    scenario: Scenario
    root: str
    base_ids: BaseIds
    views: Sequence[View]
    uids: frozenset[Uid]
    uidvalidities: frozenset[int]

    def stage_of(self, seen: View) -> int | None:
        """Return the number of the scenario's actions a store shows; None if it shows part of one."""
        return next((number for number, allowed in enumerate(self.views) if seen == allowed), None)


class Lab:
    def __init__(self, scratch: str) -> None:
        self._scratch = scratch
        self._count = 0
        self.checker = Checker(scratch, world.FOREIGN)
        self._base = f"{scratch}/base"
        with no_background_checkpoints():
            world.make(self._base)
        self.checker.remember(self._base)

    def path(self) -> str:
        self._count += 1
        return f"{self._scratch}/store-{os.getpid()}-{self._count}"

    def prepare(self, scenario: Scenario) -> Prepared:
        root = world.copy(self._base, self.path())
        with no_background_checkpoints():
            if scenario.prepare:
                with Transport.open(root) as transport:
                    perform(transport, Scenario("prepare", scenario.prepare), _must_succeed)
            base_ids = view.base_ids(root)
            views = [view.take(root, base_ids)]
            reference = world.copy(root, self.path())
            with Transport.open(reference) as transport:

                def take_view(number: int, result: Any) -> None:
                    _must_succeed(number, result)
                    views.append(view.take(reference, base_ids))

                perform(transport, Scenario(scenario.name, scenario.actions), take_view)
            problems = self.checker.problems(reference)
            assert not problems, problems
        world.remove(reference)
        uids, uidvalidities = all_uids(root)
        return Prepared(scenario, root, base_ids, views, frozenset(uids), frozenset(uidvalidities))

    def copy_of_the_base(self) -> str:
        return world.copy(self._base, self.path())

    def fresh(self, prepared: Prepared) -> str:
        return world.copy(prepared.root, self.path())

    def judge(
        self,
        root: str,
        prepared: Prepared,
        report: Report,
        *,
        boot: str | None = None,
        quarantine: bool = False,
        exactly: int | None = None,
    ) -> list[str]:
        """Reopen the store and say everything that is not as it was promised.

        ``exactly``: how many of the actions must be there; else all that were acknowledged, and perhaps more.
        """
        if report.failure:
            return [report.failure]
        with no_background_checkpoints(), another_boot(boot):
            try:
                transport = Transport.open(root, lock_timeout=5)
            except Exception as error:
                return [f"the store does not open: {error!r}"]
            with transport:
                problems = self.checker.problems(root, sessions=1, quarantine=quarantine)
                problems += self._wrong_view(root, prepared, report, exactly)
                problems += self._goes_on(transport, root, prepared, report)
        return problems + self.checker.problems(root, quarantine=quarantine, replay=False)

    def _wrong_view(self, root: str, prepared: Prepared, report: Report, exactly: int | None) -> list[str]:
        least = 1 + max((item["action"] for item in report.acknowledged), default=-1)
        allowed = prepared.views[least:] if exactly is None else [prepared.views[exactly]]
        seen = view.take(root, prepared.base_ids)
        if seen in allowed:
            return []
        return [f"not what {least} acknowledged actions promise:\n{view.difference(seen, allowed[0])}"]

    def _goes_on(self, transport: Transport, root: str, prepared: Prepared, report: Report) -> list[str]:
        """One more delivery to everybody works, and no UID or UIDVALIDITY comes back."""
        before, _ = all_uids(root)
        promised = {tuple(uid) for item in report.acknowledged for uid in item["uids"]}
        used = before | prepared.uids | promised
        problems = []
        with transport.reading() as connection:
            active = [item.address for item in mailboxes.registrations(connection) if item.status == "active"]
        try:
            staged = transport.stage(letters.with_files(999, world.SHARED_BLOB, b"afterwards"))
            delivery = transport.run(op.Deliver(staged, "", active))
            octets = transport.content.octets(delivery.message_id)
        except (MailError, OSError) as error:
            return [f"a delivery afterwards fails: {error!r}"]
        failed = [outcome for outcome in delivery.recipients.values() if isinstance(outcome, MailError)]
        if failed:
            problems.append(f"a delivery afterwards fails: {failed}")
        for uid in used_uids(delivery):
            if uid in used or any(uid[:2] == other[:2] and uid[2] <= other[2] for other in used):
                problems.append(f"UID {uid} was used before")
        with transport.reading() as connection:
            fresh = connection.execute("SELECT folder_id, uidvalidity FROM folders").fetchall()
        for folder, uidvalidity in fresh:
            if folder not in prepared.base_ids.folders and uidvalidity in prepared.uidvalidities:
                problems.append(f"UIDVALIDITY {uidvalidity} was used before")
        if octets != letters.with_files(999, world.SHARED_BLOB, b"afterwards"):
            problems.append("a delivery afterwards comes back with other octets")
        return problems


def all_uids(root: str) -> tuple[set[Uid], set[int]]:
    """Every UID the store shows or remembers to have expunged, and every UIDVALIDITY."""
    index = connect(root)
    try:
        folders = dict(index.execute("SELECT folder_id, uidvalidity FROM folders").fetchall())
        uids = {
            (folder, folders[folder], uid)
            for folder, uid in index.execute("SELECT folder_id, uid FROM mailbox_projections")
        }
        for folder, gone in index.execute("SELECT folder_id, uids FROM expunged"):
            for first, last in parse_uids(gone):
                uids |= {(folder, folders[folder], uid) for uid in range(first, last + 1)}
        return uids, set(folders.values())
    finally:
        index.close()


def _must_succeed(number: int, result: Any) -> None:
    assert not isinstance(result, BaseException), f"action {number}: {result!r}"


def report_all(problems: dict[str, list[str]]) -> None:
    """Fail with the first few of many problems."""
    if problems:
        shown = "\n\n".join(
            f"{where}:\n  " + "\n  ".join(list_[:4]) for where, list_ in list(problems.items())[:4] if list_
        )
        pytest.fail(f"{len(problems)} points fail, at first\n{shown}", pytrace=False)


def short(step: str) -> str:
    """A step without the path of the store it happened in."""
    return re.sub(r"/\S*/store-\d+-\d+", "", step)
