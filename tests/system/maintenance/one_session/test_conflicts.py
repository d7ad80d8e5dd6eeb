"""Conflicts: open until a person decides them; and incomplete accounts."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from adapter.accounts.credentials import Credentials
from adapter.cli import main
from adapter.maintenance import pipeline
from adapter.maintenance.findings import Finding
from adapter.maintenance.repair import decisions
from adapter.maintenance.repair.decisions import BadDecision
from adapter.store import folder_identity, layout, names
from adapter.store.queries.mailboxes import Folder
from adapter.transport import operations as op
from adapter.transport.ids import folder_label
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, folder, id_of, new_store, placed, tree
from tests.system.maintenance.lab import lab
from tests.system.maintenance.lab.victims import records, write_records

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine

CAROL, DAN = "carol@example.test", "dan@example.test"
_PATH_ID, _PATH_VALIDITY = 0xABCDEF, 77


class Ghost(NamedTuple):
    """A folder with one id in the index and another at its path, each with its own mail."""

    row: Folder
    of_row: list[str]  # messages
    of_path: str
    path_id: int

    @property
    def subject(self) -> str:
        return f"folder-two-ids:{folder_label(self.row.id)}"


def _ghost(transport: Transport, root: Path, name: str, number: int) -> Ghost:
    transport.run(op.CreateFolder(ADA, name))
    own = append(transport, name, message(f"{name} 1"), message(f"{name} 2"), flags=4, keywords=("kept",))
    with transport.reading() as connection:
        cursor = connection.execute("SELECT message_id FROM mailbox_projections WHERE folder_id = ?", (own[0].folder,))
        of_row = [row[0] for row in cursor.fetchall()]
    other = deliver(transport, BOB, octets=message(f"Only the path of {name} shows it", to=BOB)).message_id
    row = folder(transport, name)
    where = lab.path(root, *layout.folder_directory(row.directory, name))
    (where / layout.IDENTITY_FILE).unlink()
    identity = folder_identity.Identity(transport.store, _PATH_ID + number, row.registration, _PATH_VALIDITY, "")
    (where / layout.IDENTITY_FILE).write_bytes(identity.encode())
    (where / layout.projection_name(1, other)).symlink_to(layout.projection_target(other))
    return Ghost(row, of_row, other, _PATH_ID + number)


def _undecidable(root: Path) -> tuple[Ghost, Ghost]:
    """Two ghosts, two passwords of removed addresses, and a journal that cannot decide."""
    with new_store(root, ADA, BOB, CAROL, DAN) as transport, Credentials.open(transport) as credentials:
        ghosts = _ghost(transport, root, "One", 1), _ghost(transport, root, "Two", 2)
        for address in (CAROL, DAN):
            credentials.set_password(address, "secret")
        transport.run(op.Deregister(CAROL, "purge"))
        transport.run(op.Deregister(DAN, "stash"))
        transport.run(op.Subscribe(ADA, "x"))
    segment = sorted(lab.path(root, *layout.JOURNAL).glob("*.jsonl"))[-1]
    lines = records(segment)
    damaged = next(number for number, line in enumerate(lines) if b'"op":"deregister"' in line)
    write_records(segment, [*lines[:damaged], lines[damaged][:50] + b"\n", *lines[damaged + 1 :]])
    return ghosts


def test_conflicts_stay_open_until_they_are_decided(tmp_path: Path) -> None:
    root = tmp_path / "store"
    one, two = _undecidable(root)
    foretold = lab.check(root)
    first = lab.repair(root)
    assert first.kinds == {"journal-damaged": 1, "folder-two-ids": 2, "credentials-orphan": 2}
    assert first.report["severities"]["conflict"] == 4
    assert first.report["verified"], "only the conflicts remain"
    assert _open(foretold) == _open(first)
    offered = {item["subject"]: item["decide"] for item in _open(first)}
    assert f"--decide credentials-orphan:{CAROL}=register" in offered[CAROL]
    assert f"--decide {two.subject}={folder_label(two.path_id)}" in offered[f"{ADA}/Two"]

    before = tree(root)
    with pytest.raises(BadDecision, match="choose mbx-"):
        lab.check(root, decisions={one.subject: "mbx-000000000000"})
    some = lab.check(
        root, decisions={one.subject: folder_label(one.path_id), f"credentials-orphan:{CAROL}": "register"}
    )
    assert [item["subject"] for item in _open(some)] == [f"{ADA}/Two", DAN]
    assert tree(root) == before
    with pytest.raises(BadDecision, match="choose mbx-"):
        lab.repair(root, {one.subject: "mbx-000000000000"})
    assert {key: value for key, value in tree(root).items() if key not in before.keys() ^ tree(root).keys()} == before

    decided = lab.repair(
        root,
        {
            one.subject: folder_label(one.row.id),
            two.subject: folder_label(two.path_id),
            f"credentials-orphan:{CAROL}": "register",
            f"credentials-orphan:{DAN}": "remove",
        },
    )
    assert decided.kinds == {"folder-two-ids": 2, "credentials-orphan": 2}
    assert decided.report["severities"]["conflict"] == 0
    assert decided.report["verified"], decided.report.get("left")

    seen = lab.seen(root)
    _is_merged(seen[ADA, "One"], one, {1: one.of_row[0], 2: one.of_row[1], 3: one.of_path}, one.row.uidvalidity)
    _is_merged(seen[ADA, "Two"], two, {1: two.of_path, 2: two.of_row[1], 3: two.of_row[0]}, _PATH_VALIDITY)
    assert (CAROL, "INBOX") in seen
    with Credentials.open(root) as credentials:
        assert credentials.list() == [CAROL]
    aside = [each for each in lab.path(root, *layout.QUARANTINE).iterdir() if each.name.endswith("-passwd")]
    assert [(DAN in each.read_text(), each.stat().st_mode & 0o777) for each in aside] == [(True, 0o600)]

    lab.path(root, layout.INDEX_FILE).unlink()  # the decisions are in the journal
    assert lab.repair(root).kinds == {"index-missing": 1}
    assert lab.seen(root) == seen


def _open(result: lab.Result) -> list[dict[str, Any]]:
    """The open conflicts of a report, sorted by subject."""
    conflicts = [item for item in result.report["items"] if item["severity"] == "conflict"]
    return sorted(conflicts, key=lambda item: str(item["subject"]))


def _is_merged(shown: lab.Folder, ghost: Ghost, expected: dict[int, str], uidvalidity: int) -> None:
    validity, _, _, _ = shown[0]
    assert validity == f"{uidvalidity} 4"
    assert {uid: row[0] for uid, row in shown.items() if uid} == expected
    for uid, (message_id, flags, keywords, _) in shown.items():
        if uid:
            assert (flags, keywords) == ((4, "kept") if message_id in ghost.of_row else (0, ""))


def test_moved_directories_return_to_their_folders(tmp_path: Path) -> None:
    """Two swapped directories and one renamed by hand: the journal decides where each belongs."""
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        for number, name in enumerate(("Left", "Right", "Moved"), 1):
            transport.run(op.CreateFolder(ADA, name))
            append(transport, name, *(message(f"{name} {each}") for each in range(number)), flags=1)
    before, links = lab.seen(root), lab.links(root)
    left, right, aside = (_mailbox(root, ADA) / name for name in ("Left", "Right", "aside"))
    left.rename(aside)
    right.rename(left)
    aside.rename(right)
    (_mailbox(root, ADA) / "Moved").rename(_mailbox(root, ADA) / "Elsewhere")
    repaired = lab.repair(root)
    assert repaired.kinds == {
        "folder-two-ids": 2,
        "projection-missing": 3,
        "folder-row-without-path": 1,
        "folder-id-at-two-paths": 1,
    }
    assert repaired.report["verified"], repaired.report.get("left")
    assert lab.seen(root) == before
    assert lab.links(root) == links


def test_decision_without_a_finding_is_refused() -> None:
    orphan = Finding("credentials-orphan", CAROL)
    ghost = Finding("folder-two-ids", "ada/x", folder=5)  # the other id belongs to a folder elsewhere

    def findings(kinds: set[str]) -> list[Finding]:
        return [each for each in (orphan, ghost) if each.kind in kinds]

    decisions.check(
        {f"credentials-orphan:{CAROL}": "remove", "folder-two-ids:mbx-000000000005": "mbx-000000000005"}, findings
    )
    for subject, choice, answer in (
        (f"credentials-orphan:{CAROL}", "perhaps", "choose register or remove"),
        ("credentials-orphan:nobody@x.test", "remove", "no such finding"),
        ("folder-two-ids:mbx-000000000005", "mbx-000000000006", "choose mbx-000000000005"),
    ):
        with pytest.raises(BadDecision, match=answer):
            decisions.check({subject: choice}, findings)


@pytest.mark.parametrize(
    ("text", "status", "line"),
    [
        ("credentials-orphan", 2, "use KIND:ID=CHOICE"),
        ("credentials-orphan:=remove", 2, "use KIND:ID=CHOICE"),
        ("message-lost:x=y", 2, "use one of credentials-orphan, folder-two-ids"),
        (
            "credentials-orphan:nobody@x.test=remove",
            3,
            "no such finding (markpost check lists them); nothing was repaired",
        ),
    ],
)
def test_invalid_decision_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int, line: str
) -> None:
    def repair(self: pipeline.Pipeline, held: object, report: object, chosen: dict[str, str]) -> None:
        decisions.check(chosen, lambda kinds: [])

    monkeypatch.setattr(pipeline.Pipeline, "repair", repair)
    with new_store(tmp_path / "store"):
        pass
    options = [
        "--root",
        str(tmp_path / "store"),
        "--i-know-what-im-doing",
        "ALL-SERVICES-ARE-OFFLINE",
        "--decide",
        text,
    ]
    result = CliRunner().invoke(main, ["repair", *options])
    assert result.exit_code == status
    assert line in result.output
    assert "Traceback" not in result.output


def _half_made(root: Path) -> Counter[str]:
    """Create an account for every incomplete combination of registration, directory and password."""
    expected: Counter[str] = Counter()
    with new_store(root, ADA, "row@x.test", "row-password@x.test", "index@x.test") as transport:
        message_id = deliver(transport, ADA, "row@x.test", octets=message("Hello")).message_id
        with Credentials.open(transport) as credentials:
            for kind in ("row-password", "directory-password", "folders-password", "password"):
                credentials.set_password(f"{kind}@x.test", "secret")
    for kind in ("row", "row-password"):
        shutil.rmtree(_mailbox(root, f"{kind}@x.test"))
        expected += Counter({"registration-directory-missing": 1, "folder-row-without-path": 6})
    for kind in ("directory", "directory-password"):
        _mailbox(root, f"{kind}@x.test").mkdir()
        expected["registration-directory-orphan"] += 1
    for number, kind in enumerate(("folders", "folders-password", "Capital")):
        for offset, name in enumerate(("INBOX", "Own") if kind != "folders-password" else ("Sent", "Own")):
            place = _mailbox(root, f"{kind}@x.test") / names.folder_entry(name)
            place.mkdir(parents=True)
            identity = folder_identity.Identity(
                id_of(root), 1000 + 10 * number + offset, f"reg-{number:016x}", 7 + number, ""
            )
            (place / layout.IDENTITY_FILE).write_bytes(identity.encode())
            (place / layout.projection_name(5, message_id)).symlink_to(layout.projection_target(message_id))
        expected += Counter({"registration-missing": 1, "folder-path-without-row": 2})
    expected["credentials-orphan"] += 3  # directory, folders, and alone
    connection = lab.index(root)
    connection.execute("DELETE FROM mailbox_registrations WHERE address = 'index@x.test'")
    connection.close()
    expected["registration-missing"] += 1
    return expected


def _mailbox(root: Path, address: str) -> Path:
    return lab.path(root, *layout.mailbox_directory(names.address_entry(address)))


def test_incomplete_accounts_are_repaired(tmp_path: Path) -> None:
    root = tmp_path / "store"
    expected = _half_made(root)
    repaired = lab.repair(root)
    assert repaired.kinds == expected
    assert repaired.report["severities"]["conflict"] == 0
    assert repaired.report["verified"], repaired.report.get("left")
    whole = ["row", "row-password", "index", "directory-password", "folders", "folders-password", "password"]
    addresses = [f"{kind}@x.test" for kind in whole]
    with Transport.open(root) as transport:
        delivery = deliver(transport, *addresses, octets=message("Is anybody there?"))
        assert {placed(delivery, address).folder_name for address in addresses} == {"INBOX"}
        assert sorted(name for owner, name in lab.seen(root) if owner == "folders@x.test") == sorted(
            [*names.STANDARD_FOLDERS, "Own"]
        )
    seen = lab.seen(root)
    # Only the UID mark of the identity shows which UIDs were assigned: new mail gets a UID beyond it.
    assert seen["folders@x.test", "INBOX"].keys() == {0, 5, 1 + folder_identity.UID_STEP}
    assert seen["folders@x.test", "INBOX"][0][0] == f"7 {2 + folder_identity.UID_STEP}"
    assert seen["folders-password@x.test", "Own"].keys() == {0, 5}
    assert ("directory@x.test", "INBOX") not in seen
    stashed = [name for owner, name in seen if owner == "reg-0000000000000002"]
    assert sorted(stashed) == ["INBOX", "Own"], "a directory that no address can have is kept, with its mail"
