"""What a replay says of the store as a whole, besides the tables it fills; kept as JSON in the scratch directory."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from adapter.store.segments import BEGINNING

FACTS = "facts.json"


@dataclass(slots=True)
class Facts:
    """What is known after the replay; ``source`` says whom the tables in ``base.sqlite`` come from."""

    source: str = "journal"  # journal, index, salvage or nothing
    store: str = ""  # id of the store
    index_kind: str = ""  # the finding that the index as a whole is, and what it says
    index_detail: str = ""
    index_trouble: str = ""  # why the index cannot be compared with the tables; empty if it can
    last_seq: int = 0  # of the state in base.sqlite
    last_checksum: str = BEGINNING  # of that record
    next_seq: int = 1  # greater than any number ever seen
    torn: str = ""  # the segment with an unfinished append at its end
    damaged_segments: dict[str, str] = field(default_factory=dict)
    damaged_snapshots: list[str] = field(default_factory=list)
    foreign_segments: dict[str, str] = field(default_factory=dict)  # name -> the store it belongs to
    foreign_snapshots: dict[str, str] = field(default_factory=dict)
    behind: bool = False  # the journal ends before its snapshot: a repair died while it sealed the tables
    wrong_meta: dict[str, str] = field(default_factory=dict)  # key of the index's meta -> what is wrong with it
    gap: str = ""  # why snapshots and journal do not tell everything
    read: dict[str, list[int]] = field(default_factory=dict)  # segment -> inode and octets; empty unless all is well

    unchanged: bool = False  # the tables are those of the earlier look
    unreadable: dict[str, str] = field(default_factory=dict)  # path -> why it cannot be read now, and what to do
    is_blind: bool = False  # what cannot be read would have decided: the tables say nothing

    @property
    def complete(self) -> bool:
        return self.source == "journal"


def read_facts(scratch: str) -> Facts:
    with open(f"{scratch}/{FACTS}", "rb") as file:
        return Facts(**orjson.loads(file.read()))
