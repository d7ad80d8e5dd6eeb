"""Credentials: what is stored, what is refused, and what survives a change."""

from __future__ import annotations

import os
import stat
import statistics
import time
from pathlib import Path

import pytest

from adapter.accounts.credentials import SCRAM_ITERATIONS, Credentials
from protocol.errors import MailError, Reason
from protocol.sasl import scram as stored
from tests.support.passwords import passwd

ADA = "ada@example.test"
SECRET = "correct horse battery staple"


def test_password_is_verified(credentials: Credentials) -> None:
    credentials.set_password(ADA, SECRET)
    assert credentials.verify(ADA, SECRET)
    assert credentials.verify("Ada@EXAMPLE.test", SECRET)
    assert not credentials.verify(ADA, SECRET + "!")
    assert not credentials.verify(ADA, "")
    assert not credentials.verify(ADA, "x" * 100_000)
    assert not credentials.verify("bob@example.test", SECRET)
    assert not credentials.verify("not an address", SECRET)


def test_leftover_of_a_killed_change_is_removed_by_the_next(credentials: Credentials, tmp_path: Path) -> None:
    """The leftover contains hashes of replaced passwords."""
    credentials.set_password(ADA, SECRET)
    left = passwd(tmp_path).with_name(f".passwd.{os.getpid()}.new")
    left.write_bytes(passwd(tmp_path).read_bytes())
    credentials.set_password(ADA, "another")
    assert not left.exists()
    assert credentials.verify(ADA, "another")


def test_without_file_no_password_matches(credentials: Credentials, tmp_path: Path) -> None:
    assert not credentials.verify(ADA, SECRET)
    assert credentials.scram(ADA) is None
    assert credentials.list() == []
    assert not credentials.remove(ADA)
    assert not passwd(tmp_path).exists()


