"""IMAP against Debian's Dovecot with a Maildir: the same messages, the same commands, the same client, in one run."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.bench.imap_client import RawClient, lmtp_deliver
from tests.bench.imap_servers import (
    ADA,
    PASSWORD,
    Server,
    dovecot,
    drop_dovecot_index,
    fill_maildir,
    fill_markpost,
    markpost,
)
from tests.bench.store import message

MESSAGES = 10_000


@dataclass
class Row:
    label: str
    unit: str
    more_is_better: bool
    goal: float  # how many times better than Dovecot
    figures: dict[str, float] = field(default_factory=dict)

    def show(self) -> None:
        ours, theirs = self.figures.get("markpost"), self.figures.get("dovecot")
        line = f"  {self.label:<46} {_figure(ours, self.unit):>14} {_figure(theirs, self.unit):>14}"
        if ours and theirs:
            factor = ours / theirs if self.more_is_better else theirs / ours
            line += f" {factor:>8.2f} x  (goal {self.goal:g} x){'' if factor >= self.goal else '  MISSED'}"
        print(line, flush=True)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def letter(number: int) -> bytes:
    """Of about 2 kB, each with words of its own."""
    octets = message(number)
    special = f"Needle {number} in the haystack; batch {number % 97}\r\n".encode()
    return octets + special


class Bench:
    def __init__(self, count: int) -> None:
        self.count = count
        self.rows: dict[str, Row] = {}

    def put(self, server: Server, label: str, value: float, unit: str, *, more: bool, goal: float = 1.0) -> None:
        self.rows.setdefault(label, Row(label, unit, more, goal)).figures[server.name] = value

    # --- reading ---------------------------------------------------------------------------------------------------

    def reading(self, server: Server) -> None:
        client = RawClient(server.imap, ADA, PASSWORD)
        client.run("SELECT INBOX")
        commands = {
            "FETCH FLAGS": "FETCH 1:* (FLAGS)",
            "FETCH ENVELOPE INTERNALDATE RFC822.SIZE": "FETCH 1:* (ENVELOPE INTERNALDATE RFC822.SIZE)",
            "FETCH BODYSTRUCTURE": "FETCH 1:* (BODYSTRUCTURE)",
            "SEARCH UNSEEN": "SEARCH UNSEEN",
            "SEARCH SUBJECT": 'SEARCH SUBJECT "run 4242"',
            "SEARCH BODY": 'SEARCH BODY "Needle 4242 "',
            "SEARCH TEXT": 'SEARCH TEXT "needle 777 "',
        }
        for label, command in commands.items():
            cold = client.timed(command) * 1000
            server.settle()
            warm = statistics.median(client.timed(command) for _ in range(5)) * 1000
            goal = 20.0 if label in ("SEARCH BODY", "SEARCH TEXT") else 1.0
            self.put(server, f"{label}, first", cold, "ms", more=False, goal=goal if goal > 1 else 0.0)
            self.put(server, f"{label}, again", warm, "ms", more=False, goal=goal)
        for label in ("first", "again"):
            before = client.received
            seconds = client.timed("FETCH 1:* (BODY.PEEK[])")
            rate = (client.received - before) / seconds / 1e6
            self.put(
                server, f"BODY.PEEK[] of all, {label}", rate, "MB/s", more=True, goal=0.5 if label == "first" else 1
            )
        client.close()

    def bodies(self, server: Server) -> None:
        client = RawClient(server.imap, ADA, PASSWORD)
        client.run("SELECT INBOX")
        singles = min(2000, self.count)
        for label in ("first", "again"):
            started = time.perf_counter()
            for number in range(1, singles + 1):
                client.run(f"FETCH {number} (BODY.PEEK[])")
            rate = singles / (time.perf_counter() - started)
            self.put(
                server,
                f"BODY.PEEK[] one at a time, {label}",
                rate,
                "/s",
                more=True,
                goal=0.0 if label == "first" else 1,
            )
        started = time.perf_counter()
        for at in range(1, singles + 1, 50):
            numbers = range(at, min(at + 50, singles + 1))
            client.send(b"".join(b"p%d FETCH %d (BODY.PEEK[])\r\n" % (number, number) for number in numbers))
            client.until(b"p%d" % numbers[-1])
        self.put(server, "BODY.PEEK[] 50 pipelined", singles / (time.perf_counter() - started), "/s", more=True)
        client.close()

    def logins(self, server: Server) -> None:
        RawClient(server.imap, ADA, PASSWORD).close()
        started = time.perf_counter()
        rounds = 0
        while time.perf_counter() - started < 3:
            client = RawClient(server.imap, ADA, PASSWORD)
            client.run("SELECT INBOX")
            client.close()
            rounds += 1
        self.put(server, "LOGIN and SELECT", rounds / (time.perf_counter() - started), "/s", more=True, goal=5)

    # --- writing ---------------------------------------------------------------------------------------------------

    def writing(self, server: Server) -> None:
        client = RawClient(server.imap, ADA, PASSWORD)
        client.run("SELECT INBOX")
        times = [client.timed(f"STORE 1:* {sign}FLAGS.SILENT (\\Flagged)") for sign in "+-+-"]
        self.put(server, "STORE of all, .SILENT", statistics.median(times) * 1000, "ms", more=False)
        times = [client.timed(f"STORE 1:* {sign}FLAGS (\\Flagged)") for sign in "+-"]
        self.put(server, "STORE of all", statistics.median(times) * 1000, "ms", more=False)
        some = min(1000, self.count // 4)
        self.put(server, f"COPY {some}", client.timed(f"COPY 1:{some} Trash") * 1000, "ms", more=False)
        self.put(server, f"MOVE {some}", client.timed(f"MOVE 1:{some} Trash") * 1000, "ms", more=False)
        client.run(f"STORE 1:{some} +FLAGS.SILENT (\\Deleted)")
        self.put(server, f"EXPUNGE {some}", client.timed("EXPUNGE") * 1000, "ms", more=False)
        started = time.perf_counter()
        appended = max(20, some // 2)
        for number in range(appended):
            octets = letter(100_000 + number)
            client.run(b"APPEND Trash {%d+}\r\n" % len(octets) + octets)
        rate = appended / (time.perf_counter() - started)
        self.put(server, "APPEND, one session", rate, "/s", more=True, goal=2)
        client.close()

    # --- waiting ---------------------------------------------------------------------------------------------------

    def idle(self, server: Server) -> None:
        client = RawClient(server.imap, ADA, PASSWORD)
        client.run("SELECT INBOX")
        client.idle()
        delays = []
        for number in range(10):
            acknowledged = lmtp_deliver(server.lmtp, ADA, letter(200_000 + number))
            delays.append(max(0.0, client.wait_for(b" EXISTS") - acknowledged) * 1000)
            time.sleep(0.05)
        self.put(server, "IDLE: from 250 to EXISTS", statistics.median(delays), "ms", more=False, goal=10)
        client.close()

    def memory(self, server: Server) -> None:
        time.sleep(1)
        self.put(server, "memory, no connection", server.memory(), "MiB", more=False)
        counts = (200, 1000) if server.name == "markpost" else (200,)
        clients: list[RawClient] = []
        for count in counts:
            while len(clients) < count:
                client = RawClient(server.imap, ADA, PASSWORD)
                client.run("SELECT INBOX")
                client.idle()
                clients.append(client)
            time.sleep(1)
            goal = 1 / 0.6 if count == 200 else 0.0
            self.put(server, f"memory, {count} in IDLE", server.memory(), "MiB", more=False, goal=goal)
        for client in clients:
            client.close()


def run(directory: str, scale: float = 1.0) -> None:
    count = int(MESSAGES * scale)
    print(f"\nIMAP: a folder of {count:,} messages of 2 kB{'':<12}{'markpost':>16} {'Dovecot':>14}")
    messages = [letter(number) for number in range(count)]
    root = fill_markpost(directory, messages)
    home = fill_maildir(directory, messages) if shutil.which("dovecot") and os.geteuid() == 0 else None
    bench = Bench(count)
    steps: list[Callable[[Server], None]] = [
        bench.memory, bench.logins, bench.reading, bench.bodies, bench.idle, bench.writing,
    ]  # fmt: skip
    for step in steps:
        # Each step on a server that was just started: its first figures are cold ones.
        with markpost(root) as ours:
            step(ours)
        if home is not None:
            if step == bench.reading:
                drop_dovecot_index(home)
            with dovecot(home) as theirs:
                step(theirs)
    for row in bench.rows.values():
        row.show()
