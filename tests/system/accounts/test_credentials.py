"""Password files: several processes write one, and Dovecot authenticates from it."""

from __future__ import annotations

import getpass
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.accounts.credentials import Credentials
from tests.support.passwords import passwd
from tests.support.waiting import PATIENCE, wait_until

ADA = "ada@example.test"


SECRET = "correct horse battery staple"


def _set(root: str, number: int) -> None:
    with Credentials.open(root) as credentials:
        for turn in range(3):
            credentials.set_password(f"user{number}-{turn}@example.test", SECRET)


def test_processes_and_threads_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_set, args=(str(tmp_path), 0))
    threads = [threading.Thread(target=_set, args=(str(tmp_path), number)) for number in (1, 2)]
    process.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.join()
    with Credentials.open(tmp_path) as credentials:
        assert len(credentials.list()) == 9


@pytest.mark.needs("doveadm")
def test_dovecot_knows_the_hash(credentials: Credentials, tmp_path: Path) -> None:
    credentials.set_password(ADA, SECRET)
    hashed = passwd(tmp_path).read_text().split(":")[1]
    check = ["doveadm", "-c", "/dev/null", "pw", "-t", hashed, "-p"]
    assert subprocess.run([*check, SECRET], capture_output=True, timeout=PATIENCE).returncode == 0
    assert subprocess.run([*check, "wrong"], capture_output=True, timeout=PATIENCE).returncode != 0


@pytest.fixture
def dovecot(tmp_path: Path) -> Iterator[list[str]]:
    """A Dovecot that does nothing but authenticate from our file; yields the start of a doveadm command."""
    if os.geteuid() != 0:
        pytest.skip("Dovecot's master process wants to be root")
    passwd(tmp_path).parent.mkdir(mode=0o700)
    config = tmp_path / "dovecot.conf"
    config.write_text(f"""
        base_dir = {tmp_path}/run
        state_dir = {tmp_path}/run
        log_path = {tmp_path}/log
        protocols =
        ssl = no
        auth_failure_delay = 0
        service auth {{
          user = {getpass.getuser()}
        }}
        passdb {{
          driver = passwd-file
          args = {passwd(tmp_path)}
        }}
        userdb {{
          driver = static
          args = uid=1000 gid=1000 home=/nonexistent
        }}
        """)
    process = subprocess.Popen(["dovecot", "-F", "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or (tmp_path / "run" / "auth-client").exists())
        assert process.poll() is None
        yield ["doveadm", "-c", str(config)]
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.needs("doveadm")
@pytest.mark.needs("dovecot")
def test_dovecot_reads_the_file(credentials: Credentials, dovecot: list[str]) -> None:
    credentials.set_password(ADA, SECRET)
    credentials.set_password("bob@example.test", "another")

    def log_in(address: str, password: str) -> subprocess.CompletedProcess[str]:
        command = [*dovecot, "auth", "test", address, password]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

    good = log_in(ADA, SECRET)
    assert good.returncode == 0, good.stderr
    assert "scram" not in good.stdout
    assert log_in(ADA, "another").returncode != 0
    assert log_in("bob@example.test", "another").returncode == 0
