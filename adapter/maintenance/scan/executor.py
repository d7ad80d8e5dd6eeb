"""What an executor does with a piece of work on files: reads them, and says what it found. It changes nothing.

The rows go to fragments; what comes back is the sum of each kind (:mod:`adapter.maintenance.scan.fingerprint`).
"""

from __future__ import annotations

import contextlib
import gc
import os
from dataclasses import asdict
from hashlib import file_digest
from typing import Any

import orjson

from adapter.maintenance.findings import Finding
from adapter.maintenance.scan import index_tables, tree_audit, unreadable
from adapter.maintenance.scan.fingerprint import BLOB, CACHE, DISK, FOLDER, LINK, MAILBOX, MESSAGE, Sums, Tally
from adapter.maintenance.scan.message_check import LARGEST_FILE, Blobs, Examined, description, examine, hash_file
from adapter.maintenance.scan.partition import uid_of
from adapter.maintenance.scan.readahead import opened
from adapter.maintenance.scan.rows import Earlier, Fragments, Row, links_note, settled_stamp
from adapter.store import disk, folder_identity, layout, names
from adapter.store.disk import Directories
from protocol.errors import MailError

FOREIGN = "its identity is of another store"
_GARBAGE = 50_000  # objects that may be left over before they are looked through; almost none of ours form cycles


def work(path: str, options: dict[str, str]) -> Sums:
    """Do one piece."""
    gc.set_threshold(_GARBAGE)
    with open(path, "rb") as file:
        raw = file.read()
    items = [orjson.loads(line) for line in raw.splitlines()]
    tally = Tally(bytes.fromhex(options["secret"]))
    piece = os.path.basename(path).removesuffix(".json")
    with (
        contextlib.closing(Directories(options["root"])) as directories,
        Fragments(options["scratch"], piece) as fragments,
    ):
        if options["earlier"] and all(item.get("stamp") for item in items):
            same = _same_links(f"{options['earlier']}/{os.path.basename(path)}", raw)
            known = links_note(options["earlier"], piece) if same else None
            if known is not None:
                fragments.share_links(options["earlier"])
                return known
        earlier = Earlier(options["earlier"], piece)
        files = Files(directories, fragments, tally, earlier, options["store"], options["describe"] == "yes")
        for item in items:
            if "where" in item:
                files.item(item)
            else:
                index_tables.item(item, options, fragments, tally)
        return files.finish()


