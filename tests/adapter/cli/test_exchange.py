"""``markpost export`` and ``markpost import`` as commands."""

from __future__ import annotations

import mailbox
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.api import Store
from adapter.cli import main
from tests.support.mail.api_stores import ADA, BOB


def run(root: Path, *arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, [*arguments, "--root", str(root)])
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("form", ["maildir", "mbox"])
def test_export_and_import_of_an_account(exchange_root: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    exported = run(exchange_root, "export", "--format", form, "--to", str(out))
    assert exported.stdout.startswith("exported 6 messages (")
    assert "of 2 accounts" in exported.stdout
    with Store.open(exchange_root) as store:
        store.add_mailbox("eve@example.test")
        bob = store.mailbox(BOB)
        before = {
            folder.name: [(each.subject, each.flags, each.date) for each in bob.messages(folder.name)]
            for folder in bob.folders()
        }
    imported = run(exchange_root, "import", "--from", str(out / BOB), "--address", "eve@example.test")
    assert imported.stdout.startswith("imported 3 messages (")
    assert "into 2 folders of eve@example.test" in imported.stdout
    assert imported.stderr == ""
    with Store.open(exchange_root) as store:
        eve = store.mailbox("eve@example.test")
        assert before == {
            folder.name: [(each.subject, each.flags, each.date) for each in eve.messages(folder.name)]
            for folder in eve.folders()
        }


def test_other_programs_read_the_export(exchange_root: Path, tmp_path: Path) -> None:
    for form in ("maildir", "mbox"):
        run(exchange_root, "export", "--format", form, "--to", str(tmp_path / form), "--address", BOB)
    maildir = mailbox.Maildir(tmp_path / "maildir" / BOB, create=False)
    assert sorted(str(each["subject"]) for each in maildir) == ["subject 0", "subject 1"]
    assert "Work.Plans" in maildir.list_folders()
    [plan] = maildir.get_folder("Work.Plans")
    assert "S" in plan.get_flags()
    inbox = mailbox.mbox(tmp_path / "mbox" / BOB / "inbox.mbox", create=False)
    assert [str(each["subject"]) for each in inbox] == ["subject 0", "subject 1"]
    [plan_again] = mailbox.mbox(tmp_path / "mbox" / BOB / "Work~Plans.mbox", create=False)
    assert plan_again.get_flags() == "RO"


def test_mail_written_by_python_is_imported(exchange_root: Path, tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "old.mbox")
    message = mailbox.mboxMessage("Subject: From Python\n\nFrom here\n")
    message.set_flags("RF")
    box.add(message)
    box.close()
    run(exchange_root, "import", "--from", str(tmp_path / "old.mbox"), "--address", ADA, "--folder", "Old/Mail")
    with Store.open(exchange_root) as store:
        ada = store.mailbox(ADA)
        [imported] = ada.messages("Old/Mail")
        assert (imported.subject, imported.flags) == ("From Python", frozenset({"read", "starred"}))
        assert ada.read(imported).octets() == b"Subject: From Python\r\n\r\nFrom here\r\n"


def test_unreadable_messages_of_a_source_are_reported(exchange_root: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "cur").mkdir(parents=True)
    (tmp_path / "in" / "cur" / "1.a.host:2,").write_bytes(b"Subject: fine\n\n")
    (tmp_path / "in" / "cur" / "2.b.host:2,").symlink_to("nowhere")
    result = run(exchange_root, "import", "--from", str(tmp_path / "in"), "--address", ADA, status=65)
    assert result.stdout.startswith("imported 1 message (")
    assert "2.b.host" in result.stderr
    assert "1 message of" in result.stderr


def test_wrong_arguments_are_reported_in_one_line(exchange_root: Path, tmp_path: Path) -> None:
    def fails(status: int, *arguments: str) -> str:
        result = run(exchange_root, *arguments, status=status)
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        return result.stderr

    assert "not a Maildir" in fails(66, "import", "--from", str(tmp_path), "--address", ADA)
    assert "No such file" in fails(66, "import", "--from", str(tmp_path / "missing"), "--address", ADA)
    (tmp_path / "x.eml").write_bytes(b"Subject: x\n\n")
    unknown = ["import", "--from", str(tmp_path / "x.eml"), "--address", "nobody@example.test"]
    assert "account add" in fails(67, *unknown)
    assert "no such mailbox here" in fails(
        67, "export", "--format", "mbox", "--to", str(tmp_path / "o"), "--address", "nobody@example.test"
    )
    run(exchange_root, "export", "--format", "mbox", "--to", str(tmp_path / "o"))
    assert "not empty" in fails(77, "export", "--format", "mbox", "--to", str(tmp_path / "o"))
    assert "outside" in fails(77, "export", "--format", "mbox", "--to", str(exchange_root / "o"))
