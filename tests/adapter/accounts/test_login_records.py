"""Login records: the secret and the proven peers are kept, shared and bounded, and never fail a login."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapter.accounts import login_records
from adapter.accounts.login_records import LoginRecords

ADA = "ada@example.test"
BOB = "bob@example.test"
HOME = "192.0.2.1"
FALLBACK = b"f" * 32
TODAY = 20_000


@contextmanager
def opened(root: Path | None, day: int = TODAY) -> Iterator[LoginRecords]:
    records = LoginRecords(None if root is None else str(root), FALLBACK, lambda: day)
    try:
        yield records
    finally:
        records.close()


def log_in(records: LoginRecords, user: str, peer: str) -> None:
    if records.remember(user, peer):
        records.flush()


def peers_file(root: Path) -> Path:
    return root / "credentials" / "proven-peers"


def test_secret_is_created_once_and_private(tmp_path: Path) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as other:
        assert one.secret == other.secret != FALLBACK
    with opened(tmp_path) as later:
        assert later.secret == one.secret
    file = tmp_path / "credentials" / "server-secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("damaged")
    with opened(tmp_path) as another:
        assert len(another.secret) == 32
        assert another.secret not in (one.secret, FALLBACK)


def test_secret_that_cannot_be_stored_falls_back_to_the_workers_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "credentials").write_text("not a directory")
    with opened(tmp_path) as records:
        assert records.secret == FALLBACK
        log_in(records, ADA, HOME)
        log_in(records, BOB, HOME)
        assert records.is_proven(ADA, HOME)
    assert "server secret: cannot be stored" in caplog.text
    assert caplog.text.count("proven peers: cannot be") == 1  # not once for each login
    assert FALLBACK.hex() not in caplog.text


def test_proven_peers_survive_a_restart_and_reach_other_workers(tmp_path: Path) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as other:
        assert not one.is_proven(ADA, HOME)
        log_in(one, ADA, HOME)
        assert one.is_proven(ADA, HOME)
        assert not one.is_proven(ADA, "192.0.2.2")
        assert not one.is_proven(BOB, HOME)
        other.refresh()
        assert other.is_proven(ADA, HOME)
    with opened(tmp_path) as later:
        assert later.is_proven(ADA, HOME)
    file = peers_file(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"ada" not in file.read_bytes()
    assert HOME.encode() not in file.read_bytes()


def test_proven_peers_are_written_once_a_week_and_kept_for_three_months(tmp_path: Path) -> None:
    for day, lines in ((0, 1), (6, 1), (7, 2)):
        with opened(tmp_path, TODAY + day) as records:
            log_in(records, ADA, HOME)
        assert len(peers_file(tmp_path).read_text().splitlines()) == lines
    with opened(tmp_path, TODAY + 7 + 90) as records:
        assert records.is_proven(ADA, HOME)
    with opened(tmp_path, TODAY + 7 + 91) as records:
        assert not records.is_proven(ADA, HOME)


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    with opened(tmp_path) as records:
        log_in(records, ADA, HOME)
    with peers_file(tmp_path).open("ab") as file:
        file.write(b"\xff\xfe\n999999999 0123456789abcdef 0123456789abcdef\n20000 01")
    with opened(tmp_path) as records:
        assert records.is_proven(ADA, HOME)
        log_in(records, BOB, HOME)
        log_in(records, BOB, "192.0.2.9")  # the record before it completed a torn line
    with opened(tmp_path) as records:
        assert records.is_proven(BOB, "192.0.2.9")


def test_memory_and_file_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with ever new addresses displaces only records of the same user."""
    monkeypatch.setattr(login_records, "_MAX_FILE_BYTES", 4096)
    monkeypatch.setattr(login_records, "_MAX_PAIRS", 80)
    with opened(tmp_path) as records:
        log_in(records, ADA, HOME)
        for number in range(300):
            log_in(records, BOB, f"198.51.100.{number}")
        assert records.is_proven(ADA, HOME)
        assert records.is_proven(BOB, "198.51.100.299")
        assert not records.is_proven(BOB, "198.51.100.0")
        for number in range(300):
            log_in(records, f"user{number}@example.test", HOME)
        assert sum(map(len, records._days.values())) <= 80
    assert peers_file(tmp_path).stat().st_size <= 4096
    with opened(tmp_path) as records:
        assert records.is_proven("user299@example.test", HOME)


def test_file_that_is_far_too_large_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_records, "_MAX_FILE_BYTES", 4096)
    (tmp_path / "credentials").mkdir(mode=0o700)
    peers_file(tmp_path).write_bytes(b"x" * 100_000)
    with opened(tmp_path) as records:
        log_in(records, ADA, HOME)
    assert len(peers_file(tmp_path).read_text().splitlines()) == 1
    with opened(tmp_path) as records:
        assert records.is_proven(ADA, HOME)


def test_without_a_store_everything_is_in_memory() -> None:
    with opened(None) as records:
        assert records.secret == FALLBACK
        assert not records.remember(ADA, HOME)
        assert records.is_proven(ADA, HOME)