def test_file_is_for_its_owner_only_and_holds_no_password(credentials: Credentials, tmp_path: Path) -> None:
    credentials.set_password(ADA, SECRET)
    assert stat.S_IMODE(passwd(tmp_path).parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(passwd(tmp_path).stat().st_mode) == 0o600
    assert [entry.name for entry in passwd(tmp_path).parent.iterdir()] == ["passwd"]
    line = passwd(tmp_path).read_text()
    assert line.startswith(f"{ADA}:{{ARGON2ID}}$argon2id$v=19$")
    assert line.count(":") == 7
    assert SECRET not in line


def test_password_is_normalised(credentials: Credentials) -> None:
    credentials.set_password(ADA, "Gr\u00fc\u00dfe\u00a0alle")
    assert credentials.verify(ADA, "Gru\u0308\u00dfe alle")


@pytest.mark.parametrize("password", ["", "a\x00b", "line\nend", "x" * 1025, "\udc80", "\u0627\u0031"])
def test_unusable_password_is_refused(credentials: Credentials, password: str) -> None:
    with pytest.raises(MailError) as caught:
        credentials.set_password(ADA, password)
    assert caught.value.reason is Reason.NOT_ALLOWED
    assert not credentials.verify(ADA, password)


@pytest.mark.parametrize("address", ["nobody", '"a:b"@example.test', '"a b"@example.test', "#a@example.test"])
def test_address_unsuitable_for_the_file_is_refused(credentials: Credentials, address: str) -> None:
    with pytest.raises(MailError) as caught:
        credentials.set_password(address, SECRET)
    assert caught.value.reason is Reason.BAD_ADDRESS


def test_scram_keys_are_those_of_the_password(credentials: Credentials) -> None:
    credentials.set_password(ADA, SECRET)
    keys = credentials.scram(ADA)
    assert keys is not None
    assert keys.iterations == SCRAM_ITERATIONS
    assert keys == stored.parse_scram_keys(stored.scram_keys(SECRET, keys.salt, keys.iterations))
    credentials.set_password(ADA, "another")
    changed = credentials.scram(ADA)
    assert changed is not None
    assert changed.stored_key != keys.stored_key


def test_foreign_lines_and_fields_survive(credentials: Credentials, tmp_path: Path) -> None:
    passwd(tmp_path).parent.mkdir(mode=0o700)
    foreign = [
        b"# people of the office",
        b"",
        b"postmaster:{PLAIN}x::::::",
        f"{ADA}:{{PLAIN}}old:500:500:Ada Lovelace:/home/ada:/bin/sh:userdb_quota=1G  note=a:b".encode(),
        b"caf\xe9@example.test:{CRYPT}y",
        b"bob@example.test:{SHA512-CRYPT}$6$x::::::nologin",
    ]
    passwd(tmp_path).write_bytes(b"\n".join(foreign))
    assert not credentials.verify(ADA, "old")
    assert not credentials.verify("bob@example.test", "x")
    credentials.set_password(ADA, SECRET)
    credentials.set_password("eve@example.test", SECRET)
    assert credentials.verify(ADA, SECRET)
    lines = passwd(tmp_path).read_bytes().split(b"\n")
    assert lines[:3] + lines[4:6] == foreign[:3] + foreign[4:]
    user, hashed, uid, gid, comment, home, shell, extra = lines[3].decode().split(":", 7)
    assert (user, uid, gid, home, shell, extra) == (
        ADA, "500", "500", "/home/ada", "/bin/sh", "userdb_quota=1G  note=a:b",
    )  # fmt: skip
    assert hashed.startswith("{ARGON2ID}")
    assert comment.startswith("Ada Lovelace markpost_scram=")
    assert credentials.list() == [ADA, "bob@example.test", "eve@example.test"]
    assert credentials.remove(ADA)
    assert ADA.encode() not in passwd(tmp_path).read_bytes()
    assert b"postmaster:{PLAIN}x::::::" in passwd(tmp_path).read_bytes()


def test_duplicate_lines_of_an_address_are_removed_with_it(credentials: Credentials, tmp_path: Path) -> None:
    credentials.set_password(ADA, "first")
    line = passwd(tmp_path).read_bytes()
    passwd(tmp_path).write_bytes(line + line.replace(b"ada", b"ADA"))
    credentials.set_password(ADA, "second")
    assert not credentials.verify(ADA, "first")
    assert passwd(tmp_path).read_bytes().count(b"\n") == 1
    passwd(tmp_path).write_bytes(passwd(tmp_path).read_bytes() + line)
    credentials.remove(ADA)
    assert not credentials.verify(ADA, "first")


def test_change_of_another_process_takes_effect(credentials: Credentials, tmp_path: Path) -> None:
    credentials.set_password(ADA, "first")
    assert credentials.verify(ADA, "first")
    with Credentials.open(tmp_path) as other:
        other.set_password(ADA, "second")
    assert not credentials.verify(ADA, "first")
    assert credentials.verify(ADA, "second")
    passwd(tmp_path).unlink()
    assert not credentials.verify(ADA, "second")


def test_damaged_hash_is_refused(credentials: Credentials, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    passwd(tmp_path).parent.mkdir(mode=0o700)
    passwd(tmp_path).write_text(f"{ADA}:{{ARGON2ID}}$argon2id$what:::markpost_scram=1,2\n")
    assert not credentials.verify(ADA, SECRET)
    assert "account passwd" in caplog.text
    assert credentials.scram(ADA) is None


def test_symlink_is_not_followed(credentials: Credentials, tmp_path: Path) -> None:
    passwd(tmp_path).parent.mkdir(mode=0o700)
    (tmp_path / "elsewhere").write_text(f"{ADA}:{{ARGON2ID}}x")
    passwd(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        credentials.list()


def test_unknown_address_takes_as_long_to_check(credentials: Credentials) -> None:
    credentials.set_password(ADA, SECRET)

    def cost(address: str) -> float:
        times = []
        for _ in range(5):
            start = time.thread_time()
            credentials.verify(address, "wrong")
            times.append(time.thread_time() - start)
        return statistics.median(times)

    registered, unknown = cost(ADA), cost("bob@example.test")
    assert 0.5 < unknown / registered < 2


def test_scram_keys_are_read_for_unknown_users_too(credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response time does not reveal which accounts exist."""
    credentials.set_password(ADA, SECRET)
    read: list[str] = []

    def parse(text: str) -> stored.ScramKeys | None:
        read.append(text)
        return stored.parse_scram_keys(text)

    monkeypatch.setattr("adapter.accounts.credentials.parse_scram_keys", parse)
    assert credentials.scram(ADA) is not None
    assert credentials.scram("bob@example.test") is None
    assert credentials.scram("not an address") is None
    assert len({len(text) for text in read}) == 1
    assert len(read) == 3
