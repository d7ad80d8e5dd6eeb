"""Maildirs that Dovecot reads and writes."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.store.flags import Flag
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from tests.support.mail.exchanges import account_contents, export, fill_folders, import_mail

ADA, BOB = "ada@example.test", "bob@example.test"


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    create_store(str(tmp_path / "store"))
    with Transport.open(tmp_path / "store") as opened:
        for address in (ADA, BOB):
            opened.run(op.Register(address))
        yield opened


@pytest.fixture
def mail_home() -> Iterator[Path]:
    """Return a directory of another user, because Dovecot refuses to read mail as root."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as home:
        os.chmod(home, 0o755)
        if os.geteuid() == 0:
            os.chown(home, 65534, 65534)
        yield Path(home)


def doveadm(home: Path, *arguments: str, text: str = "") -> list[list[str]]:
    """Return the rows of the table that Dovecot prints about the Maildir in ``home``."""
    user = os.geteuid() or 65534
    if os.geteuid() == 0:
        for where, directories, files in os.walk(home):
            for name in (*directories, *files):
                os.lchown(os.path.join(where, name), user, user)
    (home / "dovecot.conf").write_text(f"""
        ssl = no
        mail_location = maildir:{home}/{ADA}
        mail_uid = {user}
        mail_gid = {user}
        first_valid_uid = 1
        """)
    command = ["doveadm", "-c", str(home / "dovecot.conf"), "-f", "tab", "-o", "stats_writer_socket_path=", *arguments]
    environment = {**os.environ, "USER": "nobody", "HOME": str(home), "TZ": "UTC"}
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()[1:]]


@pytest.mark.needs("doveadm")
def test_dovecot_reads_the_exported_maildir(transport: Transport, mail_home: Path) -> None:
    """Dovecot shows the same flags, keywords, dates and UIDs."""
    fill_folders(transport)
    export(transport, mail_home, "maildir", ADA)
    names = {
        "\\Seen": Flag.READ,
        "\\Answered": Flag.ANSWERED,
        "\\Flagged": Flag.STARRED,
        "\\Deleted": Flag.DELETED,
        "\\Draft": Flag.DRAFT,
    }
    for folder in ("INBOX", "Work.Plans"):
        rows = doveadm(mail_home, "fetch", "uid flags date.received.unixtime size.physical", "mailbox", folder)
        ours = account_contents(transport, ADA)[folder.replace(".", "/")]
        assert [int(row[0]) for row in rows] == list(range(1, len(ours) + 1))
        for (_, flags, date, size), (octets, bits, keywords, internal_date) in zip(rows, ours):
            shown = set(flags.split()) - {"\\Recent"}
            assert sum(names[name] for name in shown if name in names) == bits
            assert shown - set(names) == set(keywords.split())
            assert (int(date), int(size)) == (internal_date, len(octets))


@pytest.mark.needs("doveadm")
def test_maildir_written_by_dovecot_is_read(transport: Transport, mail_home: Path) -> None:
    (mail_home / ADA).mkdir(mode=0o755)
    for folder in ("Entwürfe", "Work.Plans"):
        doveadm(mail_home, "mailbox", "create", "-s", folder)
    message = "Subject: {}\n\nFrom here\n"
    for folder, subject in [("INBOX", "one"), ("INBOX", "two"), ("Entwürfe", "drei"), ("Work.Plans", "four")]:
        doveadm(mail_home, "save", "-m", folder, text=message.format(subject))
    doveadm(mail_home, "flags", "add", "\\Seen \\Flagged todo $Forwarded", "mailbox", "INBOX", "uid", "1")
    doveadm(mail_home, "flags", "add", "\\Draft", "mailbox", "Entwürfe", "all")
    done = import_mail(transport, mail_home / ADA, BOB)
    assert (done.messages, done.failed) == (4, [])
    imported = account_contents(transport, BOB)

    def octets(subject: str) -> bytes:
        return message.format(subject).replace("\n", "\r\n").encode()

    one, two = imported["INBOX"]
    assert one[:3] == (octets("one"), Flag.READ | Flag.STARRED, "$Forwarded todo")
    assert two[:3] == (octets("two"), 0, "")
    assert abs(one[3] - time.time()) < 600
    assert imported["Entwürfe"][0][:2] == (octets("drei"), Flag.DRAFT)
    assert imported["Work/Plans"][0][0] == octets("four")
    assert {"Entwürfe", "Work/Plans"} <= set(imported["subscribed"])
