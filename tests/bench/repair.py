"""``check`` and ``repair`` without an index: messages per second, start-up aside, peak memory, one core against two.

Next to it ``doveadm`` rebuilds its own index from the same messages, which are of the real mix.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import orjson

from adapter.store import layout
from tests.bench.peers import ADA, Dovecot, Markpost
from tests.bench.store import row
from tests.support.mail.real_mail import RealMail

_MAIL = RealMail(1)
_GOAL = 4000  # messages a second, on two cores
_FLAT = 1.3  # times the memory of a store a fifth of the size

Report = dict[str, Any]


def run(directory: str, *, quick: bool) -> None:
    print("check and repair: the real mix; start-up of Spark aside; what was read before may be in memory")
    sizes = [10_000] if quick else [10_000, 100_000, 500_000]
    peaks: dict[int, int] = {}
    for count in sizes:
        peer = Markpost(f"{directory}/repair-{count}")
        os.mkdir(peer.directory)
        root = peer.root
        began = time.monotonic()
        peer.create()
        peer.fill(_MAIL.octets(number) for number in range(count))
        row(f"filling the store with {count:,} messages", f"{count / (time.monotonic() - began):,.0f} messages/s")
        _measure(root, "check", count)
        repaired = _repair(root, count)
        peaks[count] = repaired["memory"]["driver"]
        if count == min(sizes[-1], 100_000):
            _one_core(root, count, repaired)
            if Dovecot.missing() is None:
                _dovecot(f"{directory}/doveadm-{count}", count)
    if not quick:
        ratio = peaks[500_000] / peaks[100_000]
        row("driver's memory, 500,000 / 100,000 messages", f"{ratio:.2f} x", f"<= {_FLAT} x", met=ratio <= _FLAT)


def _repair(root: str, count: int, cores: int = 2) -> Report:
    os.unlink(layout.absolute(root, layout.INDEX_FILE))
    return _measure(root, "repair", count, cores)


def _measure(root: str, command: str, count: int, cores: int = 2) -> Report:
    cores = min(cores, os.cpu_count() or 1)
    arguments = [sys.executable, "-m", "adapter.cli", command, "--root", root, "--json", "--master", f"local[{cores}]"]
    if command == "repair":
        arguments += ["--i-know-what-im-doing", "ALL-SERVICES-ARE-OFFLINE"]
    usable = set(sorted(os.sched_getaffinity(0))[:cores])
    began = time.monotonic()
    done = subprocess.run(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, usable),
    )
    whole = time.monotonic() - began
    report: Report = orjson.loads(done.stdout)
    if command == "repair" and not report["verified"]:
        raise RuntimeError(f"not repaired: {report['left']}")
    work = sum(report["phases"].values())
    rate = count / work
    judged = command == "repair" and cores == 2
    goal, met = (f">= {_GOAL:,}", rate >= _GOAL) if judged else ("", None)
    row(f"{command} of {count:,} messages, {cores} core(s)", f"{rate:,.0f} messages/s", goal, met=met)
    memory = ", ".join(f"{name} {kilobytes / 1024:,.0f} MB" for name, kilobytes in report["memory"].items())
    row("", f"{work:.1f} s of {whole:.1f} s; {memory}")
    row("", ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in report["phases"].items()))
    return report


def _one_core(root: str, count: int, two: Report) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        return
    one = _repair(root, count, cores=1)
    row("", f"{sum(one['phases'].values()) / sum(two['phases'].values()):.2f} x from one core to two")


def _dovecot(directory: str, count: int) -> None:
    os.makedirs(directory)
    peer = Dovecot(directory)
    peer.create()
    peer.fill(_MAIL.octets(number) for number in range(count))
    peer.start()
    for command in ("index", "force-resync"):
        peer.drop_index()
        began = time.monotonic()
        peer.administer(command, "-u", ADA, "INBOX")
        row(f"doveadm {command} of {count:,} messages", f"{count / (time.monotonic() - began):,.0f} messages/s")
    peer.stop()
