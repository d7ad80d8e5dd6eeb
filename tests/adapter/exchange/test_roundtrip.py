"""Export and import: octets, flags, keywords, folders, subscriptions, order and dates are preserved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.exchange.export import Exporter, Format
from adapter.exchange.import_ import Importer, find_source
from adapter.exchange.model import Item, Source
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from protocol.errors import MailError, Reason
from tests.support.mail.exchanges import account_contents, export, fill_folders, import_mail

ADA, BOB = "ada@example.test", "bob@example.test"
FORMATS: list[Format] = ["maildir", "mbox"]


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    create_store(str(tmp_path / "store"))
    with Transport.open(tmp_path / "store") as opened:
        for address in (ADA, BOB):
            opened.run(op.Register(address))
        yield opened


@pytest.mark.parametrize("form", FORMATS)
def test_import_of_an_export_restores_everything(transport: Transport, tmp_path: Path, form: Format) -> None:
    fill_folders(transport)
    before = account_contents(transport, ADA)
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
        assert account_contents(other, ADA) == before


@pytest.mark.parametrize("form", FORMATS)
def test_account_can_be_imported_below_a_folder_of_another(transport: Transport, tmp_path: Path, form: Format) -> None:
    fill_folders(transport)
    export(transport, tmp_path / "out", form, ADA)
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [ADA]
    import_mail(transport, tmp_path / "out" / ADA, BOB, "From Ada")
    mine, copied = account_contents(transport, ADA), account_contents(transport, BOB)
    assert copied["From Ada"] == mine["INBOX"]
    assert copied["From Ada/Work/Plans"] == mine["Work/Plans"]
    assert "From Ada/Work/Plans" in copied["subscribed"]


def test_export_refuses_existing_files_and_the_store(transport: Transport, tmp_path: Path) -> None:
    fill_folders(transport)
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
    fill_folders(transport)
    export(transport, tmp_path / "out", "maildir")
    for where, _, files in os.walk(tmp_path / "out"):
        assert os.stat(where).st_mode & 0o077 == 0
        assert all(os.stat(os.path.join(where, name)).st_mode & 0o077 == 0 for name in files)


def test_lost_file_does_not_stop_the_export(transport: Transport, tmp_path: Path) -> None:
    fill_folders(transport)
    victim = next((tmp_path / "store").glob("messages/*/*.md"))
    victim.unlink()
    done = export(transport, tmp_path / "out", "maildir")
    assert (done.messages, len(done.notes)) == (14, 1)
    assert victim.stem in done.notes[0]
    assert import_mail(transport, tmp_path / "out" / ADA, BOB).messages == 14


def test_unreadable_message_does_not_stop_the_import(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "in" / "cur").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "in" / "cur" / f"{number}.x.host:2,S").write_bytes(b"Subject: x\n\n%d\n" % number)
    (tmp_path / "in" / "cur" / "0.link.host:2,").symlink_to(tmp_path / "in" / "cur" / "1.x.host:2,S")
    for pipe in ("cur/0.pipe.host:2,", "dovecot-keywords", "dovecot-uidlist", "subscriptions", "markpost-folders.json"):
        os.mkfifo(tmp_path / "in" / pipe)
    done = import_mail(transport, tmp_path / "in", BOB)
    assert done.messages == 3
    assert [label for label, _ in done.failed] == ["cur/0.link.host:2,", "cur/0.pipe.host:2,"]
    assert "symbolic link" in done.failed[0][1]
    assert "not a regular file" in done.failed[1][1]
    assert [row[0] for row in account_contents(transport, BOB)["INBOX"]] == [
        b"Subject: x\r\n\r\n%d\r\n" % number for number in range(3)
    ]


def test_imported_mail_is_stored_under_its_date(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "x.eml").write_bytes(b"Date: Sat, 14 Nov 2020 10:00:00 +0000\n\nold\n")
    import_mail(transport, tmp_path / "x.eml", BOB)
    assert [path.parent.name for path in (tmp_path / "store").glob("messages/*/*.md")] == ["2020-11-14"]


def test_folders_created_by_an_import_are_subscribed(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "in" / "cur").mkdir(parents=True)
    (tmp_path / "in" / ".New.Deep" / "cur").mkdir(parents=True)
    import_mail(transport, tmp_path / "in", BOB)
    assert "New/Deep" in account_contents(transport, BOB)["subscribed"]


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
    assert {len(row[0]) for row in account_contents(transport, BOB)["INBOX"]} <= set(sizes)


def test_import_into_unknown_account_is_refused(transport: Transport) -> None:
    with pytest.raises(MailError) as caught:
        Importer(transport, Source((), 0, lambda: iter(())), "nobody@example.test").run()
    assert caught.value.reason is Reason.NO_SUCH_ADDRESS
