"""Dry run: predict the outcome of each finding without changing anything."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from adapter.maintenance.diff.inspection import Inspection
from adapter.maintenance.expected.set_aside import SetAside
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import accounts, decisions, tree
from adapter.maintenance.repair.apply import LOST
from adapter.maintenance.repair.folders import Mender
from adapter.maintenance.repair.index_state import State
from adapter.maintenance.repair.restore import Wanted
from adapter.maintenance.scan.message_rows import Descriptions
from adapter.store.disk import Directories


class DryRun:
    """Predicts which findings repair would leave to a person, and which content is unrecoverable."""

    def __init__(self, inspection: Inspection, chosen: Mapping[str, str]) -> None:
        """``chosen``: decisions of conflicts, as passed to repair."""
        self._inspection = inspection
        self._chosen = chosen
        self._directories = Directories(inspection.root)
        self._descriptions = Descriptions(inspection.scratch)
        self._set_aside = SetAside(inspection.scratch)
        self._mender: Mender | None = None
        self._wanted: Wanted | None = None

    def close(self) -> None:
        if self._mender is not None:
            self._mender.state.close()
        if self._wanted is not None:
            self._wanted.close()
        self._descriptions.close()
        self._set_aside.close()
        self._directories.close()

    def predict(self, finding: Finding) -> Outcome:
        if finding.kind in LOST and self._unrecoverable().has(finding.id):
            return Outcome(finding, "loss", "unrecoverable content")
        if finding.kind == "owner-foreign":
            return tree.foreign_owner(self._directories, finding)
        why = ""
        if decisions.subject(finding) in self._chosen:
            return Outcome(finding, "repaired", f"as decided: {self._chosen[decisions.subject(finding)]}")
        if finding.kind == "credentials-orphan":
            why = accounts.undecidable(self._folder_repair(), finding)
        elif finding.kind == "folder-two-ids":
            why = self._folder_repair().undecidable(finding)
        return Outcome(finding, "conflict", why, decisions.offer(finding)) if why else Outcome.expected(finding)

    def _unrecoverable(self) -> Wanted:
        """The content that neither journal nor staging can restore."""
        if self._wanted is None:
            inspection = self._inspection
            self._wanted = Wanted(self._directories, inspection.scratch, inspection.facts.foreign_segments)
            for finding in inspection.findings(LOST):
                self._wanted.add(finding.id)
            with contextlib.suppress(FileNotFoundError):  # no journal
                self._wanted.restore(foretell=True)
        return self._wanted

    def _folder_repair(self) -> Mender:
        """The expected tables of the inspection; nothing is committed to them."""
        if self._mender is None:
            state = State(self._directories, self._inspection.facts, self._inspection.scratch)
            self._mender = Mender(state, {}, self._descriptions, self._set_aside)
        return self._mender
