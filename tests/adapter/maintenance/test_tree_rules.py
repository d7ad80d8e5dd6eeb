"""Rules of a store's tree: all entries that Markpost creates are expected, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapter.maintenance.scan import tree_rules
from adapter.store import layout
from adapter.store.names import folder_entry
from adapter.store.queries import text_index

_MAILBOX = ("mailboxes", "ada@example.test")
_LONG = folder_entry("x" * 300)


@pytest.mark.parametrize(
    ("where", "name", "is_directory"),
    [
        ((), layout.VERSION_FILE, False),
        ((), "index.sqlite-journal", False),
        ((), "cache-text.sqlite-wal", False),
        ((), layout.RECENT_MARKS_FILE, False),
        ((), ".protocol-version.txt.12.new", False),
        ((), "mailboxes", True),
        ((), "credentials", True),
        (layout.MAILBOXES, "ada@example.test", True),
        (_MAILBOX, "inbox", True),
        ((*_MAILBOX, "inbox"), ".mailbox", False),
        ((*_MAILBOX, "inbox"), "..mailbox.77.new", False),
        ((*_MAILBOX, "inbox"), "1-msg-20260101T000000Z-0123456789abcdef0123.md", False),
        ((*_MAILBOX, _LONG), ".name", False),
        (layout.MESSAGES, "2026-01-31", True),
        (layout.ATTACHMENTS, "0f", True),
        (layout.JOURNAL, layout.journal_segment(1), False),
        (layout.JOURNAL, ".checkpoint.json.4711.new", False),
        (layout.SNAPSHOTS, "0000000000000012", True),
        (layout.SNAPSHOTS, ".0000000000000012.new", True),
        (layout.snapshot_directory(12), "folders.parquet", False),
        (layout.LOCKS, "pull-work.lock", False),
        (layout.ADDRESS_LOCKS, "ada@example.test.lock", False),
        (layout.CREDENTIALS, "passwd", False),
        (layout.MAINTENANCE, "run-12-abcdef", True),
        (layout.MAINTENANCE, "offline", False),
    ],
)
def test_own_entries_are_expected(where: layout.Parts, name: str, is_directory: bool) -> None:
    rule = tree_rules.expected(where, name)
    assert rule is not None
    assert rule.is_directory is is_directory


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ((), "notes.txt"),
        ((), "index.sqlite.new"),
        ((), "index.sqlite.bak"),
        ((*_MAILBOX, "inbox"), "a note.md"),
        ((*_MAILBOX, "inbox"), ".name"),
        ((*_MAILBOX, "inbox"), ".DS_Store"),
        (layout.MAILBOXES, os.fsdecode(b"caf\xe9")),
        (("messages", "2026-01-31"), os.fsdecode(b"\xff.md")),
        (layout.MESSAGES, "backup"),
        (layout.ATTACHMENTS, "0g"),
        (layout.JOURNAL, "1.jsonl"),
        (layout.SNAPSHOTS, "7"),
        (layout.snapshot_directory(12), "other.parquet"),
        (layout.LOCKS, "notes"),
        (layout.CREDENTIALS, "passwd.bak"),
        (layout.MAINTENANCE, "notes"),
    ],
)
def test_other_entries_are_strays(where: layout.Parts, name: str) -> None:
    assert tree_rules.expected(where, name) is None


def test_root_can_be_a_home_directory_or_a_mount_point() -> None:
    for name in (".ssh", ".snapshot", ".stfolder", "lost+found", os.fsdecode(b".\xff")):
        rule = tree_rules.expected((), name)
        assert rule is not None
        assert not rule.is_checked
        assert not rule.forbidden


def test_every_file_name_of_the_layout_has_a_rule() -> None:
    """A new file of the store needs a rule, or repair would quarantine it."""
    inside_others = {layout.BACKUP_FILE, layout.MANIFEST_FILE, layout.FULL_NAME_FILE}
    files = {
        value
        for name, value in vars(layout).items()
        if name.endswith(("_FILE", "_LOCK", "_MARKER")) and isinstance(value, str)
    }
    places = ((), (*_MAILBOX, "inbox"), *layout.DIRECTORIES, layout.CREDENTIALS)
    assert len(files) > 10
    assert not {
        file
        for file in files - inside_others
        if not any(tree_rules.expected(where, file) is not None for where in places)
    }


# --- the text index --------------------------------------------------------------------------------------------------


def _text_index(root: Path) -> Path:
    text_index.connect(str(root)).close()
    return root / layout.TEXT_INDEX_FILE


def test_intact_text_index_is_not_changed(tmp_path: Path) -> None:
    assert text_index.find_defect(str(tmp_path)) == ""
    file = _text_index(tmp_path)
    before = sorted(os.listdir(tmp_path)), file.read_bytes()
    assert text_index.find_defect(str(tmp_path)) == ""
    assert (sorted(os.listdir(tmp_path)), file.read_bytes()) == before
    connection = text_index.connect(str(tmp_path))  # a server has it open
    connection.execute("INSERT INTO accounts VALUES (1, 'reg-1')")
    assert text_index.find_defect(str(tmp_path)) == ""
    connection.close()


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("CREATE TRIGGER forged AFTER INSERT ON texts BEGIN DELETE FROM texts; END", "trigger forged is not ours"),
        ("DROP INDEX texts_too_long", "index texts_too_long is missing"),
        ("UPDATE meta SET value = 99", "version 99"),
        ("INSERT INTO texts VALUES (7, 'msg-20260101T000000Z-0', 1, '', 'h', 'b')", "row 7 is not ours"),
    ],
)
def test_foreign_text_index_is_reported(tmp_path: Path, statement: str, wrong: str) -> None:
    _text_index(tmp_path)
    connection = text_index.connect(str(tmp_path))
    connection.execute(statement)
    connection.close()
    assert text_index.find_defect(str(tmp_path)) == wrong


def test_garbage_in_place_of_the_text_index_is_reported(tmp_path: Path) -> None:
    file = tmp_path / layout.TEXT_INDEX_FILE
    file.write_bytes(b"garbage" * 5000)
    assert "not a database" in text_index.find_defect(str(tmp_path))
    file.unlink()
    os.mkfifo(file)
    assert text_index.find_defect(str(tmp_path)) == "is not a file"
