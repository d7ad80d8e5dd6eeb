"""Victims of the injectors: objects of a healthy store, each used only once, so that faults do not interfere.

Rows of the index and entries on disk are damaged independently; within a layer no object is used twice.
All objects are read before the first fault, because the index is wrong afterwards.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Hashable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from adapter.store import journal, layout, names
from adapter.store.effects import AddContent
from adapter.store.journal import PADDING
from tests.support.messages import message
from tests.support.stores import ADA, deliver, id_of, new_store
from tests.system.maintenance.lab import failing

Choice = TypeVar("Choice", bound=Hashable)


class Unfit(Exception):  # noqa: N818 - a property of the store
    """The store has no object left for this fault."""


class Place(NamedTuple):
    """A folder."""

    id: int
    registration: str
    directory: str
    name: str
    uidnext: int
    messages: int


class Shown(NamedTuple):
    """A message in a folder."""

    folder: int
    uid: int
    message: str


class Victims:
    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self.store = id_of(root)
        self.chance = chance
        self._used: dict[str, set[Hashable]] = {}
        self.new_accounts: set[str] = set()  # accounts that repair must register
        self.new_folders: set[tuple[str, str]] = set()  # (account, name) of folders that repair must create
        self.lost: set[str] = set()  # unrecoverable messages
        self.damaged: set[str] = set()  # messages with a lost part
        self.renewed: set[str] = set()  # messages with new UIDs, and returned ones
        self.losses = 0  # findings with severity loss
        self.unreadable = 0  # files that cannot be opened
        self.closed: set[int] = set()  # folders with a directory that cannot be opened
        with closing(self.connect()) as connection:
            read = _reader(connection)
            self.accounts: list[tuple[str, str, str]] = read(
                "SELECT registration_id, address, directory FROM mailbox_registrations WHERE status = 'active'"
            )
            self.folders = [
                Place(*row)
                for row in read(
                    "SELECT folder_id, registration_id, directory, name, uidnext, messages FROM folders"
                    " JOIN mailbox_registrations USING (registration_id) WHERE status = 'active'"
                )
            ]
            folder_ids = {place.id for place in self.folders}
            shown = [Shown(*row) for row in read("SELECT folder_id, uid, message_id FROM mailbox_projections")]
            self.shown = [each for each in shown if each.folder in folder_ids]
            self.kept: list[str] = _first(read("SELECT message_id FROM messages WHERE file_sha256 <> ''"))
            self.lost_messages: list[str] = _first(read("SELECT DISTINCT message_id FROM lost_places"))
            self.dropped: list[str] = [
                each
                for each in _first(read("SELECT message_id FROM messages WHERE file_sha256 = ''"))
                if each not in self.lost_messages
            ]
            self.damaged_parts: list[tuple[str, str]] = read("SELECT message_id, part FROM damaged_parts")
            self.cached: list[str] = _first(read("SELECT message_id FROM cache_messages"))
            self.parts: list[tuple[str, str]] = read("SELECT message_id, sha256 FROM message_attachments")
            self.recipients: list[tuple[str, str]] = read("SELECT message_id, address FROM message_recipients")
            self.subscriptions: list[tuple[str, str]] = read("SELECT registration_id, name FROM subscriptions")
            self.expunged: list[tuple[int, int]] = read("SELECT folder_id, modseq FROM expunged")
            self.threads: list[tuple[str, str]] = read("SELECT registration_id, thread_id FROM thread_summaries")
            self.queued: list[str] = _first(read("SELECT queue_id FROM outbox"))
        self.texts, self.data = self._journaled()

    # --- choosing --------------------------------------------------------------------------------------------------

    def take(self, pool: str, candidates: Iterable[Choice], fit: Callable[[Choice], object] = bool) -> Choice:
        """Take a random unused candidate from a pool. Raises :class:`Unfit`."""
        used = self._used.setdefault(pool, set())
        free = [each for each in candidates if each not in used and fit(each)]
        if not free:
            raise Unfit
        chosen = self.chance.choice(free)
        used.add(chosen)
        return chosen

    def use(self, pool: str, *objects: Hashable) -> None:
        self._used.setdefault(pool, set()).update(objects)

    def is_free(self, pool: str, thing: Hashable) -> bool:
        return thing not in self._used.get(pool, set())

    def directory(self, fit: Callable[[Place], object] = bool) -> Place:
        """A folder with its directory, identity and links, for exclusive damage."""
        place = self.take("directory", self.folders, fit)
        self.use("link", *(each for each in self.shown if each.folder == place.id))
        return place

    def shows_no_renewed(self, place: Place) -> bool:
        """True if repair has no reason to add links to a folder: none of its messages gets a new UID."""
        return not any(each.message in self.renewed for each in self.shown if each.folder == place.id)

    @property
    def has_lost_in_closed_folder(self) -> bool:
        """True if a link of a lost message stays until its folder can be read."""
        return any(each.message in self.lost for each in self.shown if each.folder in self.closed)

    def folder_for_link(self, fit: Callable[[Place], object] = bool) -> Place:
        """A folder that keeps its directory; other faults may add links to it."""
        free = [place for place in self.folders if self._keeps_directory(place) and fit(place)]
        if not free:
            raise Unfit
        place = self.chance.choice(free)
        self.use("directory", place)
        self.use("kept directory", place)
        return place

    def _keeps_directory(self, place: Place) -> bool:
        return self.is_free("directory", place) or not self.is_free("kept directory", place)

    def link(self) -> Shown:
        """A link for exclusive damage, in a folder that keeps its directory."""
        chosen = self.take("link", self.shown, lambda each: self._keeps_directory(self.place(each.folder)))
        self.use("directory", self.place(chosen.folder))
        self.use("kept directory", self.place(chosen.folder))
        return chosen

    def some_message(self, but: str = "") -> str:
        """Any message, not to be damaged."""
        others = [each for each in self.kept if each != but]
        if not others:
            raise Unfit
        return self.chance.choice(others)

    def content(self, *, journaled: bool = True) -> str:
        """A message file for exclusive damage. ``journaled``: the journal contains it in full."""
        parts = {message for message, _ in self.parts}
        return self.take("content", self.kept, lambda each: each not in parts and (each in self.texts or not journaled))

    def part(self) -> str:
        """A blob for exclusive damage that the journal contains."""
        chosen = self.take("blob", sorted({sha256 for _, sha256 in self.parts if sha256 in self.data}))
        self.use("content", *(message for message, sha256 in self.parts if sha256 == chosen))
        return chosen

    def any_part(self) -> str:
        """A blob for exclusive damage, in the journal or not."""
        chosen = self.take("blob", sorted({sha256 for _, sha256 in self.parts if self.blob_path(sha256).exists()}))
        self.use("content", *(message for message, sha256 in self.parts if sha256 == chosen))
        return chosen

    def only_copy(self) -> str:
        """A message that exists only as a file, to be lost with it."""
        chosen = self._only_copy()
        self.lost.add(chosen)
        return chosen

    def edited_copy(self) -> str:
        """A message that exists only as a file, to be damaged: it stays in its folders."""
        chosen = self._only_copy()
        self.damaged.add(chosen)
        return chosen

    def _only_copy(self) -> str:
        parts = {message for message, _ in self.parts}
        chosen = self.take("content", self.kept, lambda each: each not in parts and each not in self.texts)
        self.losses += 1
        return chosen

    def only_part(self) -> str:
        """A blob that exists only as a file: its messages get a placeholder."""
        only_here = sorted({sha256 for _, sha256 in self.parts if self._is_only_here(sha256)})
        chosen = self.take("blob", only_here, lambda each: self._needing(each) <= self._free_content())
        needing = self._needing(chosen)
        self.use("content", *needing)
        self.damaged |= needing
        self.losses += 1
        return chosen

    def _needing(self, sha256: str) -> set[str]:
        return {message for message, each in self.parts if each == sha256}

    def _free_content(self) -> set[str]:
        return {each for each in self.kept if self.is_free("content", each)}

    def _is_only_here(self, sha256: str) -> bool:
        return sha256 not in self.data and self.blob_path(sha256).exists()

    def lost_part(self) -> tuple[str, Path]:
        """A message with a recorded lost part, and a copy of that part."""
        message, part = self.take("damaged part", self.damaged_parts)
        self.use("content", message)
        self.use("blob", part)
        self.renewed.add(message)
        return part, self._kept_copy(part)

    def lost_message(self) -> tuple[str, Path]:
        """A recorded lost message, and a copy of its file."""
        message = self.take("lost message", self.lost_messages)
        self.renewed.add(message)
        return message, self._kept_copy(layout.message_name(message))

    def _kept_copy(self, name: str) -> Path:
        return self.root.parent / "backup" / name

    def make_unreadable(self, path: Path) -> None:
        """Make opening this file or directory fail until :meth:`make_readable`."""
        failing.fail(path, self.chance.choice(failing.ERRORS))
        self.unreadable += 1

    def make_readable(self) -> None:
        failing.clear()

    # --- queries ---------------------------------------------------------------------------------------------------

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path(layout.INDEX_FILE), isolation_level=None)

    def run(self, sql: str, *values: object) -> None:
        """Execute a statement that must change at least one row."""
        with closing(self.connect()) as connection:
            assert connection.execute(sql, values).rowcount > 0, sql

    def path(self, *parts: str) -> Path:
        return Path(layout.absolute(str(self.root), *parts))

    def place(self, folder: int) -> Place:
        return next(each for each in self.folders if each.id == folder)

    def folder_path(self, place: Place) -> Path:
        return self.path(*layout.folder_directory(place.directory, place.name))

    def link_path(self, shown: Shown) -> Path:
        return self.folder_path(self.place(shown.folder)) / layout.projection_name(shown.uid, shown.message)

    def file_path(self, message_id: str) -> Path:
        return self.path(*layout.message_directory(message_id), layout.message_name(message_id))

    def blob_path(self, sha256: str) -> Path:
        return self.path(*layout.blob_directory(sha256), sha256)

    def new_folder(self, account: tuple[str, str, str], name: str) -> Path:
        """The path of a folder that does not exist."""
        return self.path(*layout.folder_directory(account[2], name))

    def segments(self) -> list[Path]:
        return sorted(self.path(*layout.JOURNAL).glob("*.jsonl"))

    def own_segments(self) -> list[Path]:
        """The segments of this store, without foreign ones."""
        return [each for each in self.segments() if self.store.encode() in records(each)[0]]

    def other_store(self) -> Path:
        """An independent store with the same addresses, next to this one."""
        other = self.root.parent / "other-store"
        if not other.exists():
            with new_store(other, ADA) as transport:
                deliver(transport, ADA, octets=message("Of another store", message_id="<other@x>"))
        return other

    def owner(self, place: Place) -> str:
        return names.address_of_entry(place.directory)

    def _journaled(self) -> tuple[dict[str, bytes], set[str]]:
        """The content in the journal: canonical files by message, and the hashes of blobs."""
        texts: dict[str, bytes] = {}
        blobs: set[str] = set()
        for segment in self.segments():
            for line in records(segment)[1:]:
                for effect in journal.decode(line).effects:
                    if isinstance(effect, AddContent):
                        if effect.file is not None:
                            texts[effect.message_id] = effect.file.encode()
                        blobs |= {blob.sha256 for blob in effect.blobs if blob.data is not None}
        return texts, blobs


def records(segment: Path) -> list[bytes]:
    """The lines of a segment, its header first, without the trailing padding."""
    return segment.read_bytes().rstrip(PADDING).splitlines(keepends=True)


def write_records(segment: Path, lines: list[bytes]) -> None:
    """Replace the lines of a segment; its size stays the same if they fit."""
    segment.write_bytes(b"".join(lines).ljust(segment.stat().st_size))


def _reader(connection: sqlite3.Connection) -> Callable[[str], list[Any]]:
    return lambda sql: sorted(connection.execute(sql).fetchall())


def _first(rows: list[tuple[str]]) -> list[str]:
    return [row[0] for row in rows]
