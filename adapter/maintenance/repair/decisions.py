"""Decisions of conflicts, ``--decide KIND:ID=CHOICE``: checked against what was found before anything is changed.

What was left to a person stays so: a repair that seals the index with a snapshot makes it look as if the journal could
tell, so conflicts that the journal could not decide are kept in ``maintenance/undecided.json`` until they are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import orjson

from adapter.maintenance.findings import Finding
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.transport.ids import folder_label

REGISTER, REMOVE = "register", "remove"


class BadDecision(Exception):  # noqa: N818 - what a person typed
    """A decision that decides nothing; the text says what could be decided."""


def _two_ids(finding: Finding) -> tuple[str, list[str]]:
    choices = [folder_label(finding.folder)]
    if finding.id:  # else the path's id is the one of a folder elsewhere
        choices.append(folder_label(int(finding.id)))
    return choices[0], choices


#: kind -> what a finding is called and what can be chosen
_DECIDABLE: dict[str, Callable[[Finding], tuple[str, list[str]]]] = {
    "credentials-orphan": lambda finding: (finding.subject, [REGISTER, REMOVE]),
    "folder-two-ids": _two_ids,
}


def subject(finding: Finding) -> str:
    """What a finding is called where it is decided; empty if there is nothing to decide about its kind."""
    if finding.kind not in _DECIDABLE:
        return ""
    return f"{finding.kind}:{_DECIDABLE[finding.kind](finding)[0]}"


def offer(finding: Finding) -> str:
    """The options that decide a conflict, for people."""
    name, choices = _DECIDABLE[finding.kind](finding)
    return "  or  ".join(f"--decide {finding.kind}:{name}={choice}" for choice in choices)


def parse(text: str) -> tuple[str, str]:
    """``KIND:ID`` and ``CHOICE``. Raises :class:`BadDecision`."""
    subject, _, choice = text.rpartition("=")
    kind, _, name = subject.partition(":")
    if not (kind and name and choice):
        raise BadDecision(f"{text}: write KIND:ID=CHOICE, as the report shows it")
    if kind not in _DECIDABLE:
        raise BadDecision(f"{text}: nothing to decide there; what can be decided: {', '.join(sorted(_DECIDABLE))}")
    return subject, choice


def check(decisions: Mapping[str, str], findings: Callable[[set[str]], Iterable[Finding]]) -> None:
    """Raise :class:`BadDecision` for one that fits no finding."""
    for subject, choice in decisions.items():
        kind, _, wanted = subject.partition(":")
        for finding in findings({kind}):
            name, choices = _DECIDABLE[kind](finding)
            if name == wanted:
                if choice not in choices:
                    raise BadDecision(f"--decide {subject}={choice}: choose {' or '.join(choices)}")
                break
        else:
            raise BadDecision(f"--decide {subject}={choice}: there is no such finding")


def undecided(directories: Directories) -> set[str]:
    """Conflicts (``KIND:ID``) that an earlier repair left."""
    try:
        with directories.open(layout.MAINTENANCE) as directory:
            return {str(each) for each in orjson.loads(disk.read_file(directory, layout.UNDECIDED_FILE))}
    except (FileNotFoundError, ValueError, TypeError):
        return set()


def remember(directories: Directories, subject: str, *, open_: bool) -> None:
    """Note that a conflict is left, or not any more."""
    known = undecided(directories)
    changed = known | {subject} if open_ else known - {subject}
    if changed != known:
        with directories.open(layout.MAINTENANCE, create=True) as directory:
            disk.replace_file(directory, layout.UNDECIDED_FILE, orjson.dumps(sorted(changed)) + b"\n")
