"""Each check of the doctor, passing and failing."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapter.config.schema import (
    HookSettings,
    Limits,
    Listen,
    Metrics,
    RelaySettings,
    Server,
    Settings,
    Tls,
    UpstreamSettings,
)
from adapter.doctor import filesystem, host, ports, store_health
from adapter.doctor.findings import Level
from adapter.maintenance import gate
from adapter.store import layout
from adapter.store.disk import Directories
from adapter.transport.recovery import opening
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.findings import all_ok, texts
from tests.support.smtpd import make_store
from tests.support.stores import ADA, deliver

HOST = "mail.example.test"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store", ADA)
    return tmp_path / "store"


@pytest.fixture
def directories(root: Path) -> Iterator[Directories]:
    with contextlib.closing(Directories(str(root))) as opened:
        yield opened


# --- the machine -----------------------------------------------------------------------------------------------------


def test_wrong_or_unsynchronised_clock_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_is_synchronised", lambda: True)
    assert all_ok(host.clock(None))
    assert all_ok(host.clock(time.time() - 10))
    assert "the store was changed at" in texts(host.clock(time.time() + 3600), Level.BAD)
    monkeypatch.setattr(host, "_is_synchronised", lambda: False)
    assert "not synchronised" in texts(host.clock(None), Level.WARN)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert "is wrong" in texts(host.clock(None), Level.BAD)


def test_clock_status_is_read_from_the_kernel() -> None:
    assert next(iter(host.clock(None))).level in (Level.OK, Level.WARN)


def test_low_descriptor_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(server=Server(workers=2), limits=Limits(connections=2000))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert all_ok(host.descriptors(settings))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert "960 connections instead of limits.connections = 2000" in texts(host.descriptors(settings), Level.WARN)


# --- the file system ---------------------------------------------------------------------------------------------


def test_unsuitable_file_system_is_reported(directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all_ok(filesystem.file_system(directories))
    assert "unknown" not in texts(filesystem.file_system(directories), Level.OK)
    monkeypatch.setattr(filesystem, "_type_of", lambda _: "nfs4")
    assert "nfs4 is remote" in texts(filesystem.file_system(directories), Level.WARN)

    def broken(_: Directories) -> None:
        raise MailError(Reason.UNKNOWN, "locks do not exclude")

    monkeypatch.setattr("adapter.store.locks.check_exclusion", broken)
    assert "locks do not exclude" in texts(filesystem.file_system(directories), Level.BAD)

    def forbidden(_: Directories) -> None:
        raise PermissionError(13, "Permission denied", "probe.lock")

    monkeypatch.setattr("adapter.store.locks.check_exclusion", forbidden)
    assert "this user cannot write to the store" in texts(filesystem.file_system(directories), Level.BAD)
    assert not [finding for finding in filesystem.file_system(directories) if "local file system" in finding.advice]
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "is mounted read-only" in texts(filesystem.file_system(directories), Level.BAD)
    assert all_ok(filesystem.permissions(directories, Settings()))  # reported by file_system() only
    with pytest.raises(MailError, match="mounted read-only"):
        opening.check_layout(directories)


@pytest.mark.parametrize(
    ("free", "inodes", "level", "expected"),
    [
        (1 << 40, 900, Level.OK, "disk space"),
        (1 << 30, 900, Level.WARN, "disk space: 1.1 GB free"),
        (1 << 20, 900, Level.BAD, "disk space: 0.0 GB free"),
        (1 << 40, 30, Level.WARN, "inodes: 30 free (3%)"),
        (1 << 40, 1, Level.BAD, "inodes: 1 free"),
    ],
)
def test_free_space(
    directories: Directories, monkeypatch: pytest.MonkeyPatch, free: int, inodes: int, level: Level, expected: str
) -> None:
    blocks = (2 << 40) >> 12
    statistics = SimpleNamespace(f_bavail=free >> 12, f_frsize=4096, f_blocks=blocks, f_favail=inodes, f_files=1000)
    monkeypatch.setattr(os, "fstatvfs", lambda _: statistics)
    assert expected in texts(filesystem.free_space(directories), level)
    statistics.f_files = 0  # the file system allocates inodes on demand
    assert "inodes" not in texts(filesystem.free_space(directories), level) + texts(
        filesystem.free_space(directories), Level.BAD
    )


def test_open_permissions_are_reported(
    root: Path, directories: Directories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key.pem"
    key.write_text("secret")
    key.chmod(0o640)
    settings = Settings(tls=Tls(str(key)), relay=RelaySettings(password_file=str(key)))
    assert all_ok(filesystem.permissions(directories, settings))
    key.chmod(0o644)
    for leaking in (
        settings,
        Settings(upstream={"work": UpstreamSettings(password_file=str(key))}),
        Settings(hook={"agent": HookSettings(authorization_file=str(key))}),
    ):
        assert f"every user can read {key} (mode 644)" in texts(filesystem.permissions(directories, leaking), Level.BAD)
    root.chmod(0o755)
    assert "is open to other users (mode 755)" in texts(filesystem.permissions(directories, Settings()), Level.WARN)
    root.chmod(0o700)
    passwords = root.joinpath(*layout.CREDENTIALS, layout.CREDENTIALS_FILE)
    assert passwords.exists()
    for name in layout.CREDENTIAL_FILES:
        passwords.with_name(name).touch(0o600)
        passwords.with_name(name).chmod(0o640)
        assert "which has the passwords" in texts(filesystem.permissions(directories, Settings()), Level.BAD)
        passwords.with_name(name).chmod(0o600)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot write" in texts(filesystem.permissions(directories, Settings()), Level.BAD)


def test_files_of_other_users_are_reported(directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    status, fstat = os.fstat(directories.root_fd), os.fstat
    of_4711 = os.stat_result((*status[:4], 4711, 4711, *status[6:10]))
    monkeypatch.setattr(os, "fstat", lambda fd: of_4711 if fd == directories.root_fd else fstat(fd))
    assert "do not belong to user 4711" in texts(filesystem.permissions(directories, Settings()), Level.BAD)


# --- the store -------------------------------------------------------------------------------------------------------


def test_offline_marker_and_holders_are_reported(root: Path, directories: Directories) -> None:
    assert "no process has the store open" in texts(store_health.service(directories), Level.OK)
    with Transport.open(root):
        assert f"open by process {os.getpid()}" in texts(store_health.service(directories), Level.OK)
    gate.turn_on(str(root), reason="moving house")
    assert "offline: moving house" in texts(store_health.service(directories), Level.WARN)


def test_store_in_use_has_no_findings(root: Path, directories: Directories) -> None:
    assert all_ok(store_health.layers(directories))
    with Transport.open(root) as transport:
        for _ in range(3):
            deliver(transport, ADA)
        assert all_ok(store_health.layers(directories))
    assert all_ok(store_health.layers(directories))
    changed = store_health.last_change(directories)
    assert changed is not None
    assert abs(changed - time.time()) < 60


def test_store_after_a_snapshot_has_no_findings(root: Path, directories: Directories) -> None:
    with Transport.open(root) as transport:
        transport.snapshot()
    assert all_ok(store_health.layers(directories))


def test_missing_damaged_or_wal_mode_index_is_bad(root: Path, directories: Directories) -> None:
    index = root / layout.INDEX_FILE
    with contextlib.closing(sqlite3.connect(index)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        assert "WAL mode" in texts(store_health.layers(directories), Level.BAD)
        connection.execute("PRAGMA journal_mode=DELETE")
    assert all_ok(store_health.layers(directories))
    whole = index.read_bytes()
    index.write_bytes(whole[:100] + os.urandom(len(whole) - 100))
    assert "index: cannot be read" in texts(store_health.layers(directories), Level.BAD)
    index.write_bytes(b"garbage")
    assert "is not a database" in texts(store_health.layers(directories), Level.BAD)
    index.unlink()
    assert "No such file" in texts(store_health.layers(directories), Level.BAD)


def test_index_behind_or_ahead_of_the_journal_is_reported(root: Path, directories: Directories, tmp_path: Path) -> None:
    index = root / layout.INDEX_FILE
    shutil.copy(index, tmp_path / "older")
    with Transport.open(root) as transport:
        deliver(transport, ADA)
        newer = index.read_bytes()
    shutil.copy(tmp_path / "older", index)
    assert "index lag: 1 record behind the journal" in texts(store_health.layers(directories), Level.WARN)
    index.write_bytes(newer)
    segment = max(root.joinpath(*layout.JOURNAL).glob("*.jsonl"))
    text = segment.read_bytes().rstrip()
    segment.write_bytes(text[: text.rindex(b"\n") + 1])
    assert "the journal has fewer" in texts(store_health.layers(directories), Level.BAD)


def test_index_lag_of_a_running_server_is_bad(
    root: Path, directories: Directories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_health, "_COMMIT_SECONDS", 0.3)
    with Transport.open(root):
        monkeypatch.setattr(store_health, "_last_record", lambda _: (10**6, None))
        assert " behind the journal" in texts(store_health.layers(directories), Level.BAD)


def test_checkpoint_lag_is_reported(root: Path, directories: Directories) -> None:
    place = root.joinpath(*layout.JOURNAL, layout.CHECKPOINT_FILE)
    body = json.loads(place.read_text())
    old = json.dumps(body | {"seq": body["seq"] - 1})
    place.write_text(old)
    assert "checkpoint: 1 record behind: the last process did not shut down cleanly" in texts(
        store_health.layers(directories), Level.WARN
    )
    with Transport.open(root):
        place.write_text(old)
        assert "which is normal" in texts(store_health.layers(directories), Level.OK)
        os.utime(place, (time.time() - 600, time.time() - 600))
        assert "checkpoint: 1 record behind, the last one 600 s ago" in texts(
            store_health.layers(directories), Level.BAD
        )
        place.write_text(json.dumps(body))


def test_large_journal_and_old_mail_in_queue(
    root: Path, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_health, "DUE_BYTES", 10)
    assert "not being compacted" in texts(store_health.layers(directories), Level.WARN)
    monkeypatch.undo()
    with contextlib.closing(sqlite3.connect(root / layout.INDEX_FILE)) as connection:
        connection.execute(
            "INSERT INTO outbox (queue_id, message_id, sender, return_to, recipient, body, smtputf8, requiretls, "
            "created_at, next_attempt_at, expires_at) VALUES ('q', 'm', '', '', 'x@y.test', '7BIT', 0, 0, ?, 0, 0)",
            (int(time.time()) - 7200,),
        )
        connection.commit()
    assert "outbox: 1 recipient queued, the oldest for 2.0 h" in texts(store_health.layers(directories), Level.WARN)


# --- ports -----------------------------------------------------------------------------------------------------------


def _listening() -> socket.socket:
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    return one


def test_each_state_of_a_port_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "none configured" in texts(ports.ports(Settings()), Level.WARN)
    free = Settings(listen=Listen(imap=("127.0.0.1:0",), lmtp=(str(tmp_path / "l"),)), metrics=Metrics("127.0.0.1:0"))
    assert all_ok(ports.ports(free))
    with _listening() as held:
        port = held.getsockname()[1]
        taken = Settings(listen=Listen(smtp=(f"127.0.0.1:{port}",)))
        assert f"held by process {os.getpid()}" in texts(ports.ports(taken), Level.BAD)
        monkeypatch.setattr(ports, "_holder", lambda _: (42, "/usr/bin/python3 /opt/bin/markpost serve --root x"))
        assert "served by process 42" in texts(ports.ports(taken), Level.OK)
        monkeypatch.setattr(ports, "_holder", lambda _: (42, "/opt/markpost/bin/nginx"))
        assert "held by process 42" in texts(ports.ports(taken), Level.BAD)
        monkeypatch.setattr(ports, "_holder", lambda _: (1, "/sbin/init"))
        assert "held by systemd" in texts(ports.ports(taken), Level.OK)
        monkeypatch.setattr(ports, "_holder", lambda _: (0, ""))
        assert "by an unknown process" in texts(ports.ports(taken), Level.WARN)
    nowhere = Settings(listen=Listen(smtp=("192.0.2.1:0",)))
    assert "does not have this address" in texts(ports.ports(nowhere), Level.BAD)
    invalid = Settings(listen=Listen(smtp=("not an address:25",)))
    assert "not an address" in texts(ports.ports(invalid), Level.BAD)


def test_port_that_needs_privileges_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", denied)
    low = Settings(listen=Listen(imap=("127.0.0.1:143",)))
    assert "may not open ports below 1024" in texts(ports.ports(low), Level.WARN)


def test_each_state_of_a_unix_socket_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "lmtp.sock"
    settings = Settings(listen=Listen(lmtp=(str(path),)))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
        assert "free" in texts(ports.ports(settings), Level.OK)  # left by a crashed process
        one.listen()
        assert "a process is listening" in texts(ports.ports(settings), Level.OK)
    elsewhere = Settings(listen=Listen(lmtp=("/nonexistent/lmtp.sock",)))
    assert "cannot create files in /nonexistent" in texts(ports.ports(elsewhere), Level.BAD)


# --- the command -----------------------------------------------------------------------------------------------------
