"""``markpost init``, ``account`` and ``snapshot``, and the failures that all commands share."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from adapter.accounts.credentials import Credentials
from adapter.cli import main
from adapter.store import locks
from adapter.store.disk import Directories
from adapter.store.effects import OPERATOR, Actor
from adapter.store.journal import Journal
from adapter.transport.transport import Transport
from tests.support.mail.command_line import Cli

ADA, BOB = "ada@example.test", "bob@example.test"
SECRET = "correct horse"


def test_init_creates_a_store_in_an_empty_directory_only(tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    result = CliRunner().invoke(main, ["init", "--root", str(root)])
    assert result.exit_code == 0
    assert "account add" in result.stdout
    Transport.open(root).close()
    again = CliRunner().invoke(main, ["init", "--root", str(root)])
    assert again.exit_code == 1
    assert again.stderr.count("\n") == 1
    assert "is not empty" in again.stderr


def test_account_add_sets_the_password(cli: Cli) -> None:
    assert "password set" in cli("account", "add", "Ada@Example.Test", "--password-stdin", stdin=f"{SECRET}\r\n").stdout
    with Credentials.open(cli.root) as credentials:
        assert credentials.verify(ADA, SECRET)
    described = cli.accounts()[ADA]
    assert (described["status"], described["password"], described["messages"]) == ("active", True, 0)
    assert SECRET not in cli("account", "list").output


def test_account_without_password_is_reported(cli: Cli) -> None:
    assert "without a password" in cli("account", "add", ADA).stdout
    assert "no password" in cli("account", "list").stdout
    assert cli.accounts()[ADA]["password"] is False


@pytest.mark.parametrize("address", ["ada@@example.test", "ada lovelace@example.test", "ada@exa mple.test"])
def test_invalid_address_is_not_registered(cli: Cli, address: str) -> None:
    assert cli("account", "add", address, status=1).stderr.count("\n") == 1
    assert cli.accounts() == {}
    cli("account", "add", '"ada lovelace"@example.test')
    assert list(cli.accounts()) == ["ada lovelace@example.test"]


@pytest.mark.parametrize("stdin", ["", "\n", b"\xff\xfe\n", "tab\x07\n"])
def test_a_bad_password_registers_nothing(cli: Cli, stdin: str | bytes) -> None:
    result = CliRunner().invoke(main, ["account", "add", ADA, "--password-stdin", "--root", str(cli.root)], input=stdin)
    assert result.exit_code != 0
    assert "password" in result.stderr
    assert result.stderr.count("\n") == 1
    assert cli.accounts() == {}


def test_modes_of_account_add(cli: Cli) -> None:
    cli("account", "add", ADA, "--password-stdin", stdin=SECRET)
    refused = cli("account", "add", ADA, status=1)
    assert "already registered" in refused.stderr
    assert "account passwd" in refused.stderr
    assert "keeps its password" in cli("account", "add", ADA, "--mode", "force").stdout
    cli("deliver", "--from", "x@y.test", "--to", ADA, "-", stdin="Subject: x\n\nx\n")
    cli("account", "add", ADA, "--mode", "stash", "--password-stdin", stdin="another")
    listed = json.loads(cli("account", "list", "--json").stdout)
    assert sorted((each["status"], each["messages"]) for each in listed) == [("active", 0), ("stashed", 1)]


def test_passwd_replaces_the_password(cli: Cli) -> None:
    cli("account", "add", ADA)
    assert "--password-stdin" in cli("account", "passwd", ADA, status=1).stderr
    cli("account", "passwd", ADA, "--password-stdin", stdin="first")
    cli("account", "passwd", ADA, "--password-stdin", stdin="second")
    with Credentials.open(cli.root) as credentials:
        assert not credentials.verify(ADA, "first")
        assert credentials.verify(ADA, "second")
    assert "account add" in cli("account", "passwd", BOB, "--password-stdin", stdin="x", status=67).stderr


def test_modes_of_account_remove(cli: Cli) -> None:
    for address in (ADA, BOB):
        cli("account", "add", address, "--password-stdin", stdin=SECRET)
    cli("deliver", "--from", "x@y.test", "--to", ADA, "-", stdin="Subject: x\n\nx\n")
    cli("account", "remove", ADA)
    assert cli.accounts()[ADA]["status"] == "inactive"
    assert cli.accounts()[ADA]["messages"] == 1
    with Credentials.open(cli.root) as credentials:
        assert credentials.list() == [BOB]
    cli("account", "remove", ADA, status=67)
    cli("account", "passwd", ADA, "--password-stdin", stdin="x", status=67)
    assert "without a password" in cli("account", "add", ADA).stdout
    assert cli.accounts()[ADA]["messages"] == 1
    assert "--yes" in cli("account", "remove", ADA, "--mode", "purge", status=1).stderr
    cli("account", "remove", ADA, "--mode", "purge", "--yes")
    assert list(cli.accounts()) == [BOB]
    cli("account", "remove", BOB, "--mode", "stash")
    assert cli.accounts()[BOB]["status"] == "stashed"


def test_journal_names_the_operator_and_the_command(cli: Cli) -> None:
    cli("account", "add", ADA)
    with (
        contextlib.closing(Directories(str(cli.root))) as directories,
        contextlib.closing(Journal(directories)) as journal,
    ):
        assert {record.actor for record in journal.records(0)} == {Actor(OPERATOR, "markpost account add")}


def test_snapshot_prints_the_last_record(cli: Cli) -> None:
    cli("account", "add", ADA)
    sequence = int(cli("snapshot").stdout)
    assert sequence > 0
    assert (cli.root / "snapshots" / f"{sequence:016d}").is_dir()


# --- failures are one clear line -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["account", "list"],
        ["account", "add", ADA],
        ["snapshot"],
        ["deliver", "--from", ADA, "--to", BOB, os.devnull],
        ["export", "--format", "mbox", "--to", "out"],
    ],
)
def test_missing_store_is_a_temporary_failure_that_names_init(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for root in ("missing", "empty", "file"):
        result = Cli(tmp_path / root)(*command, status=75)
        assert "markpost init" in result.stderr
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "missing").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def test_unwritable_store_is_a_temporary_failure(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is temporary, so that no mail bounces."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    result = cli("deliver", "--from", ADA, "--to", BOB, os.devnull, status=75)
    assert "is not writable for user" in result.stderr
    assert result.stderr.count("\n") == 1


def test_missing_index_names_the_remedy(cli: Cli) -> None:
    (cli.root / "index.sqlite").unlink()
    assert "markpost repair" in cli("account", "list", status=75).stderr
    assert not (cli.root / "index.sqlite").exists()


def test_maintenance_is_temporary(cli: Cli) -> None:
    (cli.root / "maintenance" / "offline").write_text("repair")
    assert "maintenance" in cli("deliver", "--from", ADA, "--to", BOB, os.devnull, status=75).stderr


def test_bad_address_is_a_data_error(cli: Cli) -> None:
    assert cli("account", "add", "nobody", status=65).stderr.startswith("markpost: not an address: 'nobody'")


def test_root_is_required() -> None:
    result = CliRunner().invoke(main, ["account", "list"], env={"MARKPOST_ROOT": None})
    assert result.exit_code == 2
    assert "MARKPOST_ROOT" in result.stderr


def test_locked_credentials_are_a_temporary_failure(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("account", "add", ADA)
    monkeypatch.setattr("adapter.accounts.credentials._LOCK_SECONDS", 0.05)
    directories = Directories(str(cli.root))
    with locks.credentials_lock(directories, 1):
        result = cli("account", "passwd", ADA, "--password-stdin", stdin=SECRET, status=75)
    directories.close()
    assert "being changed by another process" in result.stderr


def test_every_command_has_help() -> None:
    """The overviews show complete lines."""
    overview = CliRunner().invoke(main, ["--help"])
    assert overview.exit_code == 0
    assert "account" in overview.stdout
    for command in main.list_commands(click.Context(main)):
        shown = CliRunner().invoke(main, [command, "--help"])
        assert shown.exit_code == 0
        for text in (overview.stdout, shown.stdout):
            assert "..." not in text.partition("Commands:")[2]


def test_unknown_command_suggests_a_known_one() -> None:
    for word, hint in (("serv", "'serve'"), ("nonsense", "No such command")):
        result = CliRunner().invoke(main, [word])
        assert result.exit_code == 2
        assert hint in result.stderr


# --- as a process ------------------------------------------------------------------------------------------------