def _same_links(path: str, raw: bytes) -> bool:
    """Whether an earlier look had the same piece: the same names in directories that did not change since."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read() == raw
    return False


class Files:
    def __init__(
        self,
        directories: Directories,
        fragments: Fragments,
        tally: Tally,
        earlier: Earlier,
        store: str,
        describe: bool,
    ) -> None:
        self._directories = directories
        self._fragments = fragments
        self._tally = tally
        self._earlier = earlier
        self._store = store
        self._describe = describe
        self._blobs = Blobs(directories)
        self._owner = os.fstat(directories.root_fd).st_uid
        self._waiting: dict[tuple[str, layout.Parts], list[str]] = {}
        self._links: dict[layout.Parts, list[str]] = {}

    def item(self, item: dict[str, Any]) -> None:
        where: layout.Parts = tuple(item["where"])
        if item["what"] in ("message", "blob"):
            self._waiting.setdefault((item["what"], where), []).extend(item["names"])
            return
        if item["what"] == "link":
            self._links.setdefault(where, []).extend(item["names"])
            return
        try:
            with self._directories.open(where) as directory:
                if item["what"] == "folder":
                    self._folder(directory, where, item["links"])
                else:
                    self._fragments.file("mailbox", {"mailbox": where[1], "links": item["links"]})
                    self._tally.add(MAILBOX, DISK, where[1])
        except (FileNotFoundError, NotADirectoryError):
            return  # gone since it was listed
        except OSError as error:
            if not (why := unreadable.cause(error)):
                raise
            self._closed(item, where, why)

    def _closed(self, item: dict[str, Any], where: layout.Parts, why: str) -> None:
        """A mailbox or a folder that is there and cannot be opened."""
        if item["what"] == "folder":
            row: Row = {"mailbox": where[1], "entry": where[2], "links": item["links"], "problem": why, "cause": why}
            self._fragments.file("folder", row)
            self._tally.odd(FOLDER)
        else:
            self._fragments.file("mailbox", {"mailbox": where[1], "links": item["links"]})
            self._tally.add(MAILBOX, DISK, where[1])

    # --- content ---------------------------------------------------------------------------------------------------

    def finish(self) -> Sums:
        """All content of the piece, in the order of its names, and all links; what the whole piece adds up to."""
        changed = {
            (what, where): names
            for (what, where), found in self._waiting.items()
            if (names := self._changed(what, where, found))
        }
        if not changed and (sums := self._earlier.sums()) is not None:
            self._earlier.share(self._fragments)
            return sums
        for (what, where), names_left in changed.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._directories.open(where) as directory:
                self._content(directory, where, what, names_left)
        self._take_over()
        for where, links in self._links.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._directories.open(where) as directory:
                for name in sorted(links, key=uid_of):  # as they were made: neighbours on disk
                    self._link(directory, where, name)
        sums = self._tally.sums()
        self._fragments.note(sums)
        return sums

    def _changed(self, what: str, where: layout.Parts, found: list[str]) -> list[str]:
        """The names that an earlier look did not see as they are now."""
        place = layout.absolute(*where)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._directories.open(where) as directory:
            return sorted(name for name in found if not self._earlier.take(what, directory, place, name))
        return []

    def _content(self, directory: int, where: layout.Parts, what: str, found: list[str]) -> None:
        place = layout.absolute(*where)
        for name, file in opened(directory, found):
            row: Row = {"place": place, "name": name, "id": "", "sha": "", "problem": "", "cause": "", "proper": False}
            if isinstance(file, FileNotFoundError):
                continue  # gone since it was listed
            if isinstance(file, int):
                for finding in tree_audit.of_file(where, name, os.fstat(file), self._owner):
                    self._fragments.found(asdict(finding))
            if what == "message":
                self._message(file, directory, where, row)
            else:
                self._blob(file, where, row)

    def _take_over(self) -> None:
        """Rows of an earlier look, of files that are what they were."""
        columns = ("id", "sha", "problem", "proper", "cache_hash")
        for part, table in self._earlier.kept():
            self._fragments.files(part, table)
            for values in zip(*(table.column(name).to_pylist() for name in columns)):
                self._count(part, *values)

    def _count(self, part: str, name: str, sha256: str, problem: str, proper: bool, cache_hash: str | None) -> None:
        if not name or problem or not proper:
            self._tally.odd(MESSAGE if part == "message" else BLOB)
        elif part == "message":
            self._tally.add(MESSAGE, DISK, name, sha256)
            if cache_hash:
                self._tally.add(CACHE, DISK, name, cache_hash)
        else:
            self._tally.add(BLOB, DISK, name)

    def _message(self, file: int | OSError, directory: int, where: layout.Parts, row: Row) -> None:
        name = row["name"]
        message_id = name.removesuffix(".md")
        if not layout.MESSAGE_ID.match(message_id) or not name.endswith(".md"):
            row["problem"] = "is no message by its name"
        else:
            row["id"] = message_id
            try:
                data, row["stamp"] = _read(file)
                row["proper"] = where == layout.message_directory(message_id)
                self._examined(row, data, directory)
            except OSError as error:
                row |= {"problem": f"cannot be read: {error.strerror}", "cause": unreadable.cause(error), "stamp": ""}
        self._fragments.file("message", row, len(row.get("meta") or b""))
        self._count("message", row["id"], row["sha"], row["problem"], row["proper"], row.get("cache_hash"))

    def _examined(self, row: Row, file: bytes | None, directory: int) -> None:
        if file is None:
            found = Examined(hash_file(directory, row["name"]), "too large to be ours")
        else:
            found = examine(file, row["id"], self._blobs)
            row["size"] = len(file)
        row |= {"sha": found.sha256, "problem": found.problem, "blobs": found.blobs}
        if found.recipe is not None:
            row["cache_hash"] = found.cache_hash()
            kept = dict(zip(("recipe", "envelope", "structure", "outline", "preview"), found[3:]))
            size = sum(len(value) for value in found[3:] if value is not None)
            self._fragments.cache({"id": row["id"], "sha": found.sha256, **kept}, size)
        if self._describe and file is not None and not found.problem:
            with contextlib.suppress(MailError):
                row["meta"] = description(file, self._blobs)

    def _blob(self, file: int | OSError, where: layout.Parts, row: Row) -> None:
        name = row["name"]
        if not layout.SHA256.match(name):
            row["problem"] = "is no blob by its name"
        else:
            row["id"] = name
            try:
                row["stamp"], row["sha"] = _digest(file)
            except OSError as error:
                row |= {"problem": f"cannot be read: {error.strerror}", "cause": unreadable.cause(error)}
            else:
                row["problem"] = "" if row["sha"] == name else "does not match its checksum"
                row["proper"] = where == layout.blob_directory(name)
        self._fragments.file("blob", row)
        self._count("blob", row["id"], row["sha"], row["problem"], row["proper"], None)

    # --- mailboxes -------------------------------------------------------------------------------------------------

    def _link(self, directory: int, where: layout.Parts, name: str) -> None:
        message_id = name.removesuffix(".md").partition("-")[2]  # its form was looked at when it was listed
        why = ""
        try:
            target = os.readlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        except OSError as error:
            target = ""  # no link at all
            why = unreadable.cause(error)
        row: Row = {"mailbox": where[1], "entry": where[2], "name": name, "uid": uid_of(name), "id": message_id}
        row["cause"] = why
        try:
            row["proper"] = target == layout.projection_target(message_id)
        except ValueError:
            row["proper"] = False
        if row["proper"]:
            self._tally.add(LINK, DISK, where[1], where[2], name)
        else:
            row["target"] = os.fsencode(target).decode("utf-8", "replace")
            self._tally.odd(LINK)
        self._fragments.file("link", row)

    def _folder(self, directory: int, where: layout.Parts, links: int) -> None:
        row = _describe_folder(directory, where, self._store)
        self._fragments.file("folder", {**row, "mailbox": where[1], "entry": where[2], "links": links})
        if names.is_shortened(where[2]) and not row["full_name"]:
            detail = f"{layout.FULL_NAME_FILE} is not the name of this folder"
            wrong = Finding(
                "folder-name-wrong", layout.absolute(*where[1:]), mailbox=where[1], entry=where[2], detail=detail
            )
            self._fragments.found(asdict(wrong))
        if row["problem"]:
            self._tally.odd(FOLDER)
        else:
            self._tally.add(FOLDER, DISK, where[1], where[2], str(row["folder"]), str(row["uid"]))


def _read(file: int | OSError) -> tuple[bytes | None, str]:
    """The content of a file and its stamp; no content if it is larger than any of ours."""
    if isinstance(file, OSError):
        raise file
    about = os.fstat(file)
    if about.st_size > LARGEST_FILE:
        return None, settled_stamp(about)
    data = os.read(file, about.st_size + 1)
    while more := os.read(file, 1 << 20) if len(data) < about.st_size else b"":
        data += more
    return data, settled_stamp(about)


def _digest(file: int | OSError) -> tuple[str, str]:
    """The stamp and the digest of a blob."""
    if isinstance(file, OSError):
        raise file
    about = os.fstat(file)
    with open(file, "rb", closefd=False) as content:
        return settled_stamp(about), file_digest(content, "sha256").hexdigest()


def _describe_folder(directory: int, where: layout.Parts, store: str) -> Row:
    row: Row = {"problem": "", "cause": "", "full_name": folder_name(directory, where[2])}
    try:
        raw = disk.read_file(directory, layout.IDENTITY_FILE)
    except FileNotFoundError:
        return {**row, "problem": "has no identity"}
    except OSError as error:
        return {**row, "problem": f"its identity cannot be read: {error.strerror}", "cause": unreadable.cause(error)}
    known = folder_identity.decode(raw)
    if known is None:
        return {**row, "problem": "its identity does not match its checksum"}
    if known.store != store:
        return {**row, "problem": FOREIGN}
    return {
        **row,
        "folder": known.folder,
        "registration": known.registration,
        "uidvalidity": known.uidvalidity,
        "special": known.special_use,
        "uid": known.uids_below,
    }


def folder_name(directory: int, entry: str) -> str:
    """The name a directory tells; empty if no folder can have it, or it is shortened and the full name is lost."""
    try:
        if names.is_shortened(entry):
            name = disk.read_file(directory, layout.FULL_NAME_FILE).decode()
        else:
            name = names.folder_of_entry(entry)
        return name if names.normalise_folder(name) == name and names.folder_entry(name) == entry else ""
    except (OSError, UnicodeDecodeError, MailError):
        return ""
