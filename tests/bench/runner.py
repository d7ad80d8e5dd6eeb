"""Runs rows on all peers, their samples interleaved, so that a busy minute of the machine hits all of them."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.bench.arena import FULL, Arena, Effort, make_arenas
from tests.bench.cyrus import Cyrus
from tests.bench.measure import Sample, SyncCounter, Watch, build_sync_counter
from tests.bench.peers import Dovecot, Markpost, Peer
from tests.bench.rows import Row
from tests.support.mail.real_mail import RealMail

PEERS = ("markpost-1", "markpost-2", "dovecot-maildir", "dovecot-sdbox", "cyrus")
QUICK_PEERS = ("markpost-1", "dovecot-maildir")


@dataclass(frozen=True)
class Plan:
    rows: Sequence[Row]
    sizes: Sequence[int]
    samples: int
    seed: int
    peers: Sequence[str] = PEERS


@dataclass
class Series:
    """All samples of one row, size and peer."""

    row: str
    unit: str
    size: int
    peer: str
    samples: list[Sample] = field(default_factory=list)


def select_rows(rows: Sequence[Row], patterns: str) -> list[Row]:
    """Rows of which the name contains or matches one of the patterns, separated by commas; case does not matter."""
    choices = [pattern.strip().casefold() for pattern in patterns.split(",") if pattern.strip()]
    return [
        row
        for row in rows
        if any(pattern in row.name.casefold() or fnmatch.fnmatch(row.name.casefold(), pattern) for pattern in choices)
    ]


def missing_peers() -> dict[str, str]:
    """Peers that cannot run here, and why."""
    reasons = {"dovecot": Dovecot.missing(), "cyrus": Cyrus.missing()}
    return {name: reason for name in PEERS if (reason := reasons.get(name.partition("-")[0])) is not None}


def make_peer(name: str, directory: str, library: str | None) -> Peer:
    place = f"{directory}/{name}"
    os.makedirs(place)
    syncs = SyncCounter(library, f"{place}/syncs") if library else None
    kind, _, variant = name.partition("-")
    if kind == "markpost":
        return Markpost(place, syncs, workers=int(variant))
    return Cyrus(place, syncs) if kind == "cyrus" else Dovecot(place, syncs, storage=variant)


@contextlib.contextmanager
def arenas(directory: str, plan: Plan, note: Callable[[str], None], effort: Effort = FULL) -> Iterator[list[Arena]]:
    """Fill the stores of all sizes, and run all servers at the same time; those that wait use no processor."""
    mail = RealMail(plan.seed)
    library = build_sync_counter(directory)
    sizes = [*(sorted(plan.sizes) if any(row.sized for row in plan.rows) else [])]
    if any(not row.sized for row in plan.rows):
        sizes.insert(0, 0)
    ready: list[Arena] = []
    peers: list[Peer] = []
    try:
        for size in sizes:
            began = time.monotonic()
            place = f"{directory}/{size}"
            os.mkdir(place)
            these = [make_peer(name, place, library) for name in plan.peers]
            peers += these
            ready += make_arenas(these, size, mail, effort)
            note(f"stores with {size:,} messages: {time.monotonic() - began:.0f} s to fill")
        for arena in ready:
            Watch(arena.peer).wait_until_idle()
        yield ready
    finally:
        for peer in peers:
            peer.terminate()
        for peer in peers:
            peer.stop()
        for size in sizes:
            shutil.rmtree(f"{directory}/{size}", ignore_errors=True)


def run_rows(ready: Sequence[Arena], plan: Plan, note: Callable[[str], None]) -> Iterator[list[Series]]:
    """Yield the series of each row as soon as it is complete."""
    for row in plan.rows:
        places = [arena for arena in ready if bool(arena.size) == row.sized]
        series = [Series(row.name, row.unit, arena.size, arena.peer.name) for arena in places]
        began = time.monotonic()
        for number in range(plan.samples):
            # Another peer begins each time, so that the after-effects of one do not always hit the same other one.
            turn = number % len(places)
            for at in [*range(turn, len(places)), *range(turn)]:
                watch = Watch(places[at].peer, places[at].effort.sample_seconds)
                row.measure(places[at], watch)
                series[at].samples.append(watch.sample())
        note(f"{row.name}: {time.monotonic() - began:.0f} s")
        yield series
