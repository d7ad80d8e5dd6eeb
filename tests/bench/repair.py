"""``check`` and ``repair`` without an index: messages per second, start-up aside, and peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import orjson

from adapter.store import layout
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from tests.bench.store import ADA, BOB, message, row

_BATCH = 250


def run(directory: str, counts: tuple[int, ...] = (10_000,)) -> None:
    print("check and repair")
    for count in counts:
        root = f"{directory}/repair-{count}"
        _fill(root, count)
        _measure(root, "check", count)
        os.unlink(layout.absolute(root, layout.INDEX_FILE))
        _measure(root, "repair", count)


def _fill(root: str, count: int) -> None:
    create_store(root)
    with Transport.open(root) as transport:
        for address in (ADA, BOB):
            transport.run(op.Register(address))
        for first in range(0, count, _BATCH):
            waiting = [
                transport.submit(op.Deliver(transport.stage(message(number)), BOB, [ADA]))
                for number in range(first, min(first + _BATCH, count))
            ]
            for future in waiting:
                future.result()


def _measure(root: str, command: str, count: int) -> None:
    arguments = [sys.executable, "-m", "adapter.cli", command, "--root", root, "--json"]
    if command == "repair":
        arguments += ["--i-know-what-im-doing", "ALL-SERVICES-ARE-OFFLINE"]
    began = time.monotonic()
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    report = orjson.loads(process.stdout.read())
    process.wait()
    whole = time.monotonic() - began
    work = sum(report["phases"].values())
    rate = count / work
    goal = ">= 4,000" if command == "repair" else ""
    row(f"{command} of {count:,} messages", f"{rate:,.0f} messages/s", goal, met=rate >= 4000 if goal else None)
    memory = {name: f"{kilobytes / 1024:,.0f} MB" for name, kilobytes in report["memory"].items()}
    row("", f"{work:.1f} s of {whole:.1f} s; {memory}")
