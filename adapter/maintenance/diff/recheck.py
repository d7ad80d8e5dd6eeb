"""What looks after the first found as well, kept in a file: all of a store may be wrong."""

from __future__ import annotations

from collections.abc import Iterable

from adapter.maintenance.expected import tables
from adapter.maintenance.findings import Finding

_SAME = "kind = ? AND subject = ? AND id = ? AND folder = ? AND uid = ?"
_AGAIN = f"UPDATE seen SET looks = looks + 1 WHERE {_SAME} AND looks = ?"  # noqa: S608 - no values
_LOOKS = f"SELECT looks FROM seen WHERE {_SAME}"  # noqa: S608


class Seen:
    def __init__(self, scratch: str) -> None:
        self._looks = 0
        self._list = tables.private(tables.create(f"{scratch}/seen.sqlite"))
        self._list.execute(
            "CREATE TABLE seen (kind TEXT, subject TEXT, id TEXT, folder INTEGER, uid INTEGER, looks INTEGER,"
            " PRIMARY KEY (kind, subject, id, folder, uid)) WITHOUT ROWID"
        )

    def close(self) -> None:
        self._list.close()

    def look(self, findings: Iterable[Finding]) -> None:
        """Another look found these."""
        self._list.execute("BEGIN")
        for finding in findings:
            if self._looks:
                self._list.execute(_AGAIN, (*_same(finding), self._looks))
            else:
                self._list.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?, ?, 1)", _same(finding))
        self._list.execute("COMMIT")
        self._looks += 1

    @property
    def left(self) -> bool:
        """Whether anything may still have been found each time."""
        return not self._looks or bool(
            self._list.execute("SELECT 1 FROM seen WHERE looks = ? LIMIT 1", (self._looks,)).fetchone()
        )

    def each_time(self, finding: Finding) -> bool:
        if not self._looks:
            return True
        return bool(self._list.execute(_LOOKS, _same(finding)).fetchone() == (self._looks,))


def _same(finding: Finding) -> tuple[str, str, str, int, int]:
    """What makes it the same finding in another look; a folder made again under its name is another."""
    return finding.kind, finding.subject, finding.id, finding.folder, finding.uid
