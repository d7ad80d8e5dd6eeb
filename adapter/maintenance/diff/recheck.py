"""Findings confirmed by repeated inspections, stored in SQLite because there may be millions."""

from __future__ import annotations

from collections.abc import Iterable

from adapter.maintenance.expected import tables
from adapter.maintenance.findings import Finding

_KEY = "kind = ? AND subject = ? AND id = ? AND folder = ? AND uid = ?"
_CONFIRM = f"UPDATE confirmed SET rounds = rounds + 1 WHERE {_KEY} AND rounds = ?"  # noqa: S608 - no values
_ROUNDS = f"SELECT rounds FROM confirmed WHERE {_KEY}"  # noqa: S608


class ConfirmedFindings:
    """The findings that all repeated inspections so far agree on."""

    def __init__(self, scratch: str) -> None:
        self._rounds = 0
        self._database = tables.private(tables.create(f"{scratch}/confirmed.sqlite"))
        self._database.execute(
            "CREATE TABLE confirmed (kind TEXT, subject TEXT, id TEXT, folder INTEGER, uid INTEGER, rounds INTEGER,"
            " PRIMARY KEY (kind, subject, id, folder, uid)) WITHOUT ROWID"
        )

    def close(self) -> None:
        self._database.close()

    def add_round(self, findings: Iterable[Finding]) -> None:
        """Record the findings of another inspection."""
        self._database.execute("BEGIN")
        for finding in findings:
            if self._rounds:
                self._database.execute(_CONFIRM, (*_key(finding), self._rounds))
            else:
                self._database.execute("INSERT OR IGNORE INTO confirmed VALUES (?, ?, ?, ?, ?, 1)", _key(finding))
        self._database.execute("COMMIT")
        self._rounds += 1

    @property
    def has_candidates(self) -> bool:
        """True while some findings may still be confirmed by every inspection."""
        return not self._rounds or bool(
            self._database.execute("SELECT 1 FROM confirmed WHERE rounds = ? LIMIT 1", (self._rounds,)).fetchone()
        )

    def is_confirmed(self, finding: Finding) -> bool:
        """True if every repeated inspection has this finding."""
        if not self._rounds:
            return True
        return bool(self._database.execute(_ROUNDS, _key(finding)).fetchone() == (self._rounds,))


def _key(finding: Finding) -> tuple[str, str, str, int, int]:
    """The identity of a finding across inspections; a folder created again under its name is a different one."""
    return finding.kind, finding.subject, finding.id, finding.folder, finding.uid
