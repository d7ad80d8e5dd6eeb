"""The fault catalogue: an injector for each kind of finding.

Faults of one layer touch different objects, so any set of them may be applied together; after repair the mail is as if
they had never been, but for what :class:`~tests.system.maintenance.lab.victims.Victims` notes as new or lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.system.maintenance.lab import faults_disk, faults_rows, faults_tree, faults_unreadable
from tests.system.maintenance.lab.faults import ENTERED, Fault
from tests.system.maintenance.lab.victims import Unfit, Victims

CATALOGUE: dict[str, Fault] = {
    name: each
    for module in (faults_tree, faults_disk, faults_unreadable, faults_rows)
    for name, each in ENTERED.items()
    if hasattr(module, name)
}
#: What only the journal can tell: without it such a link is believed.
_BELIEVED_WITHOUT_JOURNAL = {"link_orphan", "link_same_uid"}


def compatible(wanted: Iterable[str]) -> list[str]:
    """Those of the faults that can be told apart in one store: those on disk first, the index as a whole last.

    Of an index that is lost as a whole nobody can say what was wrong with its rows; where the journal is damaged, the
    index is believed.
    """
    chosen = [CATALOGUE[name] for name in CATALOGUE if name in set(wanted)]
    whole = [each.name for each in chosen if each.layer in ("index", "journal")][:1]
    unclear = _BELIEVED_WITHOUT_JOURNAL if any(CATALOGUE[name].layer == "journal" for name in whole) else set()
    rows = [each.name for each in chosen if each.layer == "rows" and not whole]
    return [each.name for each in chosen if each.layer == "disk" and each.name not in unclear] + rows + whole


def damage(victims: Victims, wanted: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Apply what is compatible and fits the store; the findings to expect, and what was applied."""
    expected: Counter[str] = Counter()
    applied = []
    for each in (CATALOGUE[name] for name in compatible(wanted)):
        try:
            found = each.inject(victims)
        except Unfit:
            continue
        assert found.keys() <= each.kinds, each.name
        expected.update(found)
        applied.append(each.name)
    return expected, applied
