"""What becomes of findings before anything is done about them: what is left to a person, and what is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from adapter.maintenance.diff.survey import Survey
from adapter.maintenance.expected.set_aside import SetAside
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import accounts, decisions, tree
from adapter.maintenance.repair.apply import LOST
from adapter.maintenance.repair.folders import Mender
from adapter.maintenance.repair.index_state import State
from adapter.maintenance.repair.restore import Wanted
from adapter.maintenance.scan.message_rows import Descriptions
from adapter.store.disk import Directories


class Foretelling:
    def __init__(self, look: Survey, decided: Mapping[str, str]) -> None:
        """``decided``: what a person has decided, as repair would be told."""
        self._look = look
        self._decided = decided
        self._directories = Directories(look.root)
        self._descriptions = Descriptions(look.scratch)
        self._set_aside = SetAside(look.scratch)
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

    def outcome(self, finding: Finding) -> Outcome:
        if finding.kind in LOST and self._nowhere().has(finding.id):
            return Outcome(finding, "loss", "nothing holds its content any more")
        if finding.kind == "owner-foreign":
            return tree.foreign_owner(self._directories, finding)
        why = ""
        if decisions.subject(finding) in self._decided:
            return Outcome(finding, "repaired", f"as decided: {self._decided[decisions.subject(finding)]}")
        if finding.kind == "credentials-orphan":
            why = accounts.undecidable(self._opened(), finding)
        elif finding.kind == "folder-two-ids":
            why = self._opened().undecidable(finding)
        return Outcome(finding, "conflict", why, decisions.offer(finding)) if why else Outcome.expected(finding)

    def _nowhere(self) -> Wanted:
        """What neither journal nor staging can restore."""
        if self._wanted is None:
            self._wanted = Wanted(self._directories, self._look.scratch, self._look.facts.foreign_segments)
            for finding in self._look.findings(LOST):
                self._wanted.add(finding.id)
            with contextlib.suppress(FileNotFoundError):  # there is no journal
                self._wanted.restore(foretell=True)
        return self._wanted

    def _opened(self) -> Mender:
        """Reads the tables of the look; nothing is committed to them."""
        if self._mender is None:
            state = State(self._directories, self._look.facts, self._look.scratch)
            self._mender = Mender(state, {}, self._descriptions, self._set_aside)
        return self._mender
