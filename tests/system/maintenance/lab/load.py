"""Clients that put a running server under load, and retry while they are refused."""

from __future__ import annotations

import contextlib
import imaplib
import re
import smtplib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support.messages import message
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE, wait_until

PASSWORD = "secret"
_PAUSE = 0.1
_PLACED = re.compile(rb"APPENDUID \d+ (\d+)")
_REFUSED = (OSError, smtplib.SMTPException, imaplib.IMAP4.error)


@dataclass
class Load:
    """The acknowledged messages, and those with an unknown result because the connection broke."""

    sent: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)
    appended: dict[int, str] = field(default_factory=dict)  # UID -> subject
    turned_away: list[str] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def wait_for(self, count: int) -> None:
        """Wait until this many more messages have been acknowledged on each side."""
        sent, appended = len(self.sent), len(self.appended)
        wait_until(
            lambda: len(self.sent) >= sent + count and len(self.appended) >= appended + count,
            lambda: (len(self.sent), len(self.appended), self.turned_away[-3:]),
        )

    # --- clients ---------------------------------------------------------------------------------------------------

    def send(self, port: int, name: str) -> None:
        number = 0
        while not self.ending.is_set():
            with contextlib.suppress(*_REFUSED), self._noting_refusals(), smtplib.SMTP("127.0.0.1", port) as client:
                while not self.ending.is_set():
                    number += 1
                    self._send_one(client, f"{name} {number}")
            time.sleep(_PAUSE)

    def _send_one(self, client: smtplib.SMTP, subject: str) -> None:
        client.ehlo_or_helo_if_needed()
        for code, text in (client.mail("x@y.test"), client.rcpt(ADA)):
            if code != 250:
                raise smtplib.SMTPResponseException(code, text)
        self.unclear.add(subject)
        code, text = client.data(message(subject))
        self.unclear.discard(subject)
        if code != 250:
            raise smtplib.SMTPResponseException(code, text)
        self.sent.add(subject)
        time.sleep(_PAUSE)

    def append(self, port: int) -> None:
        number = 0
        while not self.ending.is_set():
            with contextlib.suppress(*_REFUSED), self._noting_refusals(), imaplib.IMAP4("127.0.0.1", port) as client:
                client.login(ADA, PASSWORD)
                client.select("Drafts")
                while not self.ending.is_set():
                    number += 1
                    self._append_one(client, f"Draft {number}")
            time.sleep(_PAUSE)

    def _append_one(self, client: imaplib.IMAP4, subject: str) -> None:
        self.unclear.add(subject)
        status, answer = client.append("Drafts", "", "", message(subject))
        self.unclear.discard(subject)
        placed = _PLACED.search(answer[0] or b"")
        if status != "OK" or placed is None:
            raise imaplib.IMAP4.error(answer)
        uid = int(placed[1])
        self.appended[uid] = subject
        client.uid("STORE", str(uid), "+FLAGS", "(\\Seen todo)")
        client.uid("FETCH", str(max(1, uid - 5)) + ":*", "(FLAGS)")
        time.sleep(_PAUSE)

    @contextlib.contextmanager
    def _noting_refusals(self) -> Iterator[None]:
        try:
            yield
        except _REFUSED as error:
            self.turned_away.append(f"{error}")
            raise


@contextlib.contextmanager
def running(smtp: int, imap: int) -> Iterator[Load]:
    """Run two senders and one client that appends, for the duration of the block."""
    load = Load()
    work: list[Callable[[], None]] = [
        lambda: load.send(smtp, "First"),
        lambda: load.send(smtp, "Second"),
        lambda: load.append(imap),
    ]
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.ending.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
