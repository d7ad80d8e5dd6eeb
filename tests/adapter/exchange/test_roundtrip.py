"""Export and import: octets, flags, keywords, folders, subscriptions, order and dates are preserved."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapter.exchange.export import Exported, Exporter, Format
from adapter.exchange.import_ import Imported, Importer, find_source
from adapter.exchange.model import Item, Source
from adapter.store.flags import Flag
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from protocol.errors import MailError, Reason

ADA, BOB = "ada@example.test", "bob@example.test"
DATE = 1_600_000_000
FORMATS: list[Format] = ["maildir", "mbox"]

MESSAGES = [
    b"Subject: plain\r\n\r\nFrom the start\r\n>From x\r\n",
    b"Subject: no line end\r\n\r\nx",
    b"Subject: bare LF\n\nFrom Mon Jan  1 00:00:00 1970\n\nFrom a Mon Jan  1 00:00:00 1970\n",
    b"Subject: mixed\r\n\nbare\r and \r\r\n\x00 NUL \xff\xfe",
    b"",
    b"Status: RO\r\nX-Keywords: none\r\n\r\nown fields\r\n",
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\ntext\r\n--b\r\nContent-Type: image/png\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\n" + b"iVBORw0KGgo=\r\n" * 3 + b"--b--\r\n",
    b"Subject: large\r\n\r\n" + b"0123456789" * 100_000,
]


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    create_store(str(tmp_path / "store"))
    with Transport.open(tmp_path / "store") as opened:
        for address in (ADA, BOB):
            opened.run(op.Register(address))
        yield opened


def fill(transport: Transport) -> None:
    for folder in ("Work/Plans", "Entwürfe.alt", "a\\b ~ %41", "x" * 300, "INBOX/below"):
        transport.run(op.CreateFolder(ADA, folder))
    transport.run(op.Subscribe(ADA, "Work/Plans"))
    transport.run(op.Subscribe(ADA, "Not there"))
    transport.run(op.Subscribe(ADA, "Junk", on=False))
    flags = [0, Flag.READ, Flag.ANSWERED | Flag.STARRED, Flag.DELETED | Flag.DRAFT]
    words: list[Sequence[str]] = [(), ("todo",), ("$Forwarded", "todo"), ("$Label1",)]
    for number, octets in enumerate(MESSAGES):
        for folder in ("INBOX", "Work/Plans", "x" * 300)[: 1 + number % 3]:
            # Dates that do not follow the order of arrival, some before 1970 and some in the future.
            date = DATE - 40_000_000 * number if number % 4 else 4_000_000_000
            item = op.AppendItem(transport.stage(octets), flags[number % 4], words[number % 4], date)
            transport.run(op.Append(ADA, folder, [item]))


def everything(transport: Transport, address: str) -> dict[str, Any]:
    with transport.reading() as connection:
        account = mailboxes.active_registration(connection, address).id
        folders = mailboxes.folders(connection, account)
        rows = {folder.name: mailboxes.rows(connection, folder.id) for folder in folders}
        subscribed = mailboxes.subscriptions(connection, account)
    return {
        "subscribed": subscribed,
        **{
            name: [
                (transport.content.octets(row.message_id), row.flags, row.keywords, row.internal_date)
                for row in messages
            ]
            for name, messages in rows.items()
        },
    }


def export(transport: Transport, target: Path, form: Format, address: str | None = None) -> Exported:
    return Exporter(transport, str(target), form, address).run()


def bring_in(transport: Transport, path: Path, address: str, folder: str | None = None) -> Imported:
    return Importer(transport, find_source(str(path), address), address, folder).run()


@pytest.mark.parametrize("form", FORMATS)
def test_import_of_an_export_restores_everything(transport: Transport, tmp_path: Path, form: Format) -> None:
    fill(transport)
    before = everything(transport, ADA)
    progress: list[int] = []
    exporter = Exporter(transport, str(tmp_path / "out"), form)
    done = exporter.run(progress.append)
    assert sum(progress) == exporter.size == done.octets
    assert (done.accounts, done.messages, done.notes) == (2, 15, [])

    create_store(str(tmp_path / "other"))
    with Transport.open(tmp_path / "other") as other:
        other.run(op.Register(ADA))
        other.run(op.Subscribe(ADA, "Junk", on=False))
        source = find_source(str(tmp_path / "out"), ADA)
        import_progress: list[int] = []
        imported = Importer(other, source, ADA).run(import_progress.append)
        assert (imported.messages, imported.octets, imported.failed) == (15, done.octets, [])
        assert sum(import_progress) == pytest.approx(source.octets, abs=len(import_progress) * 2)
        assert everything(other, ADA) == before


@pytest.mark.parametrize("form", FORMATS)
def test_account_can_be_imported_below_a_folder_of_another(transport: Transport, tmp_path: Path, form: Format) -> None:
    fill(transport)
    export(transport, tmp_path / "out", form, ADA)
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [ADA]
    bring_in(transport, tmp_path / "out" / ADA, BOB, "From Ada")
    mine, copied = everything(transport, ADA), everything(transport, BOB)
    assert copied["From Ada"] == mine["INBOX"]
    assert copied["From Ada/Work/Plans"] == mine["Work/Plans"]
    assert "From Ada/Work/Plans" in copied["subscribed"]


def test_export_refuses_existing_files_and_the_store(transport: Transport, tmp_path: Path) -> None:
    fill(transport)
    export(transport, tmp_path / "out", "maildir")
    with pytest.raises(MailError, match="not empty"):
        export(transport, tmp_path / "out", "mbox")
    with pytest.raises(MailError, match="outside"):
        export(transport, tmp_path / "store" / "out", "mbox")
    with pytest.raises(MailError) as caught:
        export(transport, tmp_path / "more", "mbox", "nobody@example.test")
    assert caught.value.reason is Reason.NO_SUCH_ADDRESS
    assert not (tmp_path / "more").exists()


def test_exported_files_are_private(transport: Transport, tmp_path: Path) -> None:
    fill(transport)
    export(transport, tmp_path / "out", "maildir")
    for where, _, files in os.walk(tmp_path / "out"):
        assert os.stat(where).st_mode & 0o077 == 0
        assert all(os.stat(os.path.join(where, name)).st_mode & 0o077 == 0 for name in files)


def test_lost_file_does_not_stop_the_export(transport: Transport, tmp_path: Path) -> None:
    fill(transport)
    victim = next((tmp_path / "store").glob("messages/*/*.md"))
    victim.unlink()
    done = export(transport, tmp_path / "out", "maildir")
    assert (done.messages, len(done.notes)) == (14, 1)
    assert victim.stem in done.notes[0]
    assert bring_in(transport, tmp_path / "out" / ADA, BOB).messages == 14


def test_unreadable_message_does_not_stop_the_import(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "in" / "cur").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "in" / "cur" / f"{number}.x.host:2,S").write_bytes(b"Subject: x\n\n%d\n" % number)
    (tmp_path / "in" / "cur" / "0.link.host:2,").symlink_to(tmp_path / "in" / "cur" / "1.x.host:2,S")
    for pipe in ("cur/0.pipe.host:2,", "dovecot-keywords", "dovecot-uidlist", "subscriptions", "markpost-folders.json"):
        os.mkfifo(tmp_path / "in" / pipe)
    done = bring_in(transport, tmp_path / "in", BOB)
    assert done.messages == 3
    assert [label for label, _ in done.failed] == ["cur/0.link.host:2,", "cur/0.pipe.host:2,"]
    assert "symbolic link" in done.failed[0][1]
    assert "not a regular file" in done.failed[1][1]
    assert [row[0] for row in everything(transport, BOB)["INBOX"]] == [
        b"Subject: x\r\n\r\n%d\r\n" % number for number in range(3)
    ]


def test_imported_mail_is_stored_under_its_date(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "x.eml").write_bytes(b"Date: Sat, 14 Nov 2020 10:00:00 +0000\n\nold\n")
    bring_in(transport, tmp_path / "x.eml", BOB)
    assert [path.parent.name for path in (tmp_path / "store").glob("messages/*/*.md")] == ["2020-11-14"]


def test_folders_created_by_an_import_are_subscribed(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "in" / "cur").mkdir(parents=True)
    (tmp_path / "in" / ".New.Deep" / "cur").mkdir(parents=True)
    bring_in(transport, tmp_path / "in", BOB)
    assert "New/Deep" in everything(transport, BOB)["subscribed"]


def test_store_error_ends_the_import_without_partial_messages(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [100, 200, 300, 400]
    items = [Item(str(size), "INBOX", size, lambda size=size: iter([b"x" * size])) for size in sizes]  # type: ignore[misc]
    source = Source(("INBOX",), sum(sizes), lambda: iter(items))
    submit = transport.submit

    def failing(operation: Any) -> Any:
        if isinstance(operation, op.Append) and operation.items[0].staged.content.size == 300:
            return submit(op.Append(BOB, "Nowhere", operation.items))
        return submit(operation)

    monkeypatch.setattr(transport, "submit", failing)
    importer = Importer(transport, source, BOB)
    importer.run()
    assert (importer.done.messages, [label for label, _ in importer.done.failed]) == (3, ["300"])

    def full(operation: Any) -> Any:
        future = submit(operation)
        future.result()
        failed: Any = type(future)()
        failed.set_exception(MailError(Reason.DISK_FULL, "no space"))
        return failed

    monkeypatch.setattr(transport, "submit", full)
    with pytest.raises(MailError) as caught:
        Importer(transport, source, BOB).run()
    assert caught.value.reason is Reason.DISK_FULL
    assert {len(row[0]) for row in everything(transport, BOB)["INBOX"]} <= set(sizes)


def test_import_into_unknown_account_is_refused(transport: Transport) -> None:
    with pytest.raises(MailError) as caught:
        Importer(transport, Source((), 0, lambda: iter(())), "nobody@example.test").run()
    assert caught.value.reason is Reason.NO_SUCH_ADDRESS


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
    fill(transport)
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
        ours = everything(transport, ADA)[folder.replace(".", "/")]
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
    done = bring_in(transport, mail_home / ADA, BOB)
    assert (done.messages, done.failed) == (4, [])
    imported = everything(transport, BOB)

    def octets(subject: str) -> bytes:
        return message.format(subject).replace("\n", "\r\n").encode()

    one, two = imported["INBOX"]
    assert one[:3] == (octets("one"), Flag.READ | Flag.STARRED, "$Forwarded todo")
    assert two[:3] == (octets("two"), 0, "")
    assert abs(one[3] - time.time()) < 600
    assert imported["Entwürfe"][0][:2] == (octets("drei"), Flag.DRAFT)
    assert imported["Work/Plans"][0][0] == octets("four")
    assert {"Entwürfe", "Work/Plans"} <= set(imported["subscribed"])
