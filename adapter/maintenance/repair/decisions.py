"""Decisions of conflicts (``--decide KIND:ID=CHOICE``), checked against the findings before anything is changed.

A conflict stays open until a person decides it. After a repair has sealed the tables with a snapshot, the journal would
appear to decide; conflicts that it could not decide are therefore kept in ``maintenance/undecided.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import orjson

from adapter.maintenance.findings import Finding
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.transport.ids import folder_label

REGISTER, REMOVE = "register", "remove"


class BadDecision(Exception):  # noqa: N818 - an input error
    """A decision that fits no finding; the text names the valid choices."""


def _two_ids(finding: Finding) -> tuple[str, list[str]]:
    choices = [folder_label(finding.folder)]
    if finding.id:  # else the id of the path belongs to a folder elsewhere
        choices.append(folder_label(int(finding.id)))
    return choices[0], choices


#: kind -> name of the finding in a decision, and the choices
_DECIDABLE: dict[str, Callable[[Finding], tuple[str, list[str]]]] = {
    "credentials-orphan": lambda finding: (finding.subject, [REGISTER, REMOVE]),
    "folder-two-ids": _two_ids,
}


def subject(finding: Finding) -> str:
    """``KIND:ID`` of a finding in a decision; "" if its kind has no choices."""
    if finding.kind not in _DECIDABLE:
        return ""
    return f"{finding.kind}:{_DECIDABLE[finding.kind](finding)[0]}"


def offer(finding: Finding) -> str:
    """The command-line options that decide a conflict."""
    name, choices = _DECIDABLE[finding.kind](finding)
    return "  or  ".join(f"--decide {finding.kind}:{name}={choice}" for choice in choices)


def parse(text: str) -> tuple[str, str]:
    """Parse a decision into ``KIND:ID`` and ``CHOICE``. Raises :class:`BadDecision`."""
    subject, _, choice = text.rpartition("=")
    kind, _, name = subject.partition(":")
    if not (kind and name and choice):
        raise BadDecision(f"{text}: use KIND:ID=CHOICE as shown in the report")
    if kind not in _DECIDABLE:
        raise BadDecision(f"{text}: findings of this kind need no decision; use one of {', '.join(sorted(_DECIDABLE))}")
    return subject, choice


def check(decisions: Mapping[str, str], findings: Callable[[set[str]], Iterable[Finding]]) -> None:
    """Raise :class:`BadDecision` for a decision that fits no finding."""
    for subject, choice in decisions.items():
        kind, _, subject_name = subject.partition(":")
        for finding in findings({kind}):
            name, choices = _DECIDABLE[kind](finding)
            if name == subject_name:
                if choice not in choices:
                    raise BadDecision(f"--decide {subject}={choice}: choose {' or '.join(choices)}")
                break
        else:
            raise BadDecision(f"--decide {subject}={choice}: no such finding (markpost check lists them)")


def undecided(directories: Directories) -> set[str]:
    """Conflicts (``KIND:ID``) left open by earlier repairs."""
    try:
        with directories.open(layout.MAINTENANCE) as directory:
            return {str(each) for each in orjson.loads(disk.read_file(directory, layout.UNDECIDED_FILE))}
    except (FileNotFoundError, ValueError, TypeError):
        return set()


def remember(directories: Directories, subject: str, *, open_: bool) -> None:
    """Record that a conflict is open, or decided."""
    recorded = undecided(directories)
    changed = recorded | {subject} if open_ else recorded - {subject}
    if changed != recorded:
        with directories.open(layout.MAINTENANCE, create=True) as directory:
            disk.replace_file(directory, layout.UNDECIDED_FILE, orjson.dumps(sorted(changed)) + b"\n")
