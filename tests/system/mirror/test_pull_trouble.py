"""Mirroring a real Dovecot through failures: cut connections, kills, false answers, wrong passwords."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from adapter.mirror import replies
from adapter.mirror.client import Refused, UpstreamError
from adapter.store.flags import Flag
from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.paths import REPOSITORY
from tests.support.processes.fronts import free_port
from tests.support.processes.pulling import LARGE, configure, here, pull
from tests.support.processes.upstream import PASSWORD, Dovecot, put, wire
from tests.support.stores import ADA, new_store, rows

pytestmark = [
    pytest.mark.needs("dovecot"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Dovecot is started by root"),
]


async def test_a_connection_that_is_cut_again_and_again(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    letters = [message(subject=str(number), attachments=[b"x" * (number * 7919 % 40_000)]) for number in range(60)]
    with dovecot.session(user) as client:
        for octets in (*letters[:30], LARGE, *letters[30:]):
            put(client, "INBOX", octets)
    chance = random.Random(20261116)
    failures = 0
    async with wire(dovecot.imap) as proxy:
        settings = dovecot.settings(user, port=proxy.port)
        for _ in range(25):
            proxy.cut_after = chance.randint(1, 1_500_000)
            try:
                await pull(transport, settings)
            except UpstreamError:
                failures += 1
            folders = here(transport)
            assert max(folders.values(), default=1) == 1
        proxy.cut_after = None
        await pull(transport, settings)
    assert failures >= 20
    assert here(transport) == Counter([*letters, LARGE])


def test_killed_again_and_again(dovecot: Dovecot, tmp_path: Path) -> None:
    """The process dies at any point; what is there afterwards is there once."""
    user = dovecot.new_user()
    chance = random.Random(7)
    letters = [
        message(subject=str(number), attachments=[chance.randbytes(number % 7 * 20_000)]) for number in range(80)
    ]
    with dovecot.session(user) as client:
        for octets in letters:
            put(client, "INBOX", octets, ["\\Seen"])
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    config = tmp_path / "markpost.toml"
    config.write_text(f"[upstream.work]\n{configure(dovecot, user, tmp_path)}")
    command = [sys.executable, "-m", "adapter.cli", "pull", "--root", str(root), "--config", str(config)]
    journal = root / "journal"
    deaths = 0
    for _ in range(4):
        grown = _size(journal) + chance.randint(1, 400_000)
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while process.poll() is None and _size(journal) < grown:
                time.sleep(0.002)
            deaths += process.poll() is None
            process.send_signal(signal.SIGKILL)
    last = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    assert last.stdout.startswith("work: ")
    assert PASSWORD not in last.stdout + last.stderr
    assert deaths >= 2
    with Transport.open(root) as transport:
        assert here(transport) == Counter(letters)
        assert all(row.flags == Flag.READ for row in rows(transport))
    assert_layers_agree(root, tmp_path / "scratch")


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.exists())


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
@pytest.mark.setting("upstream.tls", "upstream.ca_file")
async def test_tls_is_verified(dovecot: Dovecot, transport: Transport, tls: str) -> None:
    user = dovecot.new_user()
    port = dovecot.imap if tls == "starttls" else dovecot.imaps
    with dovecot.session(user) as client:
        put(client, "INBOX", message())
    with pytest.raises(UpstreamError, match="ertificate"):
        await pull(transport, dovecot.settings(user, tls=tls, port=port))
    done = await pull(transport, dovecot.settings(user, tls=tls, port=port, ca_file=dovecot.certificate))
    assert done.messages == 1


@pytest.mark.setting("upstream.password", "upstream.password_command")
async def test_what_goes_wrong_is_told_without_the_password(
    dovecot: Dovecot, transport: Transport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    user = dovecot.new_user()
    with pytest.raises(Refused, match="login refused"):
        await pull(transport, dovecot.settings(user, password=PASSWORD + "x"))
    with pytest.raises(UpstreamError, match="refused"):
        await pull(transport, dovecot.settings(user, port=free_port()))
    with pytest.raises(UpstreamError, match="sent unencrypted"):
        await pull(transport, dovecot.settings(user, host="192.0.2.1"))
    command = (sys.executable, "-c", f"print({PASSWORD!r})")
    assert (await pull(transport, dovecot.settings(user, password="", password_command=command))).failed == []
    with pytest.raises(UpstreamError, match="password command failed"):
        await pull(transport, dovecot.settings(user, password="", password_command=(sys.executable, "-c", "exit(1)")))
    with pytest.raises(UpstreamError, match="cannot get the password: No such file"):
        await pull(transport, dovecot.settings(user, password="", password_file=str(tmp_path / "none")))
    assert PASSWORD not in caplog.text
    assert PASSWORD not in repr(dovecot.settings(user))


async def test_octets_are_counted(dovecot: Dovecot, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that is wrong is borne if the octets come the same twice; octets that do not are refused."""
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        for octets in (message(subject="small"), LARGE):
            put(client, "INBOX", octets)
    real = replies.parse_fetch

    def wrong(lines: Any) -> Any:
        for each in real(lines):
            yield dataclasses.replace(each, size=each.size and each.size + 3)

    monkeypatch.setattr(replies, "parse_fetch", wrong)
    await pull(transport, dovecot.settings(user))
    assert here(transport) == Counter([message(subject="small"), LARGE])

    calls = 0

    def unsteady(lines: Any) -> Any:
        nonlocal calls
        for each in wrong(lines):
            calls += 1
            yield dataclasses.replace(each, body=each.body and each.body + b"x" * (calls + 9))

    with dovecot.session(user) as client:
        put(client, "INBOX", message(subject="third"))
    monkeypatch.setattr(replies, "parse_fetch", unsteady)
    with pytest.raises(UpstreamError, match="incomplete download"):
        await pull(transport, dovecot.settings(user))
    assert len(rows(transport)) == 2
