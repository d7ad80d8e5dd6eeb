"""What becomes of findings before anything is done about them: which ones repair would leave to a person."""

from __future__ import annotations

from adapter.maintenance import decisions, mend_registrations
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.mend_folders import Mender
from adapter.maintenance.message_rows import Descriptions
from adapter.maintenance.state import State
from adapter.maintenance.survey import Survey
from adapter.store.disk import Directories


class Foretelling:
    def __init__(self, look: Survey) -> None:
        self._look = look
        self._directories = Directories(look.root)
        self._descriptions = Descriptions(look.scratch)
        self._mender: Mender | None = None

    def close(self) -> None:
        if self._mender is not None:
            self._mender.state.close()
        self._descriptions.close()
        self._directories.close()

    def outcome(self, finding: Finding) -> Outcome:
        why = ""
        if finding.kind == "credentials-orphan":
            why = mend_registrations.undecidable(self._opened(), finding)
        elif finding.kind == "folder-two-ids":
            why = self._opened().undecidable(finding)
        return Outcome(finding, "conflict", why, decisions.offer(finding)) if why else Outcome.expected(finding)

    def _opened(self) -> Mender:
        """Reads the tables of the look; nothing is committed to them."""
        if self._mender is None:
            state = State(self._directories, self._look.facts, self._look.scratch)
            self._mender = Mender(state, {}, self._descriptions)
        return self._mender
