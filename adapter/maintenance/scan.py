"""What an executor does with a piece of work: reads files or rows, and says what it found. It changes nothing."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Any

import orjson

from adapter.maintenance import tables
from adapter.maintenance.compare import compare
from adapter.maintenance.examine import Blobs, cache_hash, description, examine, hash_file
from adapter.store import disk, identity, layout, names
from adapter.store.disk import Directories
from protocol.errors import MailError

Row = dict[str, Any]


def work(path: str, options: dict[str, str]) -> Iterator[Row]:
    with open(path, "rb") as file:
        items = orjson.loads(file.read())
    with contextlib.closing(Directories(options["root"])) as directories:
        for item in items:
            if item["what"] == "base":
                yield from _base(options["base"], item)
            elif item["what"] == "compare":
                yield from _compare(options, item)
            elif item["what"] == "cache":
                yield from _cache(options["copy"], item)
            else:
                yield from _files(directories, item, describe=options.get("describe") == "yes")


# --- files -----------------------------------------------------------------------------------------------------------


def _files(directories: Directories, item: Row, *, describe: bool) -> Iterator[Row]:
    where: layout.Parts = tuple(item["where"])
    try:
        with directories.open(where) as directory:
            if item["what"] == "message":
                blobs = Blobs(directories)
                for name in item["names"]:
                    yield from _message(directory, where, name, blobs, describe)
            elif item["what"] == "blob":
                for name in item["names"]:
                    yield from _blob(directory, where, name)
            elif item["what"] == "link":
                for name in item["names"]:
                    yield from _link(directory, where, name)
            elif item["what"] == "folder":
                yield _folder(directory, where, item["links"])
            else:
                yield {"part": "mailbox", "mailbox": where[1], "links": item["links"]}
    except (FileNotFoundError, NotADirectoryError):
        return  # gone since it was listed


def _message(directory: int, where: layout.Parts, name: str, blobs: Blobs, describe: bool) -> Iterator[Row]:
    row: Row = {"part": "message", "place": layout.absolute(*where), "name": name}
    message_id = name.removesuffix(".md")
    if not layout.MESSAGE_ID.match(message_id) or not name.endswith(".md"):
        yield {**row, "id": "", "problem": "is no message by its name"}
        return
    try:
        file = disk.read_file(directory, name)
    except FileNotFoundError:
        return
    except OSError as error:
        yield {**row, "id": message_id, "sha": "", "problem": f"cannot be read: {error.strerror}", "proper": False}
        return
    found = examine(file, message_id, blobs)
    meta = None
    if describe and not found.problem:
        with contextlib.suppress(MailError):
            meta = description(file)
    yield {
        **row,
        "id": message_id,
        "sha": found.sha256,
        "problem": found.problem,
        "proper": where == layout.message_directory(message_id),
        "blobs": found.blobs,
        "size": len(file),
        "cache_hash": found.cache_hash(),
        "recipe": found.recipe,
        "envelope": found.envelope,
        "structure": found.structure,
        "outline": found.outline,
        "preview": found.preview,
        "meta": meta,
    }


def _blob(directory: int, where: layout.Parts, name: str) -> Iterator[Row]:
    row: Row = {"part": "blob", "place": layout.absolute(*where), "name": name}
    if not layout.SHA256.match(name):
        yield {**row, "id": "", "problem": "is no blob by its name"}
        return
    try:
        found = hash_file(directory, name)
    except FileNotFoundError:
        return
    except OSError as error:
        yield {**row, "id": name, "problem": f"cannot be read: {error.strerror}", "proper": False}
        return
    yield {
        **row,
        "id": name,
        "sha": found,
        "problem": "" if found == name else "does not match its checksum",
        "proper": where == layout.blob_directory(name),
    }


def _link(directory: int, where: layout.Parts, name: str) -> Iterator[Row]:
    match = layout.PROJECTION.match(name)
    if match is None:
        return
    try:
        target = os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
    except OSError:
        target = ""  # no link at all
    try:
        wanted = layout.projection_target(match.group(2))
    except ValueError:
        wanted = ""
    yield {
        "part": "link",
        "mailbox": where[1],
        "entry": where[2],
        "name": name,
        "uid": int(match.group(1)),
        "id": match.group(2),
        "proper": bool(wanted) and target == wanted,
        "target": os.fsencode(target).decode("utf-8", "replace"),
    }


def _folder(directory: int, where: layout.Parts, links: int) -> Row:
    row: Row = {"part": "folder", "mailbox": where[1], "entry": where[2], "links": links, "problem": ""}
    row["full_name"] = folder_name(directory, where[2])
    try:
        raw = disk.read_file(directory, layout.IDENTITY_FILE)
    except FileNotFoundError:
        return {**row, "problem": "has no identity"}
    except OSError as error:
        return {**row, "problem": f"its identity cannot be read: {error.strerror}"}
    known = identity.decode(raw)
    if known is None:
        return {**row, "problem": "its identity does not match its checksum"}
    return {
        **row,
        "folder": known.folder,
        "registration": known.registration,
        "uidvalidity": known.uidvalidity,
        "special": known.special_use,
    }


def folder_name(directory: int, entry: str) -> str:
    """The name a directory tells; empty if it is shortened and its full name is lost."""
    if not names.is_shortened(entry):
        return names.folder_of_entry(entry)
    try:
        name = disk.read_file(directory, layout.FULL_NAME_FILE).decode()
    except (OSError, UnicodeDecodeError):
        return ""
    return name if names.folder_entry(name) == entry else ""


# --- rows ------------------------------------------------------------------------------------------------------------

_SQL = {
    "mailbox_registrations": (
        "registration",
        "SELECT t.registration_id, t.address, t.directory, t.status FROM mailbox_registrations t WHERE {where}",
    ),
    "folders": (
        "base-folder",
        "SELECT t.folder_id, r.directory, t.name, t.registration_id, t.uidnext FROM folders t"
        " JOIN mailbox_registrations r USING (registration_id) WHERE {where}",
    ),
    "mailbox_projections": (
        "projection",
        "SELECT t.folder_id, t.uid, t.message_id, r.directory, f.name FROM mailbox_projections t"
        " JOIN folders f USING (folder_id) JOIN mailbox_registrations r USING (registration_id) WHERE {where}",
    ),
    "message_attachments": (
        "needed",
        "SELECT DISTINCT t.sha256, t.message_id FROM message_attachments t WHERE {where}",
    ),
    "messages": ("known", "SELECT t.message_id, t.file_sha256, t.size FROM messages t WHERE {where}"),
}


def _base(path: str, item: Row) -> Iterator[Row]:
    part, sql = _SQL[item["table"]]
    entries: dict[str, str] = {}  # folder names of this range
    with contextlib.closing(tables.connect(path)) as connection:
        key = tables.keys(connection, item["table"])[0]
        where, values = tables.within("t", key, item["low"], item["high"])
        for row in connection.execute(sql.format(where=where), values):
            if part == "known":
                yield {"part": part, "id": row[0], "sha": row[1], "size": row[2]}
            elif part == "needed":
                yield {"part": part, "sha": row[0], "id": row[1]}
            elif part == "registration":
                yield {"part": part, "registration": row[0], "name": row[1], "mailbox": row[2], "status": row[3]}
            elif part == "base-folder":
                yield {
                    "part": part,
                    "folder": row[0],
                    "mailbox": row[1],
                    "name": row[2],
                    "entry": names.folder_entry(row[2]),
                    "registration": row[3],
                    "uid": row[4],
                }
            else:
                if row[4] not in entries:
                    entries[row[4]] = names.folder_entry(row[4])
                yield {
                    "part": part,
                    "folder": row[0],
                    "uid": row[1],
                    "id": row[2],
                    "mailbox": row[3],
                    "entry": entries[row[4]],
                    "name": layout.projection_name(row[1], row[2]),
                }


def _compare(options: dict[str, str], item: Row) -> Iterator[Row]:
    for found in compare(options["base"], options["copy"], item["table"], item["low"], item["high"]):
        yield {
            "part": "finding",
            "kind": found.kind,
            "subject": found.subject,
            "name": found.name,
            "id": found.id,
            "folder": found.folder,
            "uid": found.uid,
            "detail": found.detail,
        }


def _cache(path: str, item: Row) -> Iterator[Row]:
    with contextlib.closing(tables.connect(path)) as connection:
        where, values = tables.within("t", "message_id", item["low"], item["high"])
        try:
            for row in connection.execute(
                "SELECT t.message_id, t.recipe, t.envelope, t.structure, t.outline, t.preview"  # noqa: S608
                f" FROM cache_messages t WHERE {where}",
                values,
            ):
                yield {"part": "cache", "id": row[0], "sha": cache_hash(row[1:])}
        except (sqlite3.Error, TypeError):
            return  # rows that cannot be read count as missing
