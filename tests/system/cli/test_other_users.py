"""Commands of a user that the store does not belong to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.cli import main
from tests.support.processes.other_users import UNPRIVILEGED_UID, as_unprivileged, give_to_unprivileged, only_for_root
from tests.support.stores import ADA, new_store, tree

pytestmark = only_for_root

DELIVERY = ("deliver", "--from", ADA, "--to", ADA, "-")
CONFIRMED = ("--i-know-what-im-doing", "ALL-SERVICES-ARE-OFFLINE")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of the user ``nobody``."""
    with new_store(tmp_path / "store", ADA):
        pass
    assert _run(tmp_path / "store", "account", "passwd", ADA, "--password-stdin").exit_code == 0
    give_to_unprivileged(tmp_path / "store")
    return tmp_path / "store"


def _run(root: Path, *command: str) -> Result:
    return CliRunner().invoke(main, [*command, "--root", str(root)], input="secret\n")


@pytest.mark.parametrize(
    "command",
    [
        ("account", "add", "eve@example.test", "--password-stdin"),
        ("account", "passwd", ADA, "--password-stdin"),
        ("account", "list"),
        ("backup", "backups"),
        DELIVERY,
        ("maintenance", "on"),
        ("queue", "list"),
        ("repair", *CONFIRMED),
        ("serve", "--imap", "127.0.0.1:0"),
        ("serve", "--imap", "127.0.0.1:0", "--workers", "2"),
        ("snapshot",),
    ],
)
def test_root_leaves_no_files_in_the_store_of_another_user(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tree(root)
    refused = _run(root, *command)
    assert refused.exit_code == 75
    assert refused.output == (
        f"markpost: {root} belongs to user nobody: run this as that user (runuser -u nobody -- markpost …)\n"
    )
    assert tree(root) == before
    assert _of_root(root) == []


def _of_root(root: Path) -> list[Path]:
    return [path for path in (root, *root.rglob("*")) if path.lstat().st_uid == 0]


def test_root_creates_no_store_in_the_directory_of_another_user(tmp_path: Path) -> None:
    with new_store(tmp_path / "own", ADA):
        pass
    assert _run(tmp_path / "own", "backup", str(tmp_path / "backups")).exit_code == 0
    place = tmp_path / "place"
    place.mkdir()
    os.chown(place, 4711, 4712)  # a user without a name
    for command in (("init",), ("restore", str(tmp_path / "backups"))):
        refused = _run(place, *command)
        assert "belongs to user 4711: run this as that user (setpriv --reuid=4711 --regid=4712 " in refused.output
        assert refused.exit_code == 75
    assert not any(place.iterdir())


def test_root_keeps_using_its_own_store_in_the_directory_of_another_user(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA):
        pass
    os.chown(tmp_path / "store", UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    assert _run(tmp_path / "store", "account", "add", "eve@example.test").exit_code == 0


def test_root_may_run_read_only_commands(root: Path) -> None:
    assert "bad" not in _run(root, "doctor").output
    assert _run(root, "maintenance", "status").output == "online\n"
    assert _of_root(root) == []


@pytest.mark.parametrize("name", ["journal/0000000000000001.jsonl", "index.sqlite"])
def test_file_of_root_is_reported_in_one_line(root: Path, name: str) -> None:
    os.chown(root / name, 0, 0)
    (root / name).chmod(0o600)

    def deliver(store: Path) -> str:
        failed = _run(store, *DELIVERY)
        return f"{failed.exit_code} {failed.output}"

    line = "Permission denied; it must belong to the store's user: run markpost doctor"
    assert as_unprivileged(root, deliver) == f"75 markpost: {os.path.basename(name)}: {line}\n"
    output = as_unprivileged(root, lambda store: _run(store, "doctor").output)
    assert f"{root / name} do not belong to user {UNPRIVILEGED_UID}" in output


@pytest.mark.parametrize("name", ["mailboxes/ada@example.test", "messages", "credentials/passwd"])
def test_doctor_reports_files_of_root(root: Path, name: str) -> None:
    os.chown(root / name, 0, 0)
    assert f"{root / name} do not belong to user {UNPRIVILEGED_UID}" in _run(root, "doctor").output


def test_check_of_a_read_only_store_names_the_scratch_option(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    output = as_unprivileged(root, lambda store: _run(store, "check").output)
    assert output == (
        f"markpost: {root} belongs to user root and cannot be written: Permission denied;"
        " use --scratch DIR with a writable directory for temporary files\n"
    )
