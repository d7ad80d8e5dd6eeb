"""What the doctor found, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from adapter.doctor.findings import Finding, Level


def told(findings: Iterable[Finding], level: Level) -> str:
    """All of this level; every finding that is not ok says what to do."""
    found = list(findings)
    assert all(bool(finding.advice) != (finding.level is Level.OK) for finding in found), found
    return "\n".join(f"{finding.check}: {finding.seen}" for finding in found if finding.level is level)


def all_ok(findings: Iterable[Finding]) -> bool:
    found = list(findings)
    assert found
    return all(finding.level is Level.OK for finding in found)
