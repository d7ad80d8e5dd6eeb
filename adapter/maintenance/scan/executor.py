"""The task of an executor: scan the entries of one partition. Read-only.

The rows are written to Parquet files; the task returns only their sums
(:mod:`adapter.maintenance.scan.fingerprint`).
"""

from __future__ import annotations

import contextlib
import gc
import os
from hashlib import file_digest

import msgspec

from adapter.maintenance.findings import Finding, unreadable_cause
from adapter.maintenance.scan import index_tables, items, tree_audit
from adapter.maintenance.scan.fingerprint import BLOB, CACHE, DISK, FOLDER, LINK, MAILBOX, MESSAGE, SetHash, Sums
from adapter.maintenance.scan.index_tables import ScanOptions
from adapter.maintenance.scan.items import (
    BlobItem,
    CompareItem,
    FileItem,
    FolderItem,
    LinkItem,
    MailboxItem,
    MessageItem,
    TableItem,
)
from adapter.maintenance.scan.message_check import (
    MAX_FILE_BYTES,
    TOO_LARGE,
    BlobFiles,
    MessageCheck,
    check_message,
    describe_message,
    hash_file,
)
from adapter.maintenance.scan.partition import uid_of
from adapter.maintenance.scan.readahead import open_ahead
from adapter.maintenance.scan.rows import EarlierRows, Row, RowWriter, earlier_link_sums, reusable_stamp
from adapter.store import disk, folder_identity, layout, names
from adapter.store.disk import Directories
from protocol.errors import MailError

FOREIGN = "folder identity belongs to another store"
_GC_THRESHOLD = 50_000  # allocations between collections: almost no objects of a scan form cycles


def scan_partition(path: str, options: ScanOptions) -> Sums:
    """Scan one partition."""
    gc.set_threshold(_GC_THRESHOLD)
    with open(path, "rb") as file:
        raw = file.read()
    work = [items.decode(line) for line in raw.splitlines()]
    set_hash = SetHash(options.secret)
    partition = os.path.basename(path).removesuffix(".json")
    with (
        contextlib.closing(Directories(options.root)) as directories,
        RowWriter(options.scratch, partition) as writer,
    ):
        if options.earlier and all(isinstance(item, LinkItem) and item.stamp for item in work):
            same = _has_same_items(f"{options.earlier}/{os.path.basename(path)}", raw)
            sums = earlier_link_sums(options.earlier, partition) if same else None
            if sums is not None:
                writer.share_links(options.earlier)
                return sums
        earlier = EarlierRows(options.earlier, partition)
        scanner = FileScanner(directories, writer, set_hash, earlier, options.store, options.describe)
        for item in work:
            if isinstance(item, (TableItem, CompareItem)):
                index_tables.read_range(item, options, writer, set_hash)
            else:
                scanner.add(item)
        return scanner.finish()


