"""Content: canonical files and the blobs they name."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from enum import Enum
from functools import partial

from adapter.store import disk, layout, quarantine
from adapter.store.disk import Directories
from adapter.store.effects import AddContent, DropContent, Effect
from adapter.store.queries import content_rows
from adapter.transport.apply.undo import Undo


def place(effect: AddContent, directories: Directories, undo: Undo) -> None:
    session, name = effect.staged.session, effect.staged.name
    if name is None:
        raise ValueError(f"{effect.message_id} was never staged")
    with directories.open(layout.staging_directory(session)) as staging:
        for blob in effect.blobs:
            where = layout.blob_directory(blob.sha256)
            with directories.stable(where, create=True) as target:
                if blob.staged is None or disk.is_file(target, blob.sha256, blob.size):
                    continue
                if disk.exists(target, blob.sha256):
                    quarantine.set_aside(directories, target, blob.sha256)
            journaled = blob.data is not None
            _move(directories, staging, session, blob.staged, where, blob.sha256, undo, journaled=journaled)
        where, new_name = layout.message_directory(effect.message_id), layout.message_name(effect.message_id)
        _move(directories, staging, session, name, where, new_name, undo, journaled=effect.file is not None)


def _move(
    directories: Directories,
    staging: int,
    session: str,
    name: str,
    where: layout.Parts,
    new_name: str,
    undo: Undo,
    *,
    journaled: bool,
) -> None:
    """Put a staged file in place.

    A file that the journal carries is renamed. Any other is linked and keeps its synced name in staging until a
    checkpoint: a power loss could otherwise remove both names.
    """
    with directories.stable(where, create=True) as target:
        if journaled:
            disk.rename(staging, name, target, new_name)
        else:
            disk.link(staging, name, target, new_name)

    def back() -> None:
        with (
            directories.open(layout.staging_directory(session)) as source,
            directories.stable(where) as target,
        ):
            if journaled:
                disk.rename(target, new_name, source, name)
            else:
                disk.unlink(target, new_name)

    undo.add(back)


class Belief(Enum):
    """Trust in existing files: every name, every file with the right content, or none."""

    NAMES = "names"
    CONTENT = "content"
    NOTHING = "nothing"


def restore(effect: AddContent, directories: Directories, belief: Belief, *, leaving: bool) -> None:
    """Recovery: make sure the file and its blobs are in place, from the journal or from staging.

    ``leaving``: a later record drops the message again. Its blobs are restored all the same, since others may count
    on them; what has left staging was durable elsewhere and need not come back.
    """
    blobs = [
        (layout.blob_directory(name := blob.sha256), name, name, blob.data.raw if blob.data else None, blob.staged)
        for blob in effect.blobs
    ]
    message = (
        layout.message_directory(effect.message_id),
        layout.message_name(effect.message_id),
        effect.file_sha256,
        None if effect.file is None else effect.file.encode(),
        effect.staged.name,
    )
    for where, name, sha256, raw, staged in (*blobs, message):
        with directories.stable(where, create=True) as target:
            temporary = f".{name[:200]}.restored"
            if disk.exists(target, temporary):  # of a recovery that was cut short
                disk.unlink(target, temporary)
            rewritten = belief is Belief.NOTHING and raw is not None
            if not rewritten and _is_there(target, name, None if belief is Belief.NAMES else sha256):
                continue
            if raw is not None:
                disk.write_new(target, temporary, raw)
                disk.rename(target, temporary, target, name)
            elif staged is not None:
                gone = contextlib.suppress(FileNotFoundError) if leaving else contextlib.nullcontext()
                with gone, directories.open(layout.staging_directory(effect.staged.session)) as staging:
                    with contextlib.suppress(FileNotFoundError):
                        disk.unlink(target, name)
                    disk.link(staging, staged, target, name)


def _is_there(directory: int, name: str, sha256: str | None) -> bool:
    try:
        with open(disk.open_read(directory, name), "rb") as file:
            return sha256 is None or hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:  # missing, or not a regular file
        return False


def remove(effect: DropContent, directories: Directories, undo: Undo) -> None:
    """Move the files to staging, from where they go once the commit is done."""
    going = [
        (layout.message_directory(message_id), layout.message_name(message_id)) for message_id in effect.message_ids
    ]
    going += [(layout.blob_directory(sha256), sha256) for sha256 in effect.blobs]
    with directories.open(layout.DROPPED, create=True) as dropped:
        for where, name in going:
            gone = contextlib.suppress(FileNotFoundError, NotADirectoryError)  # or never reached through a planted link
            with gone, directories.stable(where, create=True) as directory:
                disk.rename(directory, name, dropped, name)
                undo.add(partial(_bring_back, directories, where, name))
                undo.after_commit(partial(_forget, directories, name))


def _bring_back(directories: Directories, where: layout.Parts, name: str) -> None:
    with directories.open(layout.DROPPED) as dropped, directories.stable(where) as directory:
        disk.rename(dropped, name, directory, name)


def _forget(directories: Directories, name: str) -> None:
    with directories.open(layout.DROPPED) as dropped:
        disk.unlink(dropped, name)


def remove_again(effect: DropContent, directories: Directories) -> None:
    """Recovery: make sure the files are gone."""
    undo = Undo()
    remove(effect, directories, undo)
    undo.committed()


def revert(effect: Effect, directories: Directories, connection: sqlite3.Connection) -> None:
    """Recovery: make the files of an aborted effect agree with the index."""
    if isinstance(effect, AddContent):
        message_id = effect.message_id
        if not content_rows.has_message(connection, message_id):
            _remove_stray(directories, layout.message_directory(message_id), layout.message_name(message_id))
        for blob in effect.blobs:
            if blob.staged is not None and not content_rows.has_blob(connection, blob.sha256):
                _remove_stray(directories, layout.blob_directory(blob.sha256), blob.sha256)
    elif isinstance(effect, DropContent):
        for message_id in effect.message_ids:
            if content_rows.has_content(connection, message_id):
                _take_out(directories, layout.message_directory(message_id), layout.message_name(message_id))
        for sha256 in effect.blobs:
            if content_rows.has_blob(connection, sha256):
                _take_out(directories, layout.blob_directory(sha256), sha256)


def _remove_stray(directories: Directories, where: layout.Parts, name: str) -> None:
    # Where no directory of ours is, nothing of ours was put.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), directories.open(where) as directory:
        if disk.exists(directory, name):
            disk.unlink(directory, name)


def _take_out(directories: Directories, where: layout.Parts, name: str) -> None:
    """Bring a file back from where it waited to be removed."""
    with contextlib.suppress(FileNotFoundError), directories.open(layout.DROPPED) as dropped:
        if disk.exists(dropped, name):
            _bring_back(directories, where, name)
