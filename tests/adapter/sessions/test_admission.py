"""Connection budgets, admission and eviction."""

from __future__ import annotations

import resource

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import Limits
from adapter.net.shared_counts import SharedCounts
from adapter.sessions import budgets
from adapter.sessions.admission import Admission, Stage, Ticket
from adapter.sessions.budgets import Budget, connections_per_process, share_out
from tests.support.stores import ADA, BOB


class _Door:
    """Connections by name, and which of them were evicted."""

    def __init__(self, limits: Limits, counts: SharedCounts | None = None, **options: int) -> None:
        self.now = 0.0
        self.evicted: list[str] = []
        self.admission = Admission(limits, counts, clock=lambda: self.now, **options)  # type: ignore[arg-type]

    def open(self, name: str, peer: str, kind: str = "imap") -> Ticket | None:
        self.now += 0.001
        return self.admission.admit(kind, peer, lambda: self.evicted.append(name))

    def enter(self, name: str, peer: str, user: str = ADA, kind: str = "imap") -> Ticket:
        ticket = self.open(name, peer, kind)
        assert ticket
        assert ticket.enter(user)
        return ticket


def _limits(**limits: object) -> Limits:
    return Limits(**{"exempt": (), **limits})  # type: ignore[arg-type]


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_connections_are_divided_among_listeners_in_use() -> None:
    assert share_out(Limits(connections=2000), ("imap", "submission", "smtp", "lmtp")) == {
        "imap": Budget(1000, 500),
        "lmtp": Budget(200, 200),
        "smtp": Budget(400, 400),
        "submission": Budget(400, 200),
    }
    assert share_out(Limits(connections=2000), ["imap"]) == {"imap": Budget(2000, 1000)}


@pytest.mark.setting(
    "limits.connections_imap", "limits.connections_submission", "limits.connections_smtp", "limits.connections_lmtp"
)
def test_explicit_budgets_come_first_and_the_others_share_the_rest() -> None:
    limits = Limits(connections=1000, connections_imap=500, connections_lmtp=200)
    assert share_out(limits, ("imap", "submission", "smtp", "lmtp")) == {
        "imap": Budget(500, 250),
        "lmtp": Budget(200, 200),
        "smtp": Budget(150, 150),
        "submission": Budget(150, 75),
    }
    # Half the descriptors halve each budget.
    assert share_out(limits, ("imap", "smtp", "lmtp"), 500)["imap"] == Budget(250, 125)
    with pytest.raises(ValueError, match="connections_submission, connections_smtp are together more than"):
        share_out(Limits(connections=10, connections_submission=6, connections_smtp=5), ("submission", "smtp"))


def test_process_keeps_descriptors_for_files() -> None:
    assert connections_per_process(65536) == 65536 - 512
    assert connections_per_process(256) == 128
    assert connections_per_process(resource.RLIM_INFINITY) == budgets.UNLIMITED


