"""Every check of the doctor, passing and failing."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from adapter.backup import create
from adapter.cli import main
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
from adapter.net import endpoints
from adapter.store import layout
from adapter.store.disk import Directories
from adapter.transport.recovery import opening
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.findings import all_ok, told
from tests.support.smtpd import make_store
from tests.support.stores import ADA, deliver

HOST = "mail.example.test"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store", ADA)
    return tmp_path / "store"


@pytest.fixture
def directories(root: Path) -> Iterator[Directories]:
    with contextlib.closing(Directories(str(root))) as found:
        yield found


# --- the machine -----------------------------------------------------------------------------------------------------


def _java(directory: Path, says: str) -> dict[str, str]:
    (directory / "bin").mkdir(exist_ok=True)
    program = directory / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(directory), "PATH": os.environ["PATH"]}


def test_java(tmp_path: Path) -> None:
    assert all_ok(host.java(_java(tmp_path, 'openjdk version "17.0.9" 2023-10-17')))
    assert "version 8; check and repair need 17" in told(
        host.java(_java(tmp_path, 'java version "1.8.0_292"')), Level.WARN
    )
    assert "does not tell its version" in told(host.java(_java(tmp_path, "hello")), Level.WARN)
    assert "cannot be started" in told(host.java({"JAVA_HOME": str(tmp_path / "none")}), Level.WARN)


def test_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_is_synchronised", lambda: True)
    assert all_ok(host.clock(None))
    assert all_ok(host.clock(time.time() - 10))
    assert "the store was changed at" in told(host.clock(time.time() + 3600), Level.BAD)
    monkeypatch.setattr(host, "_is_synchronised", lambda: False)
    assert "nothing keeps it right" in told(host.clock(None), Level.WARN)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert "which cannot be" in told(host.clock(None), Level.BAD)


def test_the_kernel_is_asked_about_the_clock() -> None:
    assert host._is_synchronised() in (True, False)


def test_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(server=Server(workers=2), limits=Limits(connections=2000))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert all_ok(host.descriptors(settings))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert "960 connections instead of limits.connections = 2000" in told(host.descriptors(settings), Level.WARN)


# --- where the store lies --------------------------------------------------------------------------------------------


def test_file_system(directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all_ok(filesystem.file_system(directories))
    assert "unknown" not in filesystem._type_of(directories.root_fd)
    monkeypatch.setattr(filesystem, "_type_of", lambda _: "nfs4")
    assert "nfs4 is remote" in told(filesystem.file_system(directories), Level.WARN)

    def broken(_: Directories) -> None:
        raise MailError(Reason.UNKNOWN, "locks do not exclude")

    monkeypatch.setattr("adapter.store.locks.check_exclusion", broken)
    assert "locks do not exclude" in told(filesystem.file_system(directories), Level.BAD)

    def forbidden(_: Directories) -> None:
        raise PermissionError(13, "Permission denied", "probe.lock")

    monkeypatch.setattr("adapter.store.locks.check_exclusion", forbidden)
    assert "this user cannot write there" in told(filesystem.file_system(directories), Level.BAD)
    assert not [finding for finding in filesystem.file_system(directories) if "local file system" in finding.advice]
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "is mounted read-only" in told(filesystem.file_system(directories), Level.BAD)
    assert all_ok(filesystem.permissions(directories, Settings()))  # it is told once
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
def test_room(
    directories: Directories, monkeypatch: pytest.MonkeyPatch, free: int, inodes: int, level: Level, expected: str
) -> None:
    there = SimpleNamespace(f_bavail=free >> 12, f_frsize=4096, f_blocks=(2 << 40) >> 12, f_favail=inodes, f_files=1000)
    monkeypatch.setattr(os, "fstatvfs", lambda _: there)
    assert expected in told(filesystem.free_space(directories), level)
    there.f_files = 0  # a file system without a fixed number
    assert "inodes" not in told(filesystem.free_space(directories), level) + told(
        filesystem.free_space(directories), Level.BAD
    )


def test_permissions(root: Path, directories: Directories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert f"everybody can read {key} (mode 644)" in told(filesystem.permissions(directories, leaking), Level.BAD)
    root.chmod(0o755)
    assert "is open to others (mode 755)" in told(filesystem.permissions(directories, Settings()), Level.WARN)
    root.chmod(0o700)
    passwords = root.joinpath(*layout.CREDENTIALS, layout.CREDENTIALS_FILE)
    assert passwords.exists()
    for name in layout.CREDENTIAL_FILES:
        passwords.with_name(name).touch(0o600)
        passwords.with_name(name).chmod(0o640)
        assert "where the passwords are" in told(filesystem.permissions(directories, Settings()), Level.BAD)
        passwords.with_name(name).chmod(0o600)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot write" in told(filesystem.permissions(directories, Settings()), Level.BAD)


def test_files_of_somebody_else(directories: Directories) -> None:
    assert not list(filesystem._owners(directories, os.geteuid()))
    assert "do not belong to user 4711" in told(filesystem._owners(directories, 4711), Level.BAD)


# --- how the store is ------------------------------------------------------------------------------------------------


def test_service(root: Path, directories: Directories) -> None:
    assert "nobody has the store open" in told(store_health.service(directories), Level.OK)
    with Transport.open(root):
        assert f"open by process {os.getpid()}" in told(store_health.service(directories), Level.OK)
    gate.turn_on(str(root), reason="moving house")
    assert "offline: moving house" in told(store_health.service(directories), Level.WARN)


def test_a_store_in_use_is_well(root: Path, directories: Directories) -> None:
    assert all_ok(store_health.layers(directories))
    with Transport.open(root) as transport:
        for _ in range(3):
            deliver(transport, ADA)
        assert all_ok(store_health.layers(directories))
    assert all_ok(store_health.layers(directories))
    changed = store_health.last_change(directories)
    assert changed is not None
    assert abs(changed - time.time()) < 60


def test_after_a_snapshot_all_is_well(root: Path, directories: Directories) -> None:
    with Transport.open(root) as transport:
        transport.snapshot()
    assert all_ok(store_health.layers(directories))


def test_index_that_is_gone_or_garbage_or_in_wal_mode(root: Path, directories: Directories) -> None:
    index = root / layout.INDEX_FILE
    with contextlib.closing(sqlite3.connect(index)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        assert "WAL mode" in told(store_health.layers(directories), Level.BAD)
        connection.execute("PRAGMA journal_mode=DELETE")
    assert all_ok(store_health.layers(directories))
    whole = index.read_bytes()
    index.write_bytes(whole[:100] + os.urandom(len(whole) - 100))
    assert "index: cannot be read" in told(store_health.layers(directories), Level.BAD)
    index.write_bytes(b"garbage")
    assert "is no database" in told(store_health.layers(directories), Level.BAD)
    index.unlink()
    assert "No such file" in told(store_health.layers(directories), Level.BAD)


def test_index_behind_and_ahead_of_the_journal(root: Path, directories: Directories, tmp_path: Path) -> None:
    index = root / layout.INDEX_FILE
    shutil.copy(index, tmp_path / "older")
    with Transport.open(root) as transport:
        deliver(transport, ADA)
        newer = index.read_bytes()
    shutil.copy(tmp_path / "older", index)
    assert "index lag: not in the index yet: 1 record" in told(store_health.layers(directories), Level.WARN)
    index.write_bytes(newer)
    segment = max(root.joinpath(*layout.JOURNAL).glob("*.jsonl"))
    text = segment.read_bytes().rstrip()
    segment.write_bytes(text[: text.rindex(b"\n") + 1])
    assert "of which the journal lacks some" in told(store_health.layers(directories), Level.BAD)


def test_index_that_a_running_server_leaves_behind(
    root: Path, directories: Directories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_health, "_UNDER_WAY", 0.3)
    with Transport.open(root):
        monkeypatch.setattr(store_health, "_newest", lambda _: (10**6, None))
        assert " behind the journal" in told(store_health.layers(directories), Level.BAD)


def test_checkpoint(root: Path, directories: Directories) -> None:
    place = root.joinpath(*layout.JOURNAL, layout.CHECKPOINT_FILE)
    body = json.loads(place.read_text())
    old = json.dumps(body | {"seq": body["seq"] - 1})
    place.write_text(old)
    assert "checkpoint: 1 record behind: the last process did not end well" in told(
        store_health.layers(directories), Level.WARN
    )
    with Transport.open(root):
        place.write_text(old)
        assert "as is usual" in told(store_health.layers(directories), Level.OK)
        os.utime(place, (time.time() - 600, time.time() - 600))
        assert "checkpoint: 1 record behind, and none for 600 s" in told(store_health.layers(directories), Level.BAD)
        place.write_text(json.dumps(body))


def test_journal_and_outbox(root: Path, directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_health, "DUE_BYTES", 10)
    assert "it is not being compacted" in told(store_health.layers(directories), Level.WARN)
    monkeypatch.undo()
    with contextlib.closing(sqlite3.connect(root / layout.INDEX_FILE)) as connection:
        connection.execute(
            "INSERT INTO outbox (queue_id, message_id, sender, return_to, recipient, body, smtputf8, requiretls, "
            "created_at, next_attempt_at, expires_at) VALUES ('q', 'm', '', '', 'x@y.test', '7BIT', 0, 0, ?, 0, 0)",
            (int(time.time()) - 7200,),
        )
        connection.commit()
    assert "outbox: 1 recipient, the oldest for 2.0 h" in told(store_health.layers(directories), Level.WARN)


# --- ports -----------------------------------------------------------------------------------------------------------


def _listening() -> socket.socket:
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    return one


def test_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "names none" in told(ports.ports(Settings()), Level.WARN)
    free = Settings(listen=Listen(imap=("127.0.0.1:0",), lmtp=(str(tmp_path / "l"),)), metrics=Metrics("127.0.0.1:0"))
    assert all_ok(ports.ports(free))
    with _listening() as held:
        port = held.getsockname()[1]
        taken = Settings(listen=Listen(smtp=(f"127.0.0.1:{port}",)))
        assert f"held by process {os.getpid()}" in told(ports.ports(taken), Level.BAD)
        monkeypatch.setattr(ports, "_holder", lambda _: (42, "/usr/bin/python3 /opt/bin/markpost serve --root x"))
        assert "served by process 42" in told(ports.ports(taken), Level.OK)
        monkeypatch.setattr(ports, "_holder", lambda _: (42, "/opt/markpost/bin/nginx"))
        assert "held by process 42" in told(ports.ports(taken), Level.BAD)
        monkeypatch.setattr(ports, "_holder", lambda _: (1, "/sbin/init"))
        assert "systemd listens there" in told(ports.ports(taken), Level.OK)
        monkeypatch.setattr(ports, "_holder", lambda _: (0, ""))
        assert "by whom cannot be seen" in told(ports.ports(taken), Level.WARN)
    nowhere = Settings(listen=Listen(smtp=("192.0.2.1:0",)))
    assert "does not have the address" in told(ports.ports(nowhere), Level.BAD)
    nobody = Settings(listen=Listen(smtp=("not an address:25",)))
    assert "not an address" in told(ports.ports(nobody), Level.BAD)
    low = ports._trouble("imap", endpoints.parse("imap", "127.0.0.1:143"), PermissionError(13, "denied"))
    assert "may not open ports below 1024" in told([low], Level.WARN)


def test_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "lmtp.sock"
    settings = Settings(listen=Listen(lmtp=(str(path),)))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
        assert "free" in told(ports.ports(settings), Level.OK)  # left behind by a dead process
        one.listen()
        assert "somebody listens there" in told(ports.ports(settings), Level.OK)
    elsewhere = Settings(listen=Listen(lmtp=("/nonexistent/lmtp.sock",)))
    assert "nothing can be made in /nonexistent" in told(ports.ports(elsewhere), Level.BAD)


# --- the command -----------------------------------------------------------------------------------------------------


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def test_the_command(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_NOTHING", 0)  # tests run where there may be little room
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*") if not stat.S_ISDIR(path.lstat().st_mode)}
    config = tmp_path / "markpost.toml"
    config.write_text('[listen]\nimap = ["127.0.0.1:0"]\n')
    status, text = _run("--root", str(root), "--config", str(config))
    assert status == 0, text
    assert "ok    locking: " in text
    assert "bad" not in text
    assert before == {path: path.lstat().st_mtime_ns for path in before}  # nothing was changed
    root.joinpath(*layout.CREDENTIALS).chmod(0o755)
    status, text = _run("--root", str(root), "--config", str(config))
    assert status == 1
    assert "bad   permissions: others can read" in text
    assert "\n      -> chmod -R go= " in text
    status, text = _run("--root", str(root), "--json")
    assert status == 1
    found = json.loads(text)
    assert {entry["level"] for entry in found} >= {"ok", "bad"}
    assert all(entry.keys() == {"level", "check", "seen", "advice"} for entry in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[listn]\n", "unknown setting 'listn'"),
        ('[tls]\ncertificate = "/nonexistent"\n', "no such file"),
        ('[metrics]\nlisten = "nonsense"\n', "neither host:port"),
    ],
)
def test_mistakes_in_the_configuration_are_findings(root: Path, tmp_path: Path, text: str, expected: str) -> None:
    config = tmp_path / "markpost.toml"
    config.write_text(text)
    status, shown = _run("--root", str(root), "--config", str(config))
    assert status == 1
    assert f"{config}:" in shown
    assert expected in shown
    assert "locking: " in shown  # the rest is looked at all the same


def test_a_root_that_is_no_store(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        status, text = _run("--root", str(place))
        assert status == 1
        assert "is not a store" in text
        assert "-> markpost init" in text


def test_a_backup_is_no_store(root: Path, tmp_path: Path) -> None:
    backup = create.create_backup(str(root), str(tmp_path / "backups"), credentials=True).path
    text = _run("--root", backup)[1]
    assert f"{backup} is not a store but a backup" in text
    assert f"-> markpost restore {backup}" in text


def test_a_store_of_another_version(root: Path) -> None:
    for number, advice in ((layout.VERSION - 1, "-> markpost migrate --root"), (layout.VERSION + 1, "-> install")):
        (root / layout.VERSION_FILE).unlink()
        (root / layout.VERSION_FILE).write_text(f"{number}\n")
        assert advice in _run("--root", str(root))[1]
