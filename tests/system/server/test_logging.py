"""The log: one line for each event, with session, peer and user, and without confidential data."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import logging
import re
import smtplib
import socket
from collections.abc import Iterator
from imaplib import IMAP4
from pathlib import Path

import pytest

from adapter.observability import logging as logs
from adapter.observability.peer import Peer
from tests.support.processes.serve import Served, served
from tests.support.smtpd import PASSWORD, make_store
from tests.support.stores import ADA
from tests.support.waiting import wait_until

#: Everything that must not be in the log, as it is and encoded.
_SECRETS = {
    name: f"{name}-{number:04d}-confidential"
    for number, name in enumerate(
        ("wrongpass", "literalpass", "plainpass", "loginpass", "tokenpass", "subject", "body", "appended", "searched",
         "unknowncommand", "argument", "keyword", "garbage")
    )
}  # fmt: skip
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) adapter[\w.]*: \S.*\Z")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("logs") / "store"
    make_store(place)
    return place


@contextlib.contextmanager
def _talkative(root: Path, directory: Path, form: str) -> Iterator[Served]:
    config = directory / "conf.toml"
    config.write_text(
        f'[server]\nlog_level = "debug"\nlog_format = "{form}"\n[login]\ndelay = 0\n'
        'token_command = ["/bin/false"]\nmechanisms = ["SCRAM-SHA-256", "PLAIN", "LOGIN", "XOAUTH2", "OAUTHBEARER"]\n'
    )
    kinds = [option for kind in ("smtp", "imap", "submission") for option in (f"--{kind}", "127.0.0.1:0")]
    with served(root, "--config", str(config), *kinds, log=directory / "log") as server:
        yield server
        assert server.stop() == 0


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _speak(port: int, *lines: str | bytes) -> None:
    """Send these lines, whatever the responses."""
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.settimeout(10)
        client.recv(4096)
        for line in lines:
            client.sendall((line.encode() if isinstance(line, str) else line) + b"\r\n")
            with contextlib.suppress(TimeoutError):
                client.recv(65536)


def _confide(server: Served) -> None:
    """Run sessions full of secrets."""
    secret = _SECRETS
    submission, imap = server.ports["submission"], server.ports["imap"]
    plain = _base64(f"\0{ADA}\0{secret['plainpass']}")
    token = _base64(f"user={ADA}\1auth=Bearer {secret['tokenpass']}\1\1")
    _speak(
        submission,
        "EHLO c",
        f"AUTH PLAIN {plain}",
        "AUTH LOGIN",
        _base64(ADA),
        _base64(secret["loginpass"]),
        f"AUTH XOAUTH2 {token}",
        "",
        f"AUTH PLAIN {secret['garbage']}!!",
        f"{secret['unknowncommand']} {secret['argument']}",
        f"VRFY {secret['argument']}",
        f"MAIL FROM:<{secret['garbage']}",
        "QUIT",
    )
    with smtplib.SMTP("127.0.0.1", submission, timeout=20) as client:
        client.login(ADA, PASSWORD)
        text = f"From: {ADA}\r\nSubject: {secret['subject']}\r\n\r\n{secret['body']}\r\n"
        client.sendmail(ADA, [ADA], text)
        for recipient, loops in (("nobody@example.test", ""), (ADA, "Received: here\r\n" * 101)):
            with pytest.raises(smtplib.SMTPException):
                client.sendmail(ADA, [recipient], loops + text)
    _speak(
        imap,
        f"a LOGIN {ADA} {secret['wrongpass']}",
        f"b LOGIN {ADA} {{{len(secret['literalpass'])}+}}\r\n{secret['literalpass']}",
        f"c AUTHENTICATE PLAIN {plain}",
        f"d AUTHENTICATE XOAUTH2 {token}",
        "",
        f"e {secret['unknowncommand']} {secret['argument']}",
        f'f ID ("name" "{"x" * 20}")',
        "g LOGOUT",
    )
    with IMAP4("127.0.0.1", imap) as session:
        session.login(ADA, PASSWORD)
        message = f"Subject: {secret['subject']}\r\n\r\n{secret['appended']}\r\n".encode()
        session.append("INBOX", "", "", message)
        session.select("INBOX")
        session.search(None, "TEXT", f'"{secret["searched"]}"')
        session.search("UTF-8", "SUBJECT", f'"{secret["subject"]}"')
        session.fetch("1:*", "(ENVELOPE BODY[])")
        session.store("1", "+FLAGS", f"({secret['keyword']})")
        with contextlib.suppress(IMAP4.error):
            session.xatom(f"FETCH 1 (BODY[{secret['garbage']}])")


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_confidential_is_in_the_log(root: Path, tmp_path: Path, form: str) -> None:
    with _talkative(root, tmp_path, form) as server:
        _confide(server)
    text = server.log.read_text()
    lines = text.splitlines()
    assert len(lines) > 40
    for secret in (*_SECRETS.values(), PASSWORD):
        assert secret.lower() not in text.lower(), secret
        for shift in range(3):  # its base64 depends on the offset
            piece = base64.b64encode(b"\0" * shift + secret.encode())[4:-4].decode().rstrip("=")
            assert piece not in text, secret
    for user, peer, session, message in (_parts(line, form) for line in lines):
        if "SEARCH" in message or "STORE" in message or "accepted as msg-" in message:
            assert (user, peer) == (ADA, "127.0.0.1")
            assert re.fullmatch(r"[0-9a-f]{6}-[0-9a-f]+", session)
    events = [message for _, _, _, message in (_parts(line, form) for line in lines)]
    for expected in (
        "connected to submission",
        "connected to imap",
        "logged in as",
        "login failed",
        "disconnected",
        "FETCH in ",
        "recipient <nobody@example.test> refused: No such mailbox here",
        f"refused: from <{ADA}>, ",
    ):
        assert any(expected in event for event in events), expected


def _parts(line: str, form: str) -> tuple[str, str, str, str]:
    """Return user, peer, session and message of a line."""
    if form == "json":
        entry = json.loads(line)
        assert entry.keys() <= {"time", "level", "module", "session", "peer", "user", "message", "trace"}
        return entry.get("user", ""), entry.get("peer", ""), entry.get("session", ""), entry["message"]
    assert _LINE.match(line), line
    message = line.split(": ", 1)[1]
    match = re.match(r"([0-9a-f]{6}-[0-9a-f]+) (\S+) (\S+@\S+)? ?(.*)", message)
    return (match[3] or "", match[2], match[1], match[4]) if match else ("", "", "", message)


def _written(formatter: logging.Formatter, text: str, *arguments: object, exception: bool = False) -> str:
    stream = io.StringIO()
    handler = logs.LogWriter(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("adapter.test")
    log.addHandler(handler)
    if exception:
        try:
            raise ValueError("several\nlines")
        except ValueError:
            log.exception(text, *arguments)
    else:
        log.info(text, *arguments)
    return stream.getvalue()


@pytest.mark.parametrize("formatter", [logs.TextLines(), logs.JsonLines()], ids=["text", "json"])
@pytest.mark.parametrize("evil", ["a\nb", "a\r\nb", "a\x1b[31mb", "a\x85b", "a\u2028b", "a\0b", "\udcffb"])
def test_no_text_breaks_a_line(formatter: logging.Formatter, evil: str) -> None:
    for exception in (False, True):
        written = _written(formatter, "%s says %s", Peer("abc-1", "192.0.2.1", ADA), evil, exception=exception)
        assert written.endswith("\n")
        line = written[:-1]
        assert "\n" not in line
        if isinstance(formatter, logs.TextLines):
            assert line.isprintable()
        else:
            entry = json.loads(line)
            assert entry["message"] == f"says {evil}"
            assert (entry["session"], entry["peer"], entry["user"]) == ("abc-1", "192.0.2.1", ADA)
        assert ("Traceback" in line) == exception


def test_serving_process_writes_lines_from_a_thread_in_order() -> None:
    stream = io.StringIO()
    handler = logs.LogWriter(stream)
    log = logging.Logger("adapter.test")
    log.addHandler(handler)
    log.info("at once")
    assert stream.getvalue() == "at once\n"
    handler.write_behind()
    for number in range(500):
        log.info("line %d of many", number)
    log.warning("this is written now, and everything before it")
    assert len(stream.getvalue().splitlines()) == 502
    log.info("a moment later")
    wait_until(lambda: stream.getvalue().endswith("a moment later\n"))


def test_libraries_log_warnings_only() -> None:
    handlers, level = logging.root.handlers[:], logging.root.level
    ours = logging.getLogger("adapter").level
    try:
        logs.set_level("debug")
        assert logging.getLogger("adapter.servers.x").isEnabledFor(logging.DEBUG)
        logging.root.setLevel(logging.WARNING)
        assert not logging.getLogger("asyncio").isEnabledFor(logging.INFO)
    finally:
        logging.root.handlers[:], logging.root.level = handlers, level
        logging.getLogger("adapter").setLevel(ours)