def _has_same_items(path: str, raw: bytes) -> bool:
    """True if an earlier inspection had the same partition: the same names, in directories with the same stamps."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read() == raw
    return False


class FileScanner:
    """Scanner for the files of one partition: collects items, and reads content and links in :meth:`finish`."""

    def __init__(
        self,
        directories: Directories,
        writer: RowWriter,
        set_hash: SetHash,
        earlier: EarlierRows,
        store: str,
        describe: bool,
    ) -> None:
        self._directories = directories
        self._writer = writer
        self._set_hash = set_hash
        self._earlier = earlier
        self._store = store
        self._describe = describe
        self._blobs = BlobFiles(directories)
        self._owner = os.fstat(directories.root_fd).st_uid
        self._content: dict[tuple[str, layout.Parts], list[str]] = {}
        self._links: dict[layout.Parts, list[str]] = {}

    def add(self, item: FileItem) -> None:
        """Queue an item of content or links; scan a folder or a mailbox at once."""
        where = item.where
        if isinstance(item, (MessageItem, BlobItem)):
            self._content.setdefault((item.part, where), []).extend(item.names)
            return
        if isinstance(item, LinkItem):
            self._links.setdefault(where, []).extend(item.names)
            return
        try:
            with self._directories.open(where) as directory:
                if isinstance(item, FolderItem):
                    self._scan_folder(directory, where, item.links)
                else:
                    self._add_mailbox(where, item.links)
        except (FileNotFoundError, NotADirectoryError):
            return  # removed since it was listed
        except OSError as error:
            if not (why := unreadable_cause(error)):
                raise
            self._add_unopenable(item, why)

    def _add_mailbox(self, where: layout.Parts, links: int) -> None:
        self._writer.add_file("mailbox", {"mailbox": where[1], "links": links})
        self._set_hash.add(MAILBOX, DISK, where[1])

    def _add_unopenable(self, item: FolderItem | MailboxItem, why: str) -> None:
        """Add the row of a mailbox or folder that exists and cannot be opened."""
        where = item.where
        if isinstance(item, FolderItem):
            row: Row = {"mailbox": where[1], "entry": where[2], "links": item.links, "problem": why, "cause": why}
            self._writer.add_file("folder", row)
            self._set_hash.mark_anomaly(FOLDER)
        else:
            self._add_mailbox(where, item.links)

    # --- content ---------------------------------------------------------------------------------------------------

    def finish(self) -> Sums:
        """Scan all content of the partition in the order of names, then all links; return the sums."""
        changed = {
            (what, where): changed_names
            for (what, where), content_names in self._content.items()
            if (changed_names := self._changed_names(what, where, content_names))
        }
        if not changed and (sums := self._earlier.sums()) is not None:
            self._earlier.share(self._writer)
            return sums
        for (what, where), changed_names in changed.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._directories.open(where) as directory:
                self._scan_content(directory, where, what, changed_names)
        self._add_reused_rows()
        for where, links in self._links.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._directories.open(where) as directory:
                for name in sorted(links, key=uid_of):  # the order of creation: neighbours on disk
                    self._scan_link(directory, where, name)
        sums = self._set_hash.sums()
        self._writer.save_sums(sums)
        return sums

    def _changed_names(self, what: str, where: layout.Parts, content_names: list[str]) -> list[str]:
        """The names without a reusable row of an earlier inspection."""
        place = layout.absolute(*where)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._directories.open(where) as directory:
            return sorted(name for name in content_names if not self._earlier.reuse(what, directory, place, name))
        return []

    def _scan_content(self, directory: int, where: layout.Parts, what: str, content_names: list[str]) -> None:
        place = layout.absolute(*where)
        for name, file in open_ahead(directory, content_names):
            row: Row = {"place": place, "name": name, "id": "", "sha": "", "problem": "", "cause": "", "proper": False}
            if isinstance(file, FileNotFoundError):
                continue  # removed since it was listed
            if isinstance(file, int):
                for finding in tree_audit.audit_file(where, name, os.fstat(file), self._owner):
                    self._writer.add_finding(finding)
            if what == "message":
                self._scan_message(file, directory, where, row)
            else:
                self._scan_blob(file, where, row)

    def _add_reused_rows(self) -> None:
        """Add the earlier rows of unchanged files."""
        columns = ("id", "sha", "problem", "proper", "cache_hash")
        for part, table in self._earlier.reused_rows():
            self._writer.add_files(part, table)
            for values in zip(*(table.column(name).to_pylist() for name in columns)):
                self._add_to_hash(part, *values)

    def _add_to_hash(
        self, part: str, name: str, sha256: str, problem: str, proper: bool, cache_hash: str | None
    ) -> None:
        if not name or problem or not proper:
            self._set_hash.mark_anomaly(MESSAGE if part == "message" else BLOB)
        elif part == "message":
            self._set_hash.add(MESSAGE, DISK, name, sha256)
            if cache_hash:
                self._set_hash.add(CACHE, DISK, name, cache_hash)
        else:
            self._set_hash.add(BLOB, DISK, name)

    def _scan_message(self, file: int | OSError, directory: int, where: layout.Parts, row: Row) -> None:
        name = row["name"]
        message_id = name.removesuffix(".md")
        if not layout.MESSAGE_ID.match(message_id) or not name.endswith(".md"):
            row["problem"] = "not a message by its name"
        else:
            row["id"] = message_id
            try:
                data, row["stamp"] = _read(file)
                row["proper"] = where == layout.message_directory(message_id)
                self._check(row, data, directory)
            except OSError as error:
                row |= {"problem": f"cannot be read: {error.strerror}", "cause": unreadable_cause(error), "stamp": ""}
        self._writer.add_file("message", row, len(row.get("meta") or b""))
        self._add_to_hash("message", row["id"], row["sha"], row["problem"], row["proper"], row.get("cache_hash"))

    def _check(self, row: Row, file: bytes | None, directory: int) -> None:
        if file is None:
            check = MessageCheck(hash_file(directory, row["name"]), TOO_LARGE)
        else:
            check = check_message(file, row["id"], self._blobs)
            row["size"] = len(file)
        row |= {"sha": check.sha256, "problem": check.problem, "blobs": check.blobs}
        if check.recipe is not None:
            row["cache_hash"] = check.cache_hash()
            cache_row = dict(zip(("recipe", "envelope", "structure", "outline", "preview"), check[3:]))
            size = sum(len(value) for value in check[3:] if value is not None)
            self._writer.add_cache_row({"id": row["id"], "sha": check.sha256, **cache_row}, size)
        if self._describe and file is not None and not check.problem:
            with contextlib.suppress(MailError):
                row["meta"] = msgspec.json.encode(describe_message(file, self._blobs))

    def _scan_blob(self, file: int | OSError, where: layout.Parts, row: Row) -> None:
        name = row["name"]
        if not layout.SHA256.match(name):
            row["problem"] = "not a blob by its name"
        else:
            row["id"] = name
            try:
                row["stamp"], row["sha"] = _digest(file)
            except OSError as error:
                row |= {"problem": f"cannot be read: {error.strerror}", "cause": unreadable_cause(error)}
            else:
                row["problem"] = "" if row["sha"] == name else "does not match its checksum"
                row["proper"] = where == layout.blob_directory(name)
        self._writer.add_file("blob", row)
        self._add_to_hash("blob", row["id"], row["sha"], row["problem"], row["proper"], None)

    # --- mailboxes -------------------------------------------------------------------------------------------------

    def _scan_link(self, directory: int, where: layout.Parts, name: str) -> None:
        message_id = name.removesuffix(".md").partition("-")[2]  # the form of the name was checked by the listing
        why = ""
        try:
            target = os.readlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        except OSError as error:
            target = ""  # not a link
            why = unreadable_cause(error)
        row: Row = {"mailbox": where[1], "entry": where[2], "name": name, "uid": uid_of(name), "id": message_id}
        row["cause"] = why
        try:
            row["proper"] = target == layout.projection_target(message_id)
        except ValueError:
            row["proper"] = False
        if row["proper"]:
            self._set_hash.add(LINK, DISK, where[1], where[2], name)
        else:
            row["target"] = os.fsencode(target).decode("utf-8", "replace")
            self._set_hash.mark_anomaly(LINK)
        self._writer.add_file("link", row)

    def _scan_folder(self, directory: int, where: layout.Parts, links: int) -> None:
        row = _describe_folder(directory, where, self._store)
        self._writer.add_file("folder", {**row, "mailbox": where[1], "entry": where[2], "links": links})
        if names.is_shortened(where[2]) and not row["full_name"]:
            detail = f"{layout.FULL_NAME_FILE} does not contain the name of this folder"
            finding = Finding(
                "folder-name-wrong", layout.absolute(*where[1:]), mailbox=where[1], entry=where[2], detail=detail
            )
            self._writer.add_finding(finding)
        if row["problem"]:
            self._set_hash.mark_anomaly(FOLDER)
        else:
            self._set_hash.add(FOLDER, DISK, where[1], where[2], str(row["folder"]), str(row["uid"]))


def _read(file: int | OSError) -> tuple[bytes | None, str]:
    """Read a file and its stamp; the content of an oversized file is not read."""
    if isinstance(file, OSError):
        raise file
    status = os.fstat(file)
    if status.st_size > MAX_FILE_BYTES:
        return None, reusable_stamp(status)
    data = os.read(file, status.st_size + 1)
    while more := os.read(file, 1 << 20) if len(data) < status.st_size else b"":
        data += more
    return data, reusable_stamp(status)


def _digest(file: int | OSError) -> tuple[str, str]:
    """The stamp and the digest of a blob."""
    if isinstance(file, OSError):
        raise file
    status = os.fstat(file)
    with open(file, "rb", closefd=False) as content:
        return reusable_stamp(status), file_digest(content, "sha256").hexdigest()


def _describe_folder(directory: int, where: layout.Parts, store: str) -> Row:
    row: Row = {"problem": "", "cause": "", "full_name": folder_name(directory, where[2])}
    try:
        raw = disk.read_file(directory, layout.IDENTITY_FILE)
    except FileNotFoundError:
        return {**row, "problem": "folder identity is missing"}
    except OSError as error:
        return {
            **row,
            "problem": f"folder identity cannot be read: {error.strerror}",
            "cause": unreadable_cause(error),
        }
    identity = folder_identity.decode(raw)
    if identity is None:
        return {**row, "problem": "folder identity does not match its checksum"}
    if identity.store != store:
        return {**row, "problem": FOREIGN}
    return {
        **row,
        "folder": identity.folder,
        "registration": identity.registration,
        "uidvalidity": identity.uidvalidity,
        "special": identity.special_use,
        "uid": identity.uids_below,
    }


def folder_name(directory: int, entry: str) -> str:
    """The folder name of a directory; "" if it is not a valid name, or is shortened and the full name is lost."""
    try:
        if names.is_shortened(entry):
            name = disk.read_file(directory, layout.FULL_NAME_FILE).decode()
        else:
            name = names.folder_of_entry(entry)
        return name if names.normalise_folder(name) == name and names.folder_entry(name) == entry else ""
    except (OSError, UnicodeDecodeError, MailError):
        return ""
