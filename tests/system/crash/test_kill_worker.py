"""One of two workers is killed again and again under load: nothing acknowledged is lost, and who comes back finds
everything as it was."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from imaplib import IMAP4
from pathlib import Path

from tests.support.imapd import PASSWORD, make_store
from tests.support.processes.serve import Served
from tests.support.processes.tree import children
from tests.support.waiting import PATIENCE
from tests.system.crash.lab.senders import Sender, check_delivered

SENDERS = 6
WRITERS = 2
SECONDS = 6.0
ADDRESSES = [f"user{number}@example.test" for number in range(3)]


class _Writer(threading.Thread):
    """Appends messages to a folder of its own and flags each; after every reconnect checks that all are there."""

    def __init__(self, number: int, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.port = port
        self.stop = stop
        self.appended: dict[int, bytes] = {}  # UID -> subject, as acknowledged
        self.flagged: set[int] = set()  # as acknowledged
        self.connections = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                with contextlib.suppress(OSError, IMAP4.abort):
                    self._session()
                time.sleep(0.05)
            self._session(last=True)
        except BaseException as error:
            self.error = error

    def _session(self, *, last: bool = False) -> None:
        session = IMAP4("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            session.login(ADDRESSES[self.number], PASSWORD)
            self.connections += 1
            if session.select("Archive")[0] != "OK":
                raise AssertionError("the folder is gone")
            self._check_folder(session)
            while not (last or self.stop.is_set()):
                self._append(session)
        finally:
            session.shutdown()

    def _check_folder(self, session: IMAP4) -> None:
        _, answers = session.uid("FETCH", "1:*", "(UID FLAGS BODY.PEEK[HEADER.FIELDS (SUBJECT)])")
        flags = {}
        for answer in answers:
            if isinstance(answer, tuple):
                uid = int(re.findall(rb"UID (\d+)", answer[0])[0])
                flags[uid] = (answer[1].strip().removeprefix(b"Subject: "), rb"\Flagged" in answer[0])
        for uid, subject in self.appended.items():
            assert flags.get(uid, (b"", False))[0] == subject, (uid, subject)
        assert all(flags[uid][1] for uid in self.flagged)

    def _append(self, session: IMAP4) -> None:
        subject = b"%d-%d" % (self.number, random.getrandbits(60))
        status, answer = session.append("Archive", "", "", b"Subject: " + subject + b"\r\n\r\nText\r\n")
        assert status == "OK", answer
        uid = int(re.findall(rb"APPENDUID \d+ (\d+)", answer[0])[0])
        assert uid not in self.appended
        self.appended[uid] = subject
        assert session.uid("STORE", str(uid), "+FLAGS.SILENT", r"(\Flagged)")[0] == "OK"
        self.flagged.add(uid)


def _is_enough(writers: list[_Writer], kills: int) -> bool:
    """Something was written, and connections were lost."""
    written = all(len(writer.flagged) >= 5 for writer in writers)
    return kills >= 2 and written and sum(writer.connections for writer in writers) > WRITERS


def test_a_worker_that_dies_takes_nothing_with_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root, *ADDRESSES)
    (tmp_path / "conf.toml").write_text('[server]\nworkers = 2\nlog_level = "warning"\n')
    listeners = ("--smtp", "127.0.0.1:0", "--imap", "127.0.0.1:0")
    server = Served(root, ("--config", str(tmp_path / "conf.toml"), *listeners), tmp_path / "log")
    stop = threading.Event()
    senders = [Sender(number, server.ports["smtp"], ADDRESSES, stop) for number in range(SENDERS)]
    writers = [_Writer(number, server.ports["imap"], stop) for number in range(WRITERS)]
    supervisor = server.process.pid
    kills = 0
    try:
        for thread in (*senders, *writers):
            thread.start()
        begun = time.monotonic()
        while time.monotonic() < begun + (SECONDS if _is_enough(writers, kills) else PATIENCE):
            time.sleep(random.uniform(0.3, 0.9))
            workers = children(supervisor)
            if len(workers) == 2:  # one that dies again and again is not replaced at once
                os.kill(random.choice(workers), signal.SIGKILL)
                kills += 1
        stop.set()
        for thread in (*senders, *writers):
            thread.join(PATIENCE)
        assert server.stop() == 0
    finally:
        stop.set()
        if server.process.poll() is None:
            server.kill()
    for writer in writers:
        assert writer.error is None, writer.error
    assert _is_enough(writers, kills)
    assert all(sender.finished for sender in senders)
    check_delivered(root, senders, ADDRESSES, tmp_path / "scratch")
    assert "Traceback" not in (tmp_path / "log").read_text()
