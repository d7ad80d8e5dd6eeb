"""The store's figures: delivery, group commit, flags, rebuilding octets, parsing, and growth."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import statistics
import threading
import time

from adapter.content import ingest
from adapter.content.wire import Recipe
from adapter.store.flags import Flag
from adapter.store.queries import mailboxes
from adapter.transport import ids
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from tests.bench import floor
from tests.support.mail.real_mail import RealMail

ADA, BOB = "ada@example.test", "bob@example.test"


_MAIL = RealMail(1)


def message(number: int, size: int | None = 2000) -> bytes:
    """A message with threads of its own, of exactly ``size`` octets; None: of the real mix."""
    return _MAIL.octets(number, size)


def row(label: str, figure: str, goal: str = "", *, met: bool | None = None) -> None:
    verdict = "" if met is None else ("  ok" if met else "  MISSED")
    print(f"  {label:<58} {figure:>22}  {goal}{verdict}", flush=True)


def _new_store(directory: str, name: str) -> Transport:
    root = f"{directory}/{name}"
    create_store(root)
    transport = Transport.open(root)
    for address in (ADA, BOB):
        transport.run(op.Register(address))
    return transport


def _deliver(transport: Transport, octets: bytes) -> None:
    transport.run(op.Deliver(transport.stage(octets), BOB, [ADA]))


def _timed(transport: Transport, number: int, size: int | None = 2000) -> float:
    """Seconds that a delivery took."""
    octets = message(number, size)
    started = time.perf_counter()
    _deliver(transport, octets)
    return time.perf_counter() - started


def run(directory: str, scale: float) -> None:
    print("store: no server; messages of 2 kB to one mailbox; parsing and growth with the real mix")
    count = max(100, int(1000 * scale))
    transport = _new_store(directory, "one")
    limit = floor.messages_per_second(directory, 2000, count)
    for number in range(50):
        _deliver(transport, message(number))
    sequential = count / sum(_timed(transport, 1000 + number) for number in range(count))
    row("disk's floor (create+fsync+folder fsync, SQLite commit)", f"{limit:,.0f} messages/s")
    row("sequential delivery", f"{sequential:,.0f} messages/s", ">= 1.0 x floor", met=sequential >= limit)
    row("", f"{sequential / limit:.2f} x floor")
    _group_commit(transport, int(20_000 * scale), sequential)
    transport.close()
    _flags_and_reads(directory, 10_000)
    _ingest(int(3000 * scale))
    _growth(directory, scale)


def _group_commit(transport: Transport, count: int, sequential: float) -> None:
    """64 submitters, each of which waits for its message before it sends the next."""
    messages = iter([message(100_000 + number) for number in range(count)])
    mutex = threading.Lock()

    def submitter() -> None:
        while True:
            with mutex:
                octets = next(messages, None)
            if octets is None:
                return
            _deliver(transport, octets)

    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        for future in [pool.submit(submitter) for _ in range(64)]:
            future.result()
    rate = count / (time.perf_counter() - started)
    row("64 waiting submitters", f"{rate:,.0f} messages/s", ">= 6 x sequential", met=rate >= 6 * sequential)
    row("", f"{rate / sequential:.1f} x sequential")


def _fill(transport: Transport, count: int, size: int | None = None) -> None:
    """Many messages quickly: batches of appends, many waiting at once."""
    futures = []
    for start in range(0, count, 50):
        numbers = range(start, min(start + 50, count))
        items = [op.AppendItem(transport.stage(message(number, size))) for number in numbers]
        futures.append(transport.submit(op.Append(ADA, "INBOX", items)))
        if len(futures) > 20:
            futures.pop(0).result()
    for future in futures:
        future.result()


def _flags_and_reads(directory: str, count: int) -> None:
    transport = _new_store(directory, "flags")
    _fill(transport, count, 2000)
    with transport.reading() as connection:
        folder = mailboxes.folder(connection, mailboxes.active_registration(connection, ADA).id, "INBOX")
        rows = mailboxes.rows(connection, folder.id)
        recipes = {row[0]: row[1] for row in connection.execute("SELECT message_id, recipe FROM cache_messages")}
    uids = [item.uid for item in rows]
    for label, flags in (("starred", Flag.STARRED), ("read (thread counts follow)", Flag.READ)):
        started = time.perf_counter()
        changed = transport.run(op.ChangeFlags(ADA, folder.id, uids, "add", int(flags)))
        rate = len(changed.changed) / (time.perf_counter() - started)
        row(f"{count:,} messages {label} in one call", f"{rate:,.0f} rows/s", ">= 100,000", met=rate >= 100_000)
    for _ in range(2):  # the second time files are in the page cache
        started = time.perf_counter()
        for item in rows:
            transport.content.octets_with(item.message_id, Recipe.decode(recipes[item.message_id]))
        rate = len(rows) / (time.perf_counter() - started)
    row("rebuilding stored octets", f"{rate:,.0f} messages/s", ">= 20,000", met=rate >= 20_000)
    started = time.perf_counter()
    for item in rows:
        transport.content.octets(item.message_id)
    row("the same, one query for each recipe", f"{len(rows) / (time.perf_counter() - started):,.0f} messages/s")
    transport.close()


def _ingest(count: int) -> None:
    octets = [message(number, None) for number in range(count)]
    names = [ids.message_id(ids.microseconds()) for _ in octets]
    started = time.process_time()
    for name, raw in zip(names, octets):
        ingest.ingest(raw, id=name, arrived="2026-11-16T08:00:00Z")
    row("parse and ingest, CPU", f"{(time.process_time() - started) / count * 1e6:.0f} µs/message")


def _growth(directory: str, scale: float) -> None:
    """Median cost of a delivery with few and with many messages in the store, one after the other on the same disk."""
    few, many = _new_store(directory, "few"), _new_store(directory, "many")
    _fill(few, 1000)
    count = int(100_000 * scale)
    started = time.perf_counter()
    _fill(many, count)
    row(f"filling the store with {count:,} messages", f"{count / (time.perf_counter() - started):,.0f} messages/s")
    for transport in (few, many):
        transport.checkpoint()
    _wait_until_idle()
    small, large = [], []
    for number in range(300):  # half of them reply to the newest stored messages
        small.append(_timed(few, 1000 + number, None))
        large.append(_timed(many, count + number, None))
    ratio = statistics.median(large) / statistics.median(small)
    row(
        f"delivery with {count:,} / with 1,000 messages in the store",
        f"{statistics.median(large) * 1e3:.2f} / {statistics.median(small) * 1e3:.2f} ms",
        "<= 1.3 x",
        met=ratio <= 1.3,
    )
    row("", f"{ratio:.2f} x")
    few.close()
    many.close()


def _wait_until_idle() -> None:
    """Wait for the snapshot that so much mail makes the store take in the background."""
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.1)
