"""The strict checker: every layer of a store against every other. Uses plain SQL and system calls of its own.

The store may be open, but nothing may be under way in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from adapter.content import front_matter, wire
from adapter.store import folder_identity, layout, names, snapshots
from adapter.store.disk import Directories
from adapter.store.journal import Journal, JournalDamaged, without_aborted
from tests.support.store.checker_replay import Replayer
from tests.support.store.checker_rows import check_rows
from tests.support.store.tables import connect
from tests.support.stores import id_of

_TEMPORARY = re.compile(r"\..*\.(new|restored)\Z")
_QUARANTINED_TAIL = re.compile(r"journal-tail-")


@dataclass
class Findings:
    problems: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.problems.append(text)

    def equal(self, what: str, one: object, other: object) -> None:
        if one != other:
            self.add(f"{what}: {_short(one)} <> {_short(other)}")


def _short(value: object) -> str:
    text = repr(value).replace("x" * 99, "x…")
    return text if len(text) < 300 else f"{text[:300]}…"


class Checker:
    """Checks stores; remembers content that verified, since most of it is the same in every copy of a store."""

    def __init__(self, scratch: str, foreign: Mapping[str, bytes] | None = None) -> None:
        self._replayer = Replayer(scratch)
        self._foreign = foreign or {}
        self._verified: set[tuple[str, str, str]] = set()

    def remember(self, root: str) -> None:
        """Copies of this (closed) store will be checked: what its journal leads to need not be found out each time."""
        with closing(Directories(root)) as directories, closing(Journal(directories)) as journal:
            journal.refresh()
            self._replayer.remember(directories, journal)

    def problems(
        self,
        root: str,
        *,
        sessions: int = 0,
        quarantine: bool = False,
        replay: bool = True,
        leftovers: bool = False,
    ) -> list[str]:
        """Everything that is wrong. ``sessions``: how many open stores may have a staging directory.

        ``quarantine``: whether a power loss may have left things that were set aside. ``replay``: whether to replay
        the journal, which takes longer than all the rest. ``leftovers``: whether a clean-up may be due yet.
        """
        findings = Findings()
        _check_journal(root, findings)  # first: reading it for a replay cuts a torn end
        with closing(connect(root)) as index:
            findings.equal("integrity_check", index.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
            self._check_content(root, index, findings)
            self._check_mailboxes(root, index, findings)
            check_rows(index, findings.equal)
            if replay:
                self._check_replay(root, index, findings)
        if not leftovers:
            _check_leftovers(root, findings, sessions)
        self._check_foreign(root, findings, quarantine)
        return findings.problems

    # --- content ---------------------------------------------------------------------------------------------------

    def _check_content(self, root: str, index: sqlite3.Connection, findings: Findings) -> None:
        rows = index.execute("SELECT message_id, wire_sha256, file_sha256, size FROM messages").fetchall()
        expected = {
            "/".join((*layout.message_directory(row[0]), layout.message_name(row[0]))): row for row in rows if row[2]
        }
        findings.equal("canonical files", sorted(_files(root, "messages")), sorted(expected))
        blobs = dict(index.execute("SELECT sha256, size FROM attachments").fetchall())
        there = set(_files(root, "attachments"))
        findings.equal("blobs", sorted(there), sorted(f"attachments/{sha256[:2]}/{sha256}" for sha256 in blobs))
        for path in there:
            data = _read(root, path)
            findings.equal(f"digest of {path}", hashlib.sha256(data).hexdigest(), path.rpartition("/")[2])
            findings.equal(f"size of {path}", len(data), blobs.get(path.rpartition("/")[2]))
        reader = _Blobs(root)
        attachments: dict[str, set[str]] = defaultdict(set)
        for message, sha256 in index.execute("SELECT message_id, sha256 FROM message_attachments"):
            attachments[message].add(sha256)
        findings.equal("blobs that messages need", sorted(set().union(*attachments.values())), sorted(blobs))
        for path, (message, wire_sha256, file_sha256, size) in expected.items():
            try:
                file = _read(root, path)
            except OSError:
                continue  # reported above
            findings.equal(f"digest of {path}", hashlib.sha256(file).hexdigest(), file_sha256)
            findings.equal(f"mode of {path}", stat.S_IMODE(os.stat(f"{root}/{path}").st_mode), 0o444)
            attached = attachments[message]
            if (message, file_sha256, wire_sha256) not in self._verified and self._rebuilds(
                message, file, wire_sha256, size, attached, reader, findings
            ):
                self._verified.add((message, file_sha256, wire_sha256))

    def _rebuilds(
        self,
        message: str,
        file: bytes,
        wire_sha256: str,
        size: int,
        attached: set[str],
        reader: _Blobs,
        findings: Findings,
    ) -> bool:
        try:
            recipe = front_matter.recipe_of(file)
            octets = wire.rebuild(file, recipe, reader)
        except Exception as error:
            findings.add(f"{message} does not rebuild: {error!r}")
            return False
        before = len(findings.problems)
        findings.equal(f"own digest of {message}", front_matter.digest_matches(file), True)
        findings.equal(f"octets of {message}", hashlib.sha256(octets).hexdigest(), wire_sha256)
        findings.equal(f"size of {message}", len(octets), size)
        findings.equal(f"id in {message}", front_matter.read(file).id, message)
        if not set(recipe.blobs) <= attached:
            findings.add(f"{message} needs blobs the index does not list")
        return len(findings.problems) == before

    # --- mailboxes -------------------------------------------------------------------------------------------------

    def _check_mailboxes(self, root: str, index: sqlite3.Connection, findings: Findings) -> None:
        directories = dict(
            index.execute("SELECT registration_id, directory FROM mailbox_registrations WHERE status <> 'purged'")
        )
        findings.equal("mailbox directories", sorted(os.listdir(f"{root}/mailboxes")), sorted(directories.values()))
        expected: dict[str, dict[str, tuple[Any, ...]]] = {entry: {} for entry in directories.values()}
        columns = "folder_id, registration_id, name, special_use, uidvalidity, uidnext"
        for row in index.execute(f"SELECT {columns} FROM folders"):
            entry = directories.get(row[1])
            if entry is None:
                findings.add(f"folder {row} of a registration without a directory")
            else:
                expected[entry][names.folder_entry(row[2])] = row
        links: dict[int, dict[str, str]] = defaultdict(dict)
        for folder, uid, message in index.execute("SELECT folder_id, uid, message_id FROM mailbox_projections"):
            date = f"{message[4:8]}-{message[8:10]}-{message[10:12]}"
            links[folder][f"{uid}-{message}.md"] = f"../../../messages/{date}/{message}.md"
        for entry, folders in expected.items():
            try:
                there = os.listdir(f"{root}/mailboxes/{entry}")
            except OSError:
                continue  # reported above
            findings.equal(f"folders in {entry}", sorted(there), sorted(folders))
            for directory in set(there) & set(folders):
                row = folders[directory]
                self._check_folder(f"{root}/mailboxes/{entry}/{directory}", row, links[row[0]], findings)

    def _check_folder(self, path: str, row: tuple[Any, ...], expected: dict[str, str], findings: Findings) -> None:
        folder, registration, name, special, uidvalidity, uidnext = row
        links = {}
        other = {}
        for entry in os.scandir(path):
            if entry.is_symlink():
                links[entry.name] = os.readlink(entry.path)
                if not os.path.exists(entry.path):
                    findings.add(f"{entry.path} leads nowhere")
            elif entry.name not in {own.partition("/")[0] for own in self._foreign}:
                other[entry.name] = _read(path, entry.name) if entry.is_file() else b"a directory"
        store = id_of(os.path.dirname(os.path.dirname(os.path.dirname(path))))
        identity = folder_identity.decode(other.get(layout.IDENTITY_FILE, b""))
        mark = max(
            folder_identity.mark(uidnext), identity.uids_below if identity else 0
        )  # an aborted operation may have raised it
        wanted_identity = folder_identity.Identity(store, folder, registration, uidvalidity, special, mark)
        own = {layout.IDENTITY_FILE: wanted_identity.encode()}
        if names.is_shortened(os.path.basename(path)):
            own[layout.FULL_NAME_FILE] = name.encode()
        findings.equal(f"identity of {path}", other, own)
        findings.equal(f"links in {path}", links, expected)

    def _check_foreign(self, root: str, findings: Findings, quarantine: bool) -> None:
        """Files of others are somewhere in the store, as they were; nothing of ours is set aside without need."""
        everywhere: dict[str, list[bytes]] = defaultdict(list)
        own = []
        for path in (*_files(root, "mailboxes"), *_files(root, "maintenance/quarantine")):
            for name in self._foreign:
                if path.endswith(f"/{name}"):
                    everywhere[name].append(_read(root, path))
                    break
            else:
                if path.startswith("maintenance/") and not _QUARANTINED_TAIL.match(os.path.basename(path)):
                    own.append(path)
        findings.equal("files of others", dict(everywhere), {name: [data] for name, data in self._foreign.items()})
        if not quarantine:
            findings.equal("quarantine", own, [])

    # --- the journal -----------------------------------------------------------------------------------------------

    def _check_replay(self, root: str, index: sqlite3.Connection, findings: Findings) -> None:
        """A new index made from snapshot and journal has the same rows in every table that is not a cache."""
        with closing(Directories(root)) as directories, closing(Journal(directories)) as journal:
            try:
                journal.refresh()
            except JournalDamaged as error:
                findings.add(f"the journal cannot be read: {error}")
                return
            applied = index.execute("SELECT value FROM meta WHERE key = 'applied_seq'").fetchone()[0]
            later = list(without_aborted(journal.records(applied, journal.last_seq)))
            findings.equal("records that count and are not applied", [record.seq for record in later], [])
            try:
                replayed = self._replayer.replay(directories, journal)
            except Exception as error:
                findings.add(f"the journal does not replay: {error!r}")
                return
            for seq in snapshots.available(directories):
                findings.equal(f"snapshot {seq} verifies", snapshots.verify(directories, seq), True)
        with closing(replayed):
            for table in (*snapshots.TABLES, "meta"):
                which = "WHERE key NOT IN ('applied_seq', 'applied_checksum')" if table == "meta" else ""
                one, other = (
                    sorted(connection.execute(f"SELECT * FROM {table} {which}").fetchall(), key=repr)
                    for connection in (index, replayed)
                )
                if one != other:
                    ours = [row for row in one if row not in other]
                    theirs = [row for row in other if row not in one]
                    findings.add(f"{table}: index has {_short(ours)}, replay has {_short(theirs)}")


class _Blobs:
    def __init__(self, root: str) -> None:
        self._root = root

    def read(self, sha256: str, offset: int, length: int) -> bytes:
        data = _read(self._root, f"attachments/{sha256[:2]}/{sha256}")
        return data[offset:] if length < 0 else data[offset : offset + length]


def _read(root: str, path: str) -> bytes:
    with open(f"{root}/{path}", "rb") as file:
        return file.read()


def _files(root: str, below: str) -> Iterator[str]:
    """Paths of everything below that is neither a directory nor a symbolic link."""
    pending = [below]
    while pending:
        directory = pending.pop()
        try:
            entries = list(os.scandir(f"{root}/{directory}"))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(f"{directory}/{entry.name}")
            elif not entry.is_symlink():
                yield f"{directory}/{entry.name}"


def _check_journal(root: str, findings: Findings) -> None:
    """Read by hand: every line verifies, and numbers go on without a gap. Behind them is padding at most."""
    expected = None
    before = rb"[0-9a-f]{8}"  # the checksum of the record before, if it is there
    for name in sorted(name for name in os.listdir(f"{root}/journal") if name.endswith(".jsonl")):
        first = int(name.partition(".")[0])
        if expected is not None:
            findings.equal(f"first record of {name}", first, expected)
        expected = first
        header, *lines = _read(root, f"journal/{name}").rstrip(b" \0").splitlines(keepends=True) or [b""]
        form = rb'\{"store":"%b","first":%d,"after":"%b","crc":"[0-9a-f]{8}"\}\n\Z'
        if not re.match(form % (id_of(root).encode(), first, before), header):
            findings.add(f"{name}: another header was expected: {header[:120]!r}")
        for line in lines:
            before = line[-11:-3]
            if not re.match(rb'\{"seq":%d,.*"crc":"[0-9a-f]{8}"\}\n\Z' % expected, line, re.DOTALL):
                findings.add(f"{name}: record {expected} is not whole: {line[:80]!r}")
            expected += 1


def _check_leftovers(root: str, findings: Findings, sessions: int) -> None:
    staging = sorted(os.listdir(f"{root}/staging"))
    ours = [name for name in staging if re.match(r"[0-9]+-[0-9a-f]{12}\Z", name)]
    findings.equal("staging sessions", len(ours), sessions)
    other = [name for name in staging if name not in ours]
    if other == ["removing"] and not os.listdir(f"{root}/staging/removing"):
        other = []
    findings.equal("leftovers in staging", other, [])
    for session in ours:
        findings.equal("work left in staging", os.listdir(f"{root}/staging/{session}"), [])
    for directory in ("", "journal", "snapshots"):
        strange = [name for name in os.listdir(f"{root}/{directory}") if _TEMPORARY.match(name)]
        findings.equal(f"temporary files in /{directory}", strange, [])
    root_entries = {name for name in os.listdir(root) if name.startswith(layout.INDEX_FILE)}
    findings.equal("index files", root_entries, {layout.INDEX_FILE})
    locks = [name for name in os.listdir(f"{root}/locks") if name.startswith("probe-")]
    findings.equal("lock probes", locks, [])
