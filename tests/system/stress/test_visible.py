"""After an LMTP 250 every session of every worker shows the message with its next command, on a busy machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import smtplib
import time
from collections.abc import Iterator
from imaplib import IMAP4
from pathlib import Path

import pytest

from tests.support.messages import message
from tests.support.processes.serve import served
from tests.support.smtpd import PASSWORD, make_store
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE

SESSIONS = 6
ROUNDS = 60


def _keep_busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """More that wants to run than there are processors."""
    spawn = multiprocessing.get_context("spawn")
    loops = [spawn.Process(target=_keep_busy, args=(120.0,), daemon=True) for _ in range((os.cpu_count() or 1) + 1)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _session(port: int) -> IMAP4:
    client = IMAP4("127.0.0.1", port, timeout=PATIENCE)
    client.login(ADA, PASSWORD)
    client.select("INBOX")
    return client


@pytest.mark.parametrize("workers", [1, 2])
def test_next_command_of_every_session_shows_what_lmtp_accepted(tmp_path: Path, workers: int) -> None:
    make_store(tmp_path / "store")
    (tmp_path / "conf.toml").write_text(f"[server]\nworkers = {workers}\n")
    listeners = ("--imap", "127.0.0.1:0", "--lmtp", "127.0.0.1:0", "--config", str(tmp_path / "conf.toml"))
    with served(tmp_path / "store", *listeners, log=tmp_path / "log") as server, contextlib.ExitStack() as scope:
        sessions = [_session(server.ports["imap"]) for _ in range(SESSIONS)]
        for session in sessions:
            scope.callback(session.shutdown)
        mail = scope.enter_context(smtplib.LMTP("127.0.0.1", server.ports["lmtp"]))
        scope.enter_context(busy_machine())
        missed = []
        for number in range(1, ROUNDS + 1):
            assert not mail.sendmail("x@y.test", [ADA], message(f"number {number}"))
            for place, session in enumerate(sessions):
                if (number + place) % 2:
                    session.noop()
                    count = int((session.response("EXISTS")[1] or [b"0"])[-1] or 0)
                else:
                    _, answer = session.status("INBOX", "(MESSAGES)")
                    match = re.search(rb"MESSAGES (\d+)", answer[0] or b"")
                    assert match is not None
                    count = int(match[1])
                    session.response("EXISTS")
                if count != number:
                    missed.append((number, place, count))
        assert not missed, f"{len(missed)} of {ROUNDS * SESSIONS}: {missed[:10]}"
