"""The fault catalogue: an injector for each kind of finding.

Faults of one layer damage different objects, so any set of them can be applied together. After repair the mail equals
that of the healthy store, except for the new and lost objects recorded by
:class:`~tests.system.maintenance.lab.victims.Victims`.
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
#: Links that repair can only recognise as wrong with a complete journal.
_VALID_WITHOUT_JOURNAL = {"link_orphan", "link_same_uid"}


def compatible(fault_names: Iterable[str]) -> list[str]:
    """The faults that can be distinguished in one store: those on disk first, the whole index last.

    Faults in rows are invisible if the whole index is lost; with a damaged journal, the index wins.
    """
    chosen = [CATALOGUE[name] for name in CATALOGUE if name in set(fault_names)]
    whole = [each.name for each in chosen if each.layer in ("index", "journal")][:1]
    unclear = _VALID_WITHOUT_JOURNAL if any(CATALOGUE[name].layer == "journal" for name in whole) else set()
    rows = [each.name for each in chosen if each.layer == "rows" and not whole]
    return [each.name for each in chosen if each.layer == "disk" and each.name not in unclear] + rows + whole


def damage(victims: Victims, fault_names: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Apply the compatible faults that fit the store; return the expected findings and the applied faults."""
    expected: Counter[str] = Counter()
    applied = []
    for each in (CATALOGUE[name] for name in compatible(fault_names)):
        try:
            findings = each.inject(victims)
        except Unfit:
            continue
        assert findings.keys() <= each.kinds, each.name
        expected.update(findings)
        applied.append(each.name)
    return expected, applied
