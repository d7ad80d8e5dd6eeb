"""Assertions on the doctor's findings."""

from __future__ import annotations

from collections.abc import Iterable

from adapter.doctor.findings import Finding, Level


def texts(findings: Iterable[Finding], level: Level) -> str:
    """Return the texts of one level; assert that every finding that is not ok has advice."""
    listed = list(findings)
    assert all(bool(finding.advice) != (finding.level is Level.OK) for finding in listed), listed
    return "\n".join(f"{finding.check}: {finding.seen}" for finding in listed if finding.level is level)


def all_ok(findings: Iterable[Finding]) -> bool:
    listed = list(findings)
    assert listed
    return all(finding.level is Level.OK for finding in listed)
