"""Delivery over LMTP, next to Dovecot on the same disk in the same run; every message is counted afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from adapter.store import queries
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from tests.bench import dovecot
from tests.bench.store import row

_CASES = [(2_000, 1), (2_000, 16), (100_000, 1), (100_000, 16)]  # octets, connections
_COUNTS = {(2_000, 1): 600, (2_000, 16): 3000, (100_000, 1): 300, (100_000, 16): 800}
_GOALS = {1: 2.0, 16: 3.0}


def _drive(port: int, connections: int, count: int, size: int, mailboxes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.lmtp_client", "127.0.0.1"]
    numbers = [str(number) for number in (port, connections, count, size, mailboxes)]
    result = subprocess.run([*command, *numbers], stdout=subprocess.PIPE, check=True)
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@contextlib.contextmanager
def _markpost(directory: str, name: str, mailboxes: int) -> Iterator[tuple[int, str, int]]:
    """Yields the port, the root and the process."""
    root = f"{directory}/{name}"
    create_store(root)
    with Transport.open(root) as transport:
        for number in range(mailboxes):
            transport.run(op.Register(f"user{number}@example.test"))
    with open(f"{directory}/{name}.log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "adapter.cli", "serve", "--root", root, "--lmtp", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline().rsplit(b":", 1)[1])
        server.stdout.readline()
        yield port, root, server.pid
    finally:
        server.terminate()
        server.wait(60)


def _cpu(process: int) -> float:
    """Seconds of processor time a process has used, all threads together."""
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stored(root: str) -> int:
    with Transport.open(root) as transport, transport.reading() as connection:
        found = queries.registrations(connection)
        return sum(
            len(queries.rows(connection, queries.folder(connection, registration.id, "INBOX").id))
            for registration in found
        )


def run(directory: str, scale: float) -> None:
    print("LMTP: messages acknowledged per second (one client process, envelope pipelined)")
    compare = dovecot.available()
    if not compare:
        print("  Dovecot is not installed (or this is not root): no comparison")
    for mailboxes in (1, 16):
        for size, connections in _CASES:
            count = max(50, int(_COUNTS[size, connections] * scale))
            name = f"lmtp-{mailboxes}-{size}-{connections}"
            with _markpost(directory, name, mailboxes) as (port, root, process):
                _drive(port, connections, 20, size, mailboxes)
                before = _cpu(process)
                ours = _drive(port, connections, count, size, mailboxes)
                busy = _cpu(process) - before
            lost = count + 20 - _stored(root)
            theirs = None
            if compare:
                place = f"{directory}/dovecot-{name}"
                os.makedirs(place)
                with dovecot.running(place) as (lmtp, _, mail):
                    _drive(lmtp, connections, 20, size, mailboxes)
                    theirs = _drive(lmtp, connections, count, size, mailboxes)
                    lost += count + 20 - dovecot.stored(mail)
            label = f"{size // 1000} kB, {connections} connections, {mailboxes} mailboxes"
            ratio = ours["rate"] / theirs["rate"] if theirs else None
            row(label, f"{ours['rate']:,.0f}/s", f"Dovecot {theirs['rate']:,.0f}/s" if theirs else "")
            if ratio is not None:
                row("", f"{ratio:.2f} x", f">= {_GOALS[connections]} x", met=ratio >= _GOALS[connections])
            row("", f"median {ours['median_ms']:.1f} ms, 99 % {ours['p99_ms']:.1f} ms", f"{lost} messages lost")
            # Near one processor: bound by Python, which runs on one; well below: by the disk.
            share = busy * ours["rate"] / count
            row("", f"{busy / count * 1e6:,.0f} µs/message", f"of processor time: {share:.2f} processors busy")


if __name__ == "__main__":
    from tests.bench import scratch

    with scratch.directory(None) as place:
        run(place, 0.3)