def test_descriptor_limit_is_raised_and_lower_budget_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    current = [(256, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: current[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: current.append(limits))
    assert budgets.raise_descriptor_limit() == 512
    assert current[-1] == (1024, 1024)
    budgets.log_lowered(Limits(connections=960), 2, 512)
    assert not caplog.messages
    budgets.log_lowered(Limits(connections=2000), 2, 512)
    assert ["960 instead of limits.connections = 2000" in text for text in caplog.messages] == [True]


# --- admission --------------------------------------------------------------------------------------------------------


def test_counts_are_exact() -> None:
    limits = _limits(connections=30, connections_per_ip=2, connections_per_user=1, exempt=("10.0.0.0/8",))
    door = _Door(limits)
    first, second = door.open("1", "192.0.2.1"), door.open("2", "192.0.2.1")
    assert first
    assert second
    assert door.open("3", "192.0.2.1") is None
    assert door.open("4", "10.0.0.1")
    assert door.admission.counts.keys() == 2
    assert first.enter(ADA)
    assert not first.enter(BOB)
    assert not second.enter(ADA)
    for _ in range(2):
        first.release()
    assert second.enter(ADA)
    assert door.admission.total == 2
    second.release()
    assert door.admission.total == 1
    assert door.admission.counts.keys() == 2  # of an address only its login stays recorded
    assert (door.evicted, door.admission.refused) == ([], 1)


def test_oldest_unauthenticated_connection_is_evicted() -> None:
    door = _Door(_limits(connections_imap=8))
    tickets = [door.open(str(n), f"192.0.2.{n}") for n in range(6)]
    assert all(tickets)
    assert door.evicted == ["0", "1"]  # half of the budget
    assert door.admission.total == 4
    assert tickets[0]
    assert not tickets[0].enter(ADA)  # it has been evicted
    tickets[0].release()
    assert door.admission.total == 4


def test_peer_with_the_most_connections_loses_one_first() -> None:
    door = _Door(_limits(connections_imap=12))
    door.open("single", "192.0.2.1")
    for n in range(2):
        door.open(f"a{n}", "2001:db8:1:1::1")
    for n in range(3):
        door.open(f"b{n}", f"2001:db8:1:2::{n:x}")  # another address of the same network
    for n in range(5):
        door.open(f"new{n}", f"198.51.100.{n}")
    assert door.evicted == ["b0", "a0", "b1", "single", "a1"]


def test_peer_with_earlier_login_or_delivery_is_evicted_last() -> None:
    door = _Door(_limits(connections_imap=8, connections_smtp=4))
    door.enter("first", "192.0.2.1").release()
    sender = door.open("sender", "192.0.2.2", "smtp")
    assert sender
    sender.remember_peer()
    sender.release()
    for kind in ("imap", "smtp"):
        for n in range(3):
            door.open(f"known {kind} {n}", f"192.0.2.{1 + n % 2}", kind)
        for n in range(20):
            door.open(f"{kind} {n}", f"198.51.100.{n}", kind)
    assert len(door.evicted) == 38
    assert not [name for name in door.evicted if name.startswith("known")]
    for n in range(4):
        door.open(f"more {n}", "192.0.2.1")
    assert door.evicted[38:] == ["imap 19", "known imap 0", "known imap 2", "more 0"]


def test_logged_in_connection_is_never_evicted() -> None:
    door = _Door(_limits(connections_imap=6))
    door.enter("ada", "192.0.2.1")
    for n in range(20):
        assert door.open(str(n), f"198.51.100.{n}")
    assert "ada" not in door.evicted
    assert len(door.evicted) == 17


def test_logged_in_connections_may_use_the_whole_budget_and_no_more() -> None:
    door = _Door(_limits(connections_imap=6))
    tickets = [door.enter(str(n), f"192.0.2.{n}") for n in range(6)]
    assert door.open("too many", "192.0.2.9") is None
    assert door.evicted == []
    tickets[0].release()
    assert door.open("one more", "192.0.2.9")


def test_full_budget_does_not_affect_other_listeners() -> None:
    door = _Door(_limits(connections=40, connections_per_ip=1000))
    for kind in ("imap", "submission", "smtp"):
        for n in range(100):
            assert door.open(kind, f"192.0.2.{n % 5}", kind)
    assert [bool(door.open("delivery", "127.0.0.1", "lmtp")) for _ in range(5)] == [True] * 4 + [False]
    assert "delivery" not in door.evicted


def test_transaction_is_evicted_after_idle_connections_and_storing_never() -> None:
    door = _Door(_limits(connections_smtp=3))
    sending, _, storing = (door.open(name, "192.0.2.1", "smtp") for name in ("sending", "idle", "storing"))
    assert sending
    assert storing
    sending.set_stage(Stage.TRANSACTION)
    storing.set_stage(Stage.STORING)
    for n in range(2):
        assert door.open(f"new{n}", f"198.51.100.{n}", "smtp")
    assert door.evicted == ["idle", "sending"]
    storing.set_stage(Stage.IDLE)
    assert door.open("new3", "198.51.100.3", "smtp")
    assert door.evicted[2:] == ["new0"]  # a connection that was just served counts as the newest


def test_nothing_is_evicted_while_every_connection_stores_a_message() -> None:
    door = _Door(_limits(connections_smtp=2))
    tickets = [door.open(name, "192.0.2.1", "smtp") for name in ("a", "b")]
    for ticket in tickets:
        assert ticket
        ticket.set_stage(Stage.STORING)
    assert door.open("c", "192.0.2.2", "smtp") is None
    assert door.evicted == []
    assert tickets[0]
    tickets[0].release()
    assert door.open("d", "192.0.2.2", "smtp")


@pytest.mark.setting("limits.busy_login_time")
def test_slow_logins_are_evicted_under_pressure() -> None:
    door = _Door(_limits(connections_imap=16, busy_login_time=Seconds(10.0)))
    for n in range(4):
        door.open(str(n), f"192.0.2.{n}")
    door.now = 30.0
    door.open("4", "192.0.2.4")
    assert door.evicted == []  # half of the unauthenticated part: no pressure
    door.now = 45.0
    door.open("5", "192.0.2.5")
    assert door.evicted == ["0", "1", "2", "3", "4"]


def test_worker_evicts_its_own_connections() -> None:
    counts = SharedCounts(2)
    workers = []
    for column in range(2):
        counts.column = column
        workers.append(_Door(_limits(connections_imap=8), counts))
        for n in range(4):
            workers[-1].open(f"{column}{n}", f"192.0.2.{column}{n}")
    assert [door.evicted for door in workers] == [["00", "01"], ["10", "11"]]
    assert workers[0].admission.by_worker == [2, 2]


def test_exempt_peers_are_bounded_by_descriptors_alone_and_lmtp_has_a_reserve() -> None:
    door = _Door(_limits(connections=10, exempt=("10.0.0.0/8",)), per_process=32)
    door.open("stranger", "192.0.2.1")
    tickets = [door.open("exempt", "10.0.0.1") for _ in range(29)]
    assert all(tickets)
    assert door.open("exempt", "10.0.0.1") is None  # all sockets are in use: the evicted one is still closing
    assert door.evicted == ["stranger"]
    assert [bool(door.open("delivery", "10.0.0.1", "lmtp")) for _ in range(3)] == [True, True, False]
    assert tickets[0]
    tickets[0].release()
    assert door.open("delivery", "10.0.0.1", "lmtp")


def test_full_budget_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    door = _Door(_limits(connections_imap=4))
    for n in range(20):
        door.open(str(n), f"192.0.2.{n}")
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("imap: 2 unauthenticated connections")
    door.now += 61
    door.open("late", "192.0.2.99")
    door.open("later", "192.0.2.98")
    door.open("latest", "192.0.2.97")
    assert len(caplog.messages) == 2
