"""Operations on the outbox: rows are retried later, or removed.

A report to the sender (RFC 3464) is delivered in the same commit: it is never lost and never sent twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from adapter.store import names
from adapter.store.effects import Dequeue, DequeuedRow, Ending, Recipient, Requeue, RequeuedRow
from adapter.store.queries import outbox as outbox_queries
from adapter.store.queries.outbox import QueueRow
from adapter.transport.operations.base import Operation, Plan
from adapter.transport.operations.delivery import Placed, emit_content, place
from adapter.transport.staging import Staged
from protocol.errors import MailError, Reason


class StaleReport(MailError):  # noqa: N818 - what happened, not a mistake
    """Rows that the report is about have left the queue; the process that removed them may have reported as well."""

    def __init__(self) -> None:
        super().__init__(Reason.LOCK_TIMEOUT, "the queue has changed")


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A report, with the null sender, for the inbox of a local address."""

    staged: Staged
    address: str
    about: frozenset[str] = frozenset()  # queue ids

    def deliver(self, plan: Plan, rows: Iterable[QueueRow]) -> Placed:
        """Raises ``NO_SUCH_ADDRESS`` or ``INACTIVE_ADDRESS``, or :class:`StaleReport`."""
        if not self.about <= {row.queue_id for row in rows}:
            raise StaleReport
        folder = plan.folder(self.address, names.INBOX)
        emit_content(plan, self.staged, "", (Recipient(self.address, "to"),))
        return place(plan, self.address, folder, self.staged, 0, "")


@dataclass(frozen=True, slots=True)
class Requeued:
    """Changes of a row; None: unchanged."""

    queue_id: str
    next_attempt_at: int  # seconds
    attempts: int | None = None
    last_status: str | None = None
    delay_warned: bool | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    queue_id: str
    ending: Ending
    status: str = ""  # the last reply


@dataclass(frozen=True, slots=True)
class UpdateQueue(Operation[list[str]]):
    """Set when rows are tried next. Those that are gone are skipped; returns the ids of those that were there."""

    name = "queue-update"
    items: Sequence[Requeued]
    report: QueueReport | None = None  # of a delay

    def addresses(self) -> Iterable[str]:
        return (self.report.address,) if self.report else ()

    def staged_content(self) -> Iterable[Staged]:
        return (self.report.staged,) if self.report else ()

    def plan(self, plan: Plan) -> list[str]:
        by_id = {item.queue_id: item for item in self.items}
        rows = _rows(plan, by_id)
        updates = tuple(
            RequeuedRow(
                row.queue_id,
                row.attempts if (item := by_id[row.queue_id]).attempts is None else item.attempts,
                item.next_attempt_at,
                row.last_status if item.last_status is None else item.last_status,
                bool(row.delay_warned) if item.delay_warned is None else item.delay_warned,
            )
            for row in rows
        )
        if updates:
            if self.report is not None:
                self.report.deliver(plan, rows)
            plan.emit(Requeue(updates))
        return [update.queue_id for update in updates]


@dataclass(frozen=True, slots=True)
class FinishQueue(Operation[list[str]]):
    """Remove rows. Those that are gone are skipped; returns the ids of those that were there."""

    name = "queue-finish"
    items: Sequence[Finished]
    report: QueueReport | None = None  # of failures and successes

    def addresses(self) -> Iterable[str]:
        return (self.report.address,) if self.report else ()

    def staged_content(self) -> Iterable[Staged]:
        return (self.report.staged,) if self.report else ()

    def plan(self, plan: Plan) -> list[str]:
        by_id = {item.queue_id: item for item in self.items}
        rows = _rows(plan, by_id)
        if rows:
            if self.report is not None:
                self.report.deliver(plan, rows)
            endings = [(row, by_id[row.queue_id]) for row in rows]
            plan.emit(
                Dequeue(
                    tuple(
                        DequeuedRow(row.queue_id, row.message_id, row.recipient, end.ending, end.status)
                        for row, end in endings
                    )
                )
            )
        return [row.queue_id for row in rows]


def _rows(plan: Plan, queue_ids: Collection[str]) -> list[QueueRow]:
    return [row for row in outbox_queries.rows_of(plan.connection, queue_ids) if row.queue_id in queue_ids]
