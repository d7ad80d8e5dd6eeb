"""The checker notices: each kind of disagreement between the layers, made by hand, is reported."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from glob import glob

import pytest

from tests.system.crash.lab import letters, world
from tests.system.crash.lab.lab import Lab
from tests.system.crash.lab.scenarios import Scenario, put

Damage = Callable[[str], object]


def _sql(*statements: str) -> Damage:
    def change(root: str) -> None:
        with closing(sqlite3.connect(f"{root}/index.sqlite")) as index:
            for statement in statements:
                index.execute(statement)
            index.commit()

    return change


def _one(root: str, pattern: str) -> str:
    return sorted(glob(f"{root}/{pattern}", include_hidden=True))[0]


def _remove(pattern: str) -> Damage:
    return lambda root: os.unlink(_one(root, pattern))


def _append(pattern: str, data: bytes, mode: int = 0o444) -> Damage:
    def change(root: str) -> None:
        path = _one(root, pattern)
        with open(path, "rb") as file:
            whole = file.read()
        os.unlink(path)  # copies of a store share what is immutable
        with open(path, "wb") as file:
            file.write(whole + data)
        os.chmod(path, mode)

    return change


def _add(path: str, data: bytes = b"?") -> Damage:
    def change(root: str) -> None:
        os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
        with open(f"{root}/{path}", "wb") as file:
            file.write(data)

    return change


def _retarget(root: str) -> None:
    first, second = sorted(glob(f"{root}/mailboxes/{world.ADA}/inbox/*.md"))[:2]
    target = os.readlink(second)
    os.unlink(first)
    os.symlink(target, first)


def _cut_journal(root: str) -> None:
    path = _one(root, "journal/*.jsonl")
    with open(path, "rb+") as file:
        lines = file.read().rstrip(b" ").splitlines(keepends=True)
        file.seek(0)
        file.truncate()
        file.writelines(lines[:-1])


def _flip_journal(root: str) -> None:
    path = _one(root, "journal/*.jsonl")
    with open(path, "rb+") as file:
        file.seek(len(file.readline()) + 40)
        file.write(b"#")


def _flip_header(root: str) -> None:
    with open(_one(root, "journal/*.jsonl"), "rb+") as file:
        file.seek(40)
        file.write(b"#")


_INBOX = f"mailboxes/{world.ADA}/inbox"
_DAMAGES: dict[str, Damage] = {
    "canonical file lost": _remove("messages/*/*.md"),
    "canonical file changed": _append("messages/*/*.md", b" "),
    "canonical file not indexed": _add("messages/2026-01-01/msg-20260101T000000Z-00000000000000000000.md"),
    "canonical file writable": _append("messages/*/*.md", b"", 0o644),
    "unfinished file": _add("messages/2026-01-01/.msg.md.restored"),
    "blob lost": _remove("attachments/*/*"),
    "blob changed": _append("attachments/*/*", b" "),
    "blob not indexed": _add(f"attachments/ab/{'ab' * 32}"),
    "blob nobody needs": _sql("DELETE FROM message_attachments WHERE position = 0"),
    "link lost": _remove(f"{_INBOX}/*.md"),
    "link too many": lambda root: os.symlink(
        "../../../messages/2026-01-01/msg-20260101T000000Z-00000000000000000000.md",
        f"{root}/{_INBOX}/99-msg-20260101T000000Z-00000000000000000000.md",
    ),
    "link to another message": _retarget,
    "identity lost": _remove(f"{_INBOX}/.mailbox"),
    "identity changed": _append(f"{_INBOX}/.mailbox", b" "),
    "full name lost": _remove(f"mailboxes/{world.ADA}/Long*/.name"),
    "folder directory too many": lambda root: os.mkdir(f"{root}/mailboxes/{world.ADA}/Stray"),
    "folder directory lost": lambda root: os.rename(f"{root}/mailboxes/{world.ADA}/Lists", f"{root}/locks/Lists"),
    "mailbox directory too many": lambda root: os.mkdir(f"{root}/mailboxes/stray"),
    "file of another person lost": _remove(f"mailboxes/{world.CARL}/{world.CLUTTERED}/notes.txt"),
    "message counter": _sql("UPDATE folders SET messages = messages + 1 WHERE name = 'INBOX'"),
    "unseen counter": _sql("UPDATE folders SET unseen = unseen + 1 WHERE name = 'INBOX'"),
    "deleted counter": _sql("UPDATE folders SET deleted = deleted + 1 WHERE name = 'INBOX'"),
    "size counter": _sql("UPDATE folders SET size = size + 1 WHERE name = 'INBOX'"),
    "UIDNEXT": _sql("UPDATE folders SET uidnext = 1"),
    "UIDVALIDITY": _sql("UPDATE folders SET uidvalidity = uidvalidity + 1000000000"),
    "flags": _sql("UPDATE mailbox_state SET flags = flags | 4"),
    "keywords": _sql("UPDATE mailbox_state SET keywords = 'other'"),
    "modseq": _sql("UPDATE mailbox_state SET modseq = modseq + 100"),
    "expunged": _sql("DELETE FROM expunged"),
    "subscription": _sql("DELETE FROM subscriptions WHERE name = 'Sent'"),
    "recipients": _sql("DELETE FROM message_recipients"),
    "thread summary": _sql("UPDATE thread_summaries SET unread = unread + 1"),
    "latest of a thread": _sql("UPDATE thread_summaries SET latest_message_id = 'msg-0'"),
    "registration": _sql("UPDATE mailbox_registrations SET status = 'inactive'"),
    "outbox": _sql("DELETE FROM outbox WHERE recipient LIKE 'zoe%'"),
    "wire digest": _sql("UPDATE messages SET wire_sha256 = file_sha256"),
    "size of a message": _sql("UPDATE messages SET size = size + 1"),
    "journal ends early": _cut_journal,
    "journal damaged": _flip_journal,
    "journal header damaged": _flip_header,
    "journal torn": _append("journal/*.jsonl", b'{"seq":'),
    "dead session": _add("staging/1234-0123456789ab/00000001"),
    "set-aside folder": _add("staging/moving-0123456789ab/.mailbox"),
    "dropped content": _add("staging/dropped/something"),
    "rollback journal": _add("index.sqlite-journal", b""),
    "unfinished checkpoint": _add("journal/.checkpoint.json.1.new"),
    "unfinished snapshot": _add("snapshots/.0000000000000001.new/x.parquet"),
    "quarantine": _add("maintenance/quarantine/something"),
}


@pytest.mark.parametrize("what", _DAMAGES)
def test_every_damage_is_noticed(lab: Lab, what: str) -> None:
    root = lab.copy_of_the_base()
    assert lab.checker.problems(root) == []
    _DAMAGES[what](root)
    try:
        assert lab.checker.problems(root)
    finally:
        world.remove(root)


def test_a_view_tells_scenarios_apart(lab: Lab) -> None:
    """Half a scenario never looks like none or all of it."""
    prepared = lab.prepare(Scenario("several", [put("Lists", letters.plain(140))] * 3))
    assert [prepared.stage_of(seen) for seen in prepared.views] == [0, 1, 2, 3]
    world.remove(prepared.root)
