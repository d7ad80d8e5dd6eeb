"""Stores of other versions: refused with one line, brought up to date by one command, however often it is killed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.cli import main
from adapter.store import disk, index, layout
from adapter.store.disk import Directories
from adapter.transport.recovery import migrate
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.layers import assert_layers_agree
from tests.support.stores import tree
from tests.system.maintenance.lab import lab, lab_stores

_MARK = "marked-by-the-step"


class Killed(BaseException):
    pass


def _migrate(root: Path) -> Result:
    return CliRunner().invoke(main, ["migrate", "--root", str(root), "--deadline", "0.2"])


def _say_version(root: Path, version: str) -> None:
    path = lab.path(root, layout.VERSION_FILE)
    path.chmod(0o600)
    path.write_text(f"{version}\n")


def _refusal(root: Path) -> str:
    with pytest.raises(MailError) as refused:
        Transport.open(root)
    return str(refused.value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lab_stores.build(tmp_path / "store", snapshot=True)
    return tmp_path / "store"


@pytest.fixture
def two_versions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """This program knows version 2, and a step that leads there from version 1; the list counts its runs."""
    runs: list[int] = []

    def step(directories: Directories) -> None:
        runs.append(1)
        if not disk.exists(directories.root_fd, _MARK):
            disk.write_new(directories.root_fd, _MARK, b"1")

    monkeypatch.setattr(layout, "VERSION", 2)
    monkeypatch.setitem(migrate.STEPS, 1, step)
    return runs


def test_an_older_store_is_brought_up_to_date(root: Path, tmp_path: Path, two_versions: list[int]) -> None:
    before = lab.view(root)
    assert "markpost migrate" in _refusal(root)
    done = _migrate(root)
    assert done.exit_code == 0, done.output
    assert done.stdout == "version 2\n"
    assert lab.path(root, _MARK).exists()
    assert lab.view(root) == before
    with Transport.open(root):
        pass
    assert _migrate(root).stdout == "nothing to do\n"
    assert len(two_versions) == 1


def test_a_step_that_was_cut_short_is_done_again(
    root: Path, two_versions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was about to do on disk: the store is of the old version until all of it is done."""
    actions: list[str] = []

    def kill_at(number: int) -> None:
        def count(action: str, fd: int, name: str) -> None:
            actions.append(name)
            if len(actions) == number:
                raise Killed

        actions.clear()
        monkeypatch.setattr(disk, "on_step", count)

    number = 0
    while True:
        number += 1
        kill_at(number)
        try:
            with closing(Directories(str(root))) as directories:
                migrate.migrate(directories, lambda _: None)
            break
        except Killed:
            monkeypatch.setattr(disk, "on_step", None)
            if lab.path(root, layout.VERSION_FILE).read_text() == "1\n":
                assert "markpost migrate" in _refusal(root)
    monkeypatch.setattr(disk, "on_step", None)
    assert number >= 4
    with Transport.open(root):
        pass


def test_a_store_that_is_open_is_not_touched(root: Path, two_versions: list[int]) -> None:
    with closing(Directories(str(root))):
        layout.VERSION = 1
        with Transport.open(root):
            layout.VERSION = 2
            done = _migrate(root)
    assert done.exit_code == 3
    assert "not offline" in done.stderr
    assert not two_versions


@pytest.mark.parametrize(
    ("version", "line"), [("3", "use a newer one"), ("0", "no way from there"), ("x", "no version")]
)
def test_versions_there_is_no_way_from(root: Path, two_versions: list[int], version: str, line: str) -> None:
    _say_version(root, version)
    before = tree(root)
    done = _migrate(root)
    assert done.exit_code == 75
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {name: found for name, found in tree(root).items() if "lock" not in name} == {
        name: found for name, found in before.items() if "lock" not in name
    }


def test_an_index_with_other_tables_is_made_anew(root: Path, tmp_path: Path) -> None:
    before, seen = lab.view(root), lab.seen(root)
    with closing(sqlite3.connect(lab.path(root, layout.INDEX_FILE))) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (index.SCHEMA_VERSION - 1,))
        connection.execute("DROP TABLE subscriptions")
        connection.commit()
    assert "markpost migrate" in _refusal(root)
    done = _migrate(root)
    assert done.exit_code == 0, done.output
    assert done.stdout == "the index is made anew\n"
    assert lab.view(root) == before
    assert lab.seen(root) == seen
    assert list(lab.path(root, *layout.INDEX_BACKUPS).iterdir())  # the old one is kept
    assert_layers_agree(root, tmp_path / "scratch")


def test_a_store_of_this_version_needs_nothing(root: Path) -> None:
    assert _migrate(root).stdout == "nothing to do\n"
