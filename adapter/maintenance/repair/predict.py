"""Dry run: predict the outcome of each finding without changing anything."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from adapter.maintenance.diff.inspection import Inspection
from adapter.maintenance.expected.normalise import SetAsideRows
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import accounts, decisions, tree
from adapter.maintenance.repair.apply import LOST
from adapter.maintenance.repair.folders import FolderRepair
from adapter.maintenance.repair.message_rows import MessageDescriptions
from adapter.maintenance.repair.restore import MissingContent
from adapter.maintenance.repair.target import RepairTarget
from adapter.store.disk import Directories


class DryRun:
    """Predicts which findings repair would leave to a person, and which content is unrecoverable."""

    def __init__(self, inspection: Inspection, chosen: Mapping[str, str]) -> None:
        """``chosen``: decisions of conflicts, as passed to repair."""
        self._inspection = inspection
        self._chosen = chosen
        self._directories = Directories(inspection.root)
        self._descriptions = MessageDescriptions(inspection.scratch)
        self._set_aside = SetAsideRows(inspection.scratch)
        self._repair: FolderRepair | None = None
        self._missing_content: MissingContent | None = None

    def close(self) -> None:
        if self._repair is not None:
            self._repair.target.close()
        if self._missing_content is not None:
            self._missing_content.close()
        self._descriptions.close()
        self._set_aside.close()
        self._directories.close()

    def predict(self, finding: Finding) -> Outcome:
        if finding.kind in LOST and self._unrecoverable().contains(finding.id):
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

    def _unrecoverable(self) -> MissingContent:
        """The content that neither journal nor staging can restore."""
        if self._missing_content is None:
            inspection = self._inspection
            foreign = inspection.facts.foreign_segments
            self._missing_content = MissingContent(self._directories, inspection.scratch, foreign)
            for finding in inspection.findings(LOST):
                self._missing_content.add(finding.id)
            with contextlib.suppress(FileNotFoundError):  # no journal
                self._missing_content.restore(dry_run=True)
        return self._missing_content

    def _folder_repair(self) -> FolderRepair:
        """The expected tables of the inspection; nothing is committed to them."""
        if self._repair is None:
            target = RepairTarget(self._directories, self._inspection.facts, self._inspection.scratch)
            self._repair = FolderRepair(target, {}, self._descriptions, self._set_aside)
        return self._repair
