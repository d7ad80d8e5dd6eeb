"""Benchmark rows: one function each, which prepares, measures with the watch, and restores the folder.

``first`` rows run on a server that was just started, without caches of its own on disk; ``again`` rows run after the
same command, in the same session. A cost is per operation: a message for BODY, APPEND and delivery, else a command.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.arena import TARGET, Arena, count
from tests.bench.imap_client import RawClient, lmtp_deliver
from tests.bench.lmtp_client import Connections
from tests.bench.measure import Watch, memory_mib
from tests.bench.peers import ADA, PASSWORD
from tests.support.mail.real_mail import unique_word

Measure = Callable[[Arena, Watch], None]

MANY = 1000  # messages of COPY, MOVE and pipelined BODY
_FEW = 20  # messages of EXPUNGE among many
_MAX_WHOLE = 10_000  # messages of BODY of the whole folder
_PIPELINE = 50


@dataclass(frozen=True)
class Row:
    name: str
    measure: Measure
    unit: str = "ms"  # or MiB; less is better
    sized: bool = True  # measured at each size of the folder, else in an empty store
    quick: bool = False  # part of a first look


# --- reading -----------------------------------------------------------------------------------------------------


def _command(arena: Arena, kind: str) -> str:
    middle = arena.size // 2
    word = max(arena.mail.subject(middle).split(), key=len)
    return {
        "FETCH flags": "FETCH 1:* (FLAGS)",
        "FETCH envelopes": "FETCH 1:* (ENVELOPE INTERNALDATE RFC822.SIZE)",
        "FETCH bodystructure": "FETCH 1:* (BODYSTRUCTURE)",
        "SEARCH subject": f'SEARCH CHARSET UTF-8 SUBJECT "{word}"' if word.isascii() else "SEARCH SUBJECT engine",
        "SEARCH body": f'SEARCH BODY "{unique_word(middle)}"',
        "SEARCH text": f'SEARCH TEXT "{unique_word(middle + 1)}"',
        "SORT by date": "SORT (DATE) UTF-8 ALL",
        "THREAD references": "THREAD REFERENCES UTF-8 ALL",
    }[kind]


def _run_command(arena: Arena, kind: str, client: RawClient) -> None:
    answer = client.run(_command(arena, kind))
    if kind in ("SEARCH body", "SEARCH text") and b"* SEARCH " not in answer and b"* ESEARCH " not in answer:
        raise RuntimeError(f"{arena.peer.name}: {kind} misses the message: {answer[-200:]!r}")


def _first(kind: str) -> Measure:
    def measure(arena: Arena, watch: Watch) -> None:
        needs_text = kind in ("SEARCH body", "SEARCH text")
        with arena.cold(text=needs_text), arena.session() as client, watch.running():
            _run_command(arena, kind, client)

    return measure


def _again(kind: str) -> Measure:
    def measure(arena: Arena, watch: Watch) -> None:
        with arena.session() as client:
            _run_command(arena, kind, client)
            if kind.startswith("SEARCH"):
                watch.wait_until_idle()
                _run_command(arena, kind, client)
            watch.repeat(lambda: _run_command(arena, kind, client))

    return measure


def _login_first(arena: Arena, watch: Watch) -> None:
    with arena.cold(), watch.running(), arena.session():
        pass


def _login_again(arena: Arena, watch: Watch) -> None:
    with arena.session():
        pass
    with watch.running(arena.effort.logins):
        for _ in range(arena.effort.logins):
            with arena.session():
                pass


def _bodies(arena: Arena, watch: Watch, read: Callable[[RawClient, Watch], None], *, first: bool) -> None:
    with arena.cold() if first else contextlib.nullcontext(), arena.session() as client:
        if not first:
            read(client, Watch(arena.peer))
        read(client, watch)


def _one_by_one(first: bool) -> Measure:
    def measure(arena: Arena, watch: Watch) -> None:
        numbers = range(1, arena.size + 1, max(1, arena.size // arena.effort.singles))

        def read(client: RawClient, clock: Watch) -> None:
            with clock.running(len(numbers)):
                for number in numbers:
                    client.run(f"FETCH {number} (BODY.PEEK[])")

        _bodies(arena, watch, read, first=first)

    return measure


def _pipelined(arena: Arena, watch: Watch) -> None:
    last = min(MANY, arena.size)

    def read(client: RawClient, clock: Watch) -> None:
        with clock.running(last):
            for start in range(1, last + 1, _PIPELINE):
                numbers = range(start, min(start + _PIPELINE, last + 1))
                client.send(b"".join(b"p%d FETCH %d (BODY.PEEK[])\r\n" % (number, number) for number in numbers))
                client.until(b"p%d" % numbers[-1])

    _bodies(arena, watch, read, first=False)


def _whole_folder(first: bool) -> Measure:
    def measure(arena: Arena, watch: Watch) -> None:
        last = min(_MAX_WHOLE, arena.size)

        def read(client: RawClient, clock: Watch) -> None:
            with clock.running(last):
                client.run(f"FETCH 1:{last} (BODY.PEEK[])")

        _bodies(arena, watch, read, first=first)

    return measure


# --- changing ----------------------------------------------------------------------------------------------------


def _store_all(arena: Arena, watch: Watch) -> None:
    with arena.session() as client:
        for sign in "+-":
            with watch.running(writes=True):
                client.run(f"STORE 1:* {sign}FLAGS.SILENT (\\Flagged)")


def _append(arena: Arena, watch: Watch) -> None:
    messages = arena.new_messages(arena.effort.appends)
    with arena.session(None) as client, watch.running(len(messages), writes=True):
        for octets in messages:
            client.run(b"APPEND %b {%d+}\r\n%b" % (TARGET.encode(), len(octets), octets))
    arena.empty_folder()


def _copy(arena: Arena, watch: Watch) -> None:
    with arena.session() as client, watch.running(writes=True):
        client.run(f"COPY 1:{min(MANY, arena.size)} {TARGET}")
    arena.empty_folder()


def _move(arena: Arena, watch: Watch) -> None:
    with arena.session() as client, watch.running(writes=True):
        client.run(f"MOVE 1:{min(MANY, arena.size // 2)} {TARGET}")
    with arena.session(TARGET) as client:
        client.run("MOVE 1:* INBOX")


def _expunge_folder(arena: Arena, watch: Watch) -> None:
    with arena.session() as client:
        client.run(f"COPY 1:* {TARGET}")
        client.run(f"SELECT {TARGET}")
        client.run("STORE 1:* +FLAGS.SILENT (\\Deleted)")
        watch.wait_until_idle()
        with watch.running(writes=True):
            client.run("EXPUNGE")
        _expect(arena, client, TARGET, 0)


def _expunge_few(arena: Arena, watch: Watch) -> None:
    step = max(1, arena.size // _FEW)
    numbers = list(range(1, arena.size + 1, step))[:_FEW]
    with arena.session() as client:
        client.run(f"STORE {','.join(map(str, numbers))} +FLAGS.SILENT (\\Deleted)")
        watch.wait_until_idle()
        with watch.running(writes=True):
            client.run("EXPUNGE")
        _expect(arena, client, "INBOX", arena.size - len(numbers))
        for octets in arena.new_messages(len(numbers)):
            client.run(b"APPEND INBOX {%d+}\r\n%b" % (len(octets), octets))


def _expect(arena: Arena, client: RawClient, folder: str, messages: int) -> None:
    shown = count(client, folder)
    if shown != messages:
        raise RuntimeError(f"{arena.peer.name}: {folder} should have {messages} messages and has {shown}")


# --- delivery ----------------------------------------------------------------------------------------------------

_serial = itertools.count()


def _delivery(octets: int | None, connections: int, mailboxes: int) -> Measure:
    """Into mailboxes that were never used."""

    def measure(arena: Arena, watch: Watch) -> None:
        addresses = [f"user{next(_serial)}@example.test" for _ in range(mailboxes)]
        arena.peer.add_accounts(addresses)
        messages = arena.new_messages(_delivered(arena, connections), octets)
        with Connections(arena.peer.lmtp, connections) as client, watch.running(len(messages), writes=True):
            client.deliver(addresses, messages)
        with arena.session(None, addresses[0]) as reader:
            _expect(arena, reader, "INBOX", len(messages[::mailboxes]))

    return measure


def _delivery_into_full(connections: int) -> Measure:
    """Into the mailbox with all the mail; half of the messages are replies to stored ones."""

    def measure(arena: Arena, watch: Watch) -> None:
        messages = arena.new_messages(_delivered(arena, connections))
        with Connections(arena.peer.lmtp, connections) as client, watch.running(len(messages), writes=True):
            client.deliver([ADA], messages)
        with arena.session(None) as reader:
            _expect(arena, reader, "INBOX", arena.size + len(messages))
        arena.truncate_inbox()

    return measure


def _delivered(arena: Arena, connections: int) -> int:
    return arena.effort.deliveries if connections == 1 else arena.effort.concurrent_deliveries


def _idle(arena: Arena, watch: Watch) -> None:
    """From the 250 of a delivery to the EXISTS of a waiting client."""
    delays = []
    with arena.session() as client:
        client.idle()
        for octets in arena.new_messages(arena.effort.latencies):
            acknowledged = lmtp_deliver(arena.peer.lmtp, ADA, octets)
            delays.append(max(0.0, client.wait_for(b" EXISTS") - acknowledged))
    watch.record(statistics.median(delays))
    arena.truncate_inbox()


# --- resources ---------------------------------------------------------------------------------------------------


def _memory_idle(arena: Arena, watch: Watch) -> None:
    arena.restart()
    watch.wait_until_idle()
    watch.record(memory_mib(arena.peer.pid))


def _memory_connected(arena: Arena, watch: Watch) -> None:
    """200 sessions that read envelopes and a few messages, searched, and wait in IDLE."""
    arena.restart()
    clients = []
    for number in range(arena.effort.connections):
        client = RawClient(arena.peer.imap, ADA, PASSWORD)
        clients.append(client)
        client.run("SELECT INBOX")
        client.run(f"FETCH 1:{min(arena.size, 200)} (FLAGS ENVELOPE)")
        client.run(f"FETCH {number % arena.size + 1} (BODY.PEEK[])")
        client.run("SEARCH SUBJECT engine")
        client.idle()
    watch.wait_until_idle()
    watch.record(memory_mib(arena.peer.pid))
    for client in clients:
        client.close()


_KINDS = (
    "FETCH flags", "FETCH envelopes", "FETCH bodystructure", "SEARCH subject", "SEARCH body", "SEARCH text",
    "SORT by date", "THREAD references",
)  # fmt: skip
_QUICK_KINDS = ("FETCH envelopes", "SEARCH body")


def _plural(number: int, noun: str, ending: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"


def _all_rows() -> list[Row]:
    """Reading comes first: it finds the messages in the order of their arrival."""
    rows = [
        Row("LOGIN and SELECT, first", _login_first),
        Row("LOGIN and SELECT, again", _login_again, quick=True),
    ]
    for kind in _KINDS:
        rows.append(Row(f"{kind}, first", _first(kind), quick=kind in _QUICK_KINDS))
        rows.append(Row(f"{kind}, again", _again(kind), quick=kind in _QUICK_KINDS))
    rows += [
        Row("BODY one by one, first", _one_by_one(True)),
        Row("BODY one by one, again", _one_by_one(False), quick=True),
        Row("BODY 50 pipelined", _pipelined),
        Row("BODY of the whole folder, first", _whole_folder(True)),
        Row("BODY of the whole folder, again", _whole_folder(False), quick=True),
        Row("IDLE: from 250 to EXISTS", _idle, quick=True),
        Row("STORE of all, silent", _store_all, quick=True),
        Row("APPEND one by one", _append, quick=True),
        Row("COPY 1,000", _copy, quick=True),
        Row("MOVE 1,000", _move, quick=True),
        Row("EXPUNGE of a whole folder", _expunge_folder, quick=True),
        Row(f"EXPUNGE of {_FEW} among many", _expunge_few, quick=True),
        Row("delivery into a full mailbox, 1 connection", _delivery_into_full(1), quick=True),
        Row("delivery into a full mailbox, 16 connections", _delivery_into_full(16)),
        Row("memory, no connection", _memory_idle, "MiB"),
        Row("memory, 200 connections after use", _memory_connected, "MiB"),
    ]
    for mailboxes in (1, 16):
        for label, octets in (("2 kB", 2_000), ("100 kB", 100_000), ("real mix", None)):
            for connections in (1, 16):
                rows.append(
                    Row(
                        f"delivery of {label}, {_plural(connections, 'connection')}, "
                        f"{_plural(mailboxes, 'empty mailbox', 'es')}",
                        _delivery(octets, connections, mailboxes),
                        sized=False,
                        quick=label == "real mix" and connections == 16 and mailboxes == 1,
                    )
                )
    return rows


ROWS = _all_rows()
