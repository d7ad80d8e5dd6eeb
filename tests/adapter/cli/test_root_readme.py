"""The README.md of a store: written by init, true for the store beside it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from adapter.cli import main
from adapter.store import layout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    assert CliRunner().invoke(main, ["init", "--root", str(tmp_path / "store")]).exit_code == 0
    return tmp_path / "store"


def test_init_writes_a_readme_that_names_every_directory_of_the_tree(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    assert text.encode() == layout.readme()
    for entry in root.iterdir():
        if entry.is_dir():
            assert f"`{entry.name}/" in text, entry


def test_every_command_of_the_readme_exists_with_its_options(root: Path) -> None:
    lines = re.findall(r"^markpost (\S+)(.*?)(?:  .*)?$", (root / "README.md").read_text("utf-8"), re.MULTILINE)
    assert len(lines) > 5
    context = click.Context(main)
    for name, rest in lines:
        if name == "--help":
            continue
        command = main.get_command(context, name)
        assert command is not None, name
        options = {option for parameter in command.params for option in parameter.opts}
        words = shlex.split(rest)
        assert {word for word in words if word.startswith("--")} <= options, name
        with command.make_context(name, words, resilient_parsing=True) as parsed:
            assert not parsed.args, name


def test_a_message_is_a_readable_file_where_the_readme_says(root: Path, tmp_path: Path) -> None:
    note = tmp_path / "note.md"
    note.write_text("---\nsubject: Bill\n---\nThe invoice of May.\n", encoding="utf-8")
    added = ["account", "add", "bob@example.test", "--root", str(root), "--password-stdin"]
    assert CliRunner().invoke(main, added, input="secret password\n").exit_code == 0
    sent = ["deliver", "--root", str(root), "--from", "bob@example.test", "--to", "bob@example.test", str(note)]
    assert CliRunner().invoke(main, sent).exit_code == 0
    inbox = root / "mailboxes" / "bob@example.test" / "inbox"
    texts = [entry.read_text("utf-8") for entry in inbox.iterdir() if entry.is_symlink()]
    assert [text for text in texts if "invoice of May" in text]
