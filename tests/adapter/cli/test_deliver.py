"""``markpost deliver``: content, recipients, and the exit status that a mail server acts on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.api import Store
from adapter.cli import main
from adapter.transport import operations as op
from protocol.errors import MailError, Reason

ADA, BOB = "ada@example.test", "bob@example.test"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.create(tmp_path / "store") as store:
        store.add_mailbox(ADA)
        store.add_mailbox(BOB)
    return tmp_path / "store"


def deliver(root: Path, file: str, *to: str, sender: str = ADA, stdin: bytes = b"", status: int = 0) -> Result:
    arguments = ["deliver", "--root", str(root), "--from", sender, file]
    for address in to or (BOB,):
        arguments += ["--to", address]
    result = CliRunner().invoke(main, arguments, input=stdin)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result


def test_message_is_delivered_unchanged_but_for_line_ends(root: Path, tmp_path: Path) -> None:
    (tmp_path / "x.eml").write_bytes(b"Subject: x\nTo: someone\r\n\n\xff bare LF\n..\nno end")
    printed = deliver(root, str(tmp_path / "x.eml"), BOB, ADA).stdout.strip()
    with Store.open(root) as store:
        [delivered] = store.mailbox(BOB).messages()
        assert delivered.id == printed
        mail = store.mailbox(BOB).read(delivered)
        assert mail.octets() == b"Subject: x\r\nTo: someone\r\n\r\n\xff bare LF\r\n..\r\nno end"
        assert [each.id for each in store.mailbox(ADA).messages()] == [printed]
        [sent] = store.mailbox(ADA).messages("Sent")
        assert sent.id == printed
        assert sent.read


def test_markdown_is_composed_into_a_message(root: Path, tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("---\nsubject: Grüße\ncc: Ada <ada@example.test>\n---\n\n# Hi\n\n*Bob*\n")
    deliver(root, str(tmp_path / "note.md"), BOB)
    with Store.open(root) as store:
        mail = store.mailbox(BOB).read(store.mailbox(BOB).messages()[0])
        assert (mail.subject, mail.text) == ("Grüße", "# Hi\n\n*Bob*\n")
        assert mail.sender is not None
        assert mail.sender.address == ADA
        assert mail.message_id.endswith("@example.test>")
        assert b"<em>Bob</em>" in mail.octets()


@pytest.mark.parametrize(
    ("stdin", "subject"),
    [
        (b"Subject: a message\n\ntext\n", "a message"),
        (b"Received: from x\r\n\tby y\r\nSubject: a message\r\n\r\ntext\r\n", "a message"),
        (b"# A heading\n\ntext\n", "A heading"),
        (b"---\nsubject: in front\n---\ntext\n", "in front"),
        (b"Just text\n", ""),
        (b"", ""),
    ],
)
def test_format_of_standard_input_is_detected(root: Path, stdin: bytes, subject: str) -> None:
    deliver(root, "-", stdin=stdin)
    with Store.open(root) as store:
        [delivered] = store.mailbox(BOB).messages()
        assert delivered.subject == subject


def test_large_message_is_delivered(root: Path) -> None:
    octets = b"Subject: large\n\n" + b"line of text\r\n" * 500_000
    deliver(root, "-", stdin=octets)
    with Store.open(root) as store:
        mail = store.mailbox(BOB).read(store.mailbox(BOB).messages()[0])
        assert mail.octets() == octets.replace(b"large\n\n", b"large\r\n\r\n")


def test_sender_elsewhere_and_null_sender_are_accepted(root: Path) -> None:
    for sender in ("someone@elsewhere.test", "", "<>"):
        deliver(root, "-", sender=sender, stdin=b"Subject: x\n\n")
    with Store.open(root) as store:
        assert len(store.mailbox(BOB).messages()) == 3
        assert store.mailbox(ADA).messages("Sent") == []
    assert "--from" in deliver(root, "-", sender="", stdin=b"# Markdown\n", status=65).stderr


def test_failures_of_some_recipients_are_reported(root: Path) -> None:
    with Store.open(root) as store:
        store.add_mailbox("old@example.test")
        store.transport.run(op.Deregister("old@example.test"))
    result = deliver(
        root, "-", "nobody@example.test", BOB, "old@example.test", BOB.upper(), stdin=b"Subject: x\n\n", status=67
    )
    assert result.stdout.startswith("msg-")
    assert [line.split(":")[1].strip() for line in result.stderr.splitlines()] == [
        "nobody@example.test",
        "old@example.test",
    ]
    with Store.open(root) as store:
        assert len(store.mailbox(BOB).messages()) == 1


def test_unknown_recipients_only_deliver_nothing(root: Path) -> None:
    result = deliver(root, "-", "nobody@example.test", stdin=b"Subject: x\n\n", status=67)
    assert result.stdout == ""
    with Store.open(root) as store:
        assert store.mailbox(ADA).messages("Sent") == []
    assert list((root / "messages").glob("*/*")) == []


def test_one_temporary_failure_makes_the_status_temporary(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = op.Deliver.plan

    def failing(self: op.Deliver, context: object) -> op.Delivery:
        done = plan(self, context)  # type: ignore[arg-type]
        return op.Delivery(done.message_id, {**done.recipients, ADA: MailError(Reason.OVER_QUOTA_SOFT, ADA)}, None)

    monkeypatch.setattr(op.Deliver, "plan", failing)
    result = deliver(root, "-", "nobody@example.test", ADA, BOB, stdin=b"Subject: x\n\n", status=75)
    assert result.stdout.startswith("msg-")
    assert "mailbox is full" in result.stderr


def test_full_disk_is_temporary(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(action: str, fd: int, name: str) -> None:
        if action == "append":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("adapter.store.disk.on_step", full)
    result = deliver(root, "-", stdin=b"Subject: x\n\n", status=75)
    assert result.stdout == ""
    assert "free space" in result.stderr


@pytest.mark.parametrize(
    ("to", "file", "status"),
    [("nobody", os.devnull, 65), (BOB, "/nonexistent/x.eml", 66), (BOB, "/", 66)],
)
def test_wrong_arguments_have_their_status(root: Path, to: str, file: str, status: int) -> None:
    result = deliver(root, file, to, status=status)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", [b"---\nsubject: [\n---\nx", b"---\nto: nonsense\n---\nx", b"caf\xe9"])
def test_invalid_markdown_is_a_data_error(root: Path, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "x.md").write_bytes(text)
    result = deliver(root, str(tmp_path / "x.md"), status=65)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1


def test_unknown_front_matter_key_is_reported(root: Path, tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("---\nsubjct: News\n---\nx")
    assert deliver(root, str(tmp_path / "x.md"), status=65).stderr == (
        "markpost: front matter: unknown key 'subjct';"
        " use one of from, to, cc, reply_to, subject, in_reply_to, references\n"
    )
    with Store.open(root) as store:
        assert store.mailbox(BOB).messages() == []


def test_exported_message_is_delivered_unchanged(root: Path, tmp_path: Path) -> None:
    with Store.open(root) as store:
        store.mailbox(ADA).send("text", to=BOB, attachments=[("plan.txt", b"plan")])
        mail = store.mailbox(BOB).read(store.mailbox(BOB).messages()[0])
        octets = mail.octets()
        (tmp_path / "stored.md").write_bytes(mail.file())
    assert "markpost export" in deliver(root, str(tmp_path / "stored.md"), status=65).stderr
    export = ["export", "--root", str(root), "--format", "maildir", "--to", str(tmp_path / "out"), "--address", BOB]
    assert CliRunner().invoke(main, export).exit_code == 0
    [exported] = [path for new in ("new", "cur") for path in (tmp_path / "out" / BOB / new).iterdir()]
    deliver(root, str(exported))
    with Store.open(root) as store:
        assert store.mailbox(BOB).read(store.mailbox(BOB).messages()[0]).octets() == octets


def test_too_large_markdown_is_a_data_error(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapter.cli.deliver._MAX_MARKDOWN_BYTES", 1 << 20)
    (tmp_path / "x.md").write_bytes(b"x" * (1 << 20) + b"x")
    deliver(root, str(tmp_path / "x.md"), status=65)
