"""``make bench``: what Markpost costs next to Dovecot, on the same disk with the same real-looking mail, in one run.

Samples of the peers are interleaved. Each row has median and quartiles of wall time, the processor time of all server
processes, and syncs per operation. The result is written as JSON and as a page with plots.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable

from tests.bench import repair, scratch, store
from tests.bench.machine import machine_facts
from tests.bench.page import page
from tests.bench.report import Result, compare, growth, table
from tests.bench.rows import ROWS
from tests.bench.runner import PEERS, QUICK_PEERS, Plan, arenas, missing_peers, run_rows, select_rows

_SIZES = (1_000, 10_000, 100_000)
_PARTS = ("servers", "store", "repair")


def main() -> int:
    options = _options().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C: servers are stopped, and the disk is unmounted
    old = Result.read(options.compare) if options.compare else None
    if old is not None and options.new is not None:
        print("\n".join(compare(old, Result.read(options.new))))
        return 0
    with scratch.directory(options.dir, loop=not options.plain_disk) as (directory, disk):
        print(f"disk: {disk}")
        parts = options.parts or (_PARTS[:1] if options.quick else _PARTS)
        if "servers" in parts:
            _run_servers(options, directory, disk, old)
        if "store" in parts:
            store.run(directory, scale=0.1 if options.quick else 1.0)
        if "repair" in parts:
            repair.run(directory, quick=options.quick)
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a first look: 1,000 messages, 3 samples, few rows and peers"
    )
    parser.add_argument(
        "--rows", default="*", help="only rows with one of these patterns in their names: 'copy,search*'"
    )
    parser.add_argument("--sizes", type=_numbers, help="messages in the folders (1000,10000,100000)")
    parser.add_argument("--samples", type=int, help="of each row (5)")
    parser.add_argument("--peers", type=_names(PEERS), help=f"some of {','.join(PEERS)}")
    parser.add_argument("--seed", type=int, default=1, help="of the mail; the same seed gives the same mail")
    parser.add_argument("--parts", type=_names(_PARTS), help="some of servers,store,repair (all; quick: servers)")
    parser.add_argument("--dir", help="where to work; the temporary directory by default")
    parser.add_argument("--plain-disk", action="store_true", help="no loop-mounted ext4: the disk as it is")
    parser.add_argument("--out", default="bench-result", help="write OUT.json and OUT.html (bench-result)")
    parser.add_argument("--compare", metavar="OLD.json", help="show what became slower since an older result")
    parser.add_argument("--new", metavar="NEW.json", help="with --compare: compare two results, measure nothing")
    return parser


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.replace("_", "").split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("sizes are positive")
    return numbers


def _names(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = sorted(set(names) - set(choices))
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(choices)}")
        return names

    return parse


def _plan(options: argparse.Namespace, missing: dict[str, str]) -> Plan:
    rows = select_rows([row for row in ROWS if row.quick or not options.quick], options.rows)
    if not rows:
        sys.exit(f"no row matches {options.rows!r}; there are: {'; '.join(row.name for row in ROWS)}")
    sizes = options.sizes or (_SIZES[:1] if options.quick else _SIZES)
    peers = options.peers or (QUICK_PEERS if options.quick else PEERS)
    peers = [peer for peer in peers if peer not in missing]
    return Plan(rows, sizes, options.samples or (3 if options.quick else 5), options.seed, peers)


def _run_servers(options: argparse.Namespace, directory: str, disk: str, old: Result | None) -> None:
    missing = missing_peers()
    plan = _plan(options, missing)
    for name, why in missing.items():
        print(f"skipped: {name} ({why})")
    chosen = {"sizes": list(plan.sizes), "samples": plan.samples, "seed": plan.seed, "peers": list(plan.peers)}
    result = Result(machine_facts(disk), chosen, missing)

    def note(text: str) -> None:
        print(f"[{text}]", file=sys.stderr, flush=True)

    try:
        with arenas(directory, plan, note) as ready:
            for series in run_rows(ready, plan, note):
                result.series += series
                print("\n".join(table(series)), flush=True)
    finally:  # an interruption does not lose the samples so far
        if result.series:
            result.write(f"{options.out}.json")
            with open(f"{options.out}.html", "w", encoding="utf-8") as file:
                file.write(page(result))
            print("\n".join(growth(result)))
            print(f"written: {os.path.abspath(options.out)}.json and .html")
    if old is not None:
        print("\n".join(compare(old, result)))


if __name__ == "__main__":
    sys.exit(main())
