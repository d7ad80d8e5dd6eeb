"""Delivery over LMTP, next to Dovecot on the same disk in the same run; every message is counted by IMAP afterwards.

Both may use every processor: Dovecot makes a process for each connection, this server has a worker for each processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from adapter.accounts import Credentials
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from tests.bench import dovecot
from tests.bench.imap_client import count_messages
from tests.bench.store import row
from tests.support.serve import served

_CASES = [(2_000, 1), (2_000, 16), (100_000, 1), (100_000, 16)]  # octets, connections
_COUNTS = {(2_000, 1): 600, (2_000, 16): 3000, (100_000, 1): 300, (100_000, 16): 800}
_GOALS = {1: 2.0, 16: 3.0}
_WARM_UP = 20  # messages
_WORKERS = os.cpu_count() or 1


class _Load(NamedTuple):
    """In the order in which the client wants it."""

    connections: int
    messages: int
    size: int
    mailboxes: int


def _drive(port: int, load: _Load) -> dict[str, Any]:
    """Raises unless every message is acknowledged."""
    command = [sys.executable, "-m", "tests.bench.lmtp_client", "127.0.0.1"]
    numbers = [str(number) for number in (port, *load)]
    result = subprocess.run([*command, *numbers], stdout=subprocess.PIPE, check=True)
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def _address(mailbox: int) -> str:
    return f"user{mailbox}@example.test"


def _make_store(root: str, mailboxes: int) -> None:
    create_store(root)
    with Transport.open(root) as transport, Credentials.open(transport) as credentials:
        for number in range(mailboxes):
            transport.run(op.Register(_address(number)))
            credentials.set_password(_address(number), dovecot.PASSWORD)


def _measure_markpost(root: str, load: _Load) -> tuple[dict[str, Any], float]:
    """What the client saw, and the processor time the server used."""
    log = Path(f"{root}.log")
    _make_store(root, load.mailboxes)
    with served(root, "--lmtp", "127.0.0.1:0", "--workers", str(_WORKERS), log=log) as server:
        port = server.ports["lmtp"]
        _drive(port, load._replace(messages=_WARM_UP))
        before = _cpu(server.process.pid)
        figures = _drive(port, load)
        busy = _cpu(server.process.pid) - before
        server.stop()
    # By another process: what is counted is what was stored.
    with served(root, "--imap", "127.0.0.1:0", log=log) as server:
        _count(root, server.ports["imap"], load)
        server.stop()
    return figures, busy


def _measure_dovecot(place: str, load: _Load) -> dict[str, Any]:
    os.makedirs(place)
    with dovecot.running(place) as (lmtp, imap, _):
        _drive(lmtp, load._replace(messages=_WARM_UP))
        figures = _drive(lmtp, load)
        _count(place, imap, load)
    return figures


def _count(name: str, imap: int, load: _Load) -> None:
    """IMAP must show as many messages as were acknowledged."""
    acknowledged = load.messages + _WARM_UP
    found = sum(count_messages(imap, _address(number), dovecot.PASSWORD) for number in range(load.mailboxes))
    if found != acknowledged:
        raise RuntimeError(f"{name}: {acknowledged} messages were acknowledged, IMAP shows {found}")


def _cpu(process: int) -> float:
    """Seconds of processor time a process and its workers have used, all threads together."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    workers = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu(int(worker)) for worker in workers)


def run(directory: str, scale: float) -> None:
    print("LMTP: messages acknowledged per second (one client process, envelope pipelined), all seen by IMAP")
    print(f"  {_WORKERS} workers, one for each processor")
    compare = dovecot.available()
    if not compare:
        print("  Dovecot is not installed (or this is not root): no comparison")
    for mailboxes in (1, 16):
        for size, connections in _CASES:
            count = max(50, int(_COUNTS[size, connections] * scale))
            load = _Load(connections, count, size, mailboxes)
            name = f"lmtp-{mailboxes}-{size}-{connections}"
            ours, busy = _measure_markpost(f"{directory}/{name}", load)
            theirs = _measure_dovecot(f"{directory}/dovecot-{name}", load) if compare else None
            label = f"{size // 1000} kB, {connections} connections, {mailboxes} mailboxes"
            ratio = ours["rate"] / theirs["rate"] if theirs else None
            row(label, f"{ours['rate']:,.0f}/s", f"Dovecot {theirs['rate']:,.0f}/s" if theirs else "")
            if ratio is not None:
                row("", f"{ratio:.2f} x", f">= {_GOALS[connections]} x", met=ratio >= _GOALS[connections])
            row("", f"median {ours['median_ms']:.1f} ms, 99 % {ours['p99_ms']:.1f} ms")
            # Near all of them: bound by Python; well below: by the disk, or by those who wait for the locks.
            share = busy * ours["rate"] / count
            used = f"{share:.2f} processors busy, the client {ours['client_cpu']:.2f}"
            row("", f"{busy / count * 1e6:,.0f} µs/message", f"of processor time: {used}")


if __name__ == "__main__":
    from tests.bench import scratch

    with scratch.directory(None) as place:
        run(place, 0.3)
