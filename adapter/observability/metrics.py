"""All Prometheus metrics, as plain unlocked counters.

A family is a metric name with labels; a member is a counter, gauge or histogram that callers look up once and keep.
Nothing is locked: a member has one writing thread, or may lose one update in a million. Label values come from our own
tables, never from a peer, so that their number is bounded.

:mod:`adapter.server.metrics_shm` shares the samples of several workers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

Kind = Literal["counter", "gauge", "histogram"]

_BOUNDS_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_BOUNDS_COUNT = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Sample(NamedTuple):
    """The current value of one member of a family; of a histogram: the sum, and the count of each bucket."""

    family: str
    labels: tuple[str, ...]
    value: float
    buckets: tuple[int, ...] = ()


class WorkerSamples(NamedTuple):
    """The samples that one worker has published."""

    worker: int
    published_at: float  # monotonic
    samples: list[Sample]


class Value:
    """A counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount

    def sample(self, family: str, labels: tuple[str, ...]) -> Sample:
        return Sample(family, labels, self.value)


class Histogram:
    """A count of observations by size."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, amount: float) -> None:
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def sample(self, family: str, labels: tuple[str, ...]) -> Sample:
        return Sample(family, labels, self._sum, tuple(self._counts))


Member = TypeVar("Member", Value, Histogram)


class Family(Generic[Member]):
    """A metric with labels; ``labels`` are their names."""

    def __init__(
        self,
        member: type[Member],
        kind: Kind,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: Sequence[float] = (),
    ) -> None:
        self.kind = kind
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self.bounds = tuple(bounds)
        self._member: type[Member] = member
        self._members: dict[tuple[str, ...], Member] = {}
        FAMILIES[name] = self

    def of(self, *values: str) -> Member:
        """Return the member with these label values."""
        member = self._members.get(values)
        if member is None:
            member = self._members[values] = self._member(*(self.bounds,) if self.kind == "histogram" else ())
        return member

    def samples(self) -> Iterator[Sample]:
        for labels, member in list(self._members.items()):
            yield member.sample(self.name, labels)


#: By name, in the order of the output.
FAMILIES: dict[str, Family[Value] | Family[Histogram]] = {}


def _counter(name: str, text: str, *labels: str) -> Family[Value]:
    return Family(Value, "counter", f"markpost_{name}_total", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Family[Value]:
    return Family(Value, "gauge", name, text, labels)


def _histogram(name: str, text: str, *labels: str, bounds: Sequence[float] = _BOUNDS_SECONDS) -> Family[Histogram]:
    return Family(Histogram, "histogram", f"markpost_{name}", text, labels, bounds)


# --- of each worker --------------------------------------------------------------------------------------------------

CONNECTIONS = _counter("connections", "Connections accepted, by listener.", "listener")
REFUSED = _counter("connections_refused", "Connections refused because a limit was reached.")
EVICTED = _counter("connections_evicted", "Unauthenticated connections closed to make room for new ones.")
OPEN = _gauge("markpost_connections", "Connections open now.")
COMMANDS = _counter("commands", "Commands completed; status is the IMAP status or the class of the SMTP reply.",
                    "protocol", "command", "status")  # fmt: skip
COMMAND_SECONDS = _histogram("command_seconds", "Time from a command to its response.", "protocol", "command")
LOGINS = _counter("logins", "Login attempts.", "outcome")
DELIVERIES = _counter("deliveries", "Messages received by SMTP, LMTP or submission.", "service", "outcome")
DELIVERED_OCTETS = _counter("delivered_octets", "Size of the messages that were accepted.", "service")
RELAYED = _counter("relay_attempts", "Delivery attempts to the smarthost, by recipient.", "outcome")
BATCH = _histogram("commit_operations", "Operations in one group commit.", bounds=_BOUNDS_COUNT)
COMMIT_SECONDS = _histogram("commit_seconds", "Duration of a commit, from acquiring the locks to releasing them.")
LOCK_WAIT = _histogram("lock_wait_seconds", "Time spent waiting for the store's locks.")
LOOP_LAG = _gauge("markpost_event_loop_lag_seconds", "Delay of the event loop in the last sample.")
OFFLINE = _gauge("markpost_offline", "1: the store is offline for maintenance, or not open yet.")
DRAINING = _gauge("markpost_draining", "1: no more connections are accepted.")
MEMORY = _gauge("process_resident_memory_bytes", "Resident memory.")
CPU = Family(Value, "counter", "process_cpu_seconds_total", "Processor time, user and system.", ())
FILES = _gauge("process_open_fds", "Open file descriptors.")
START = _gauge("process_start_time_seconds", "Start time of the process, in seconds since the epoch.")

# --- of the store: the same in every worker --------------------------------------------------------------------------

QUEUE = _gauge("markpost_queue_recipients", "Recipients in the outbox: due, or waiting for a retry.", "state")
QUEUE_AGE = _gauge("markpost_queue_oldest_seconds", "Age of the oldest message in the outbox.")
JOURNAL_BYTES = _gauge("markpost_journal_bytes", "Size of the journal.")
JOURNAL_SEGMENTS = _gauge("markpost_journal_segments", "Segments of the journal.")
INDEX_BYTES = _gauge("markpost_index_bytes", "Size of the index.")
APPLIED = _gauge("markpost_applied_sequence", "Sequence number of the last journal record applied to the index.")
CHECKPOINT_LAG = _gauge("markpost_checkpoint_lag_records", "Journal records since the last checkpoint.")
FREE_BYTES = _gauge("markpost_free_bytes", "Free space on the file system of the store.")

STORE_FAMILIES = frozenset(
    family.name
    for family in (
        QUEUE, QUEUE_AGE, JOURNAL_BYTES, JOURNAL_SEGMENTS, INDEX_BYTES, APPLIED, CHECKPOINT_LAG, FREE_BYTES,
    )
)  # fmt: skip


def samples() -> list[Sample]:
    """Return the current samples of this process."""
    return [sample for family in FAMILIES.values() for sample in family.samples()]
