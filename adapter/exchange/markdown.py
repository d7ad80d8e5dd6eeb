"""``.md`` files as mail: front matter and text are composed into a message, as ``markpost deliver`` does.

A file gives the same octets each time it is read, so that an import can be repeated: Date is the ``date`` of the front
matter, else the time of the file, and the Message-ID is derived from the content.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256

from adapter.content.compose import compose, read_date
from adapter.exchange.model import Item, Source, SourceError, read_file, tidy_folder
from adapter.store import layout, names
from protocol.errors import MailError
from protocol.mime.addresses import Mailbox

SUFFIX = ".md"


def is_markdown(path: str) -> bool:
    return path.lower().endswith(SUFFIX)


def find(path: str) -> list[str]:
    """List the ``.md`` files below a directory, sorted. Hidden directories (``.git``) and stores are left out."""
    files = []
    for directory, subdirectories, entries in os.walk(path):
        if layout.VERSION_FILE in entries:
            subdirectories.clear()
            continue
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
        files += [os.path.join(directory, name) for name in sorted(entries) if is_markdown(name)]
    return files


def source(path: str, files: Sequence[str], address: str) -> Source:
    """Return these files as a source; the directories below ``path`` are folders."""
    items = [_item(path, file, address) for file in files]
    folders = dict.fromkeys([names.INBOX, *(item.folder for item in items)])
    return Source(tuple(folders), sum(item.octets for item in items), partial(iter, items))


def _item(path: str, file: str, address: str) -> Item:
    inner = os.path.relpath(os.path.dirname(file), path) if file != path else "."
    folder = names.INBOX if inner == "." else tidy_folder(inner.split(os.sep))
    try:
        status = os.lstat(file)
    except OSError:
        return Item(file, folder, 0, partial(read_file, file))  # reading the chunks reports the error
    date = _date(file, int(status.st_mtime))
    return Item(file, folder, status.st_size, partial(_compose, file, address, date), date)


def _date(file: str, modified: int) -> int:
    """The date of the front matter, else the time of the file."""
    try:
        return read_date(b"".join(read_file(file))) or modified
    except (SourceError, MailError):
        return modified


def _compose(file: str, address: str, date: int) -> Iterator[bytes]:
    text = b"".join(read_file(file))
    person = Mailbox("", address)
    try:
        yield compose(
            text,
            sender=person,
            recipients=[person],
            now=datetime.fromtimestamp(date, UTC),
            message_id=f"<{sha256(text).hexdigest()[:32]}@{address.rpartition('@')[2]}>",
            ignore_unknown_keys=True,
        )
    except (MailError, ValueError, OverflowError) as error:
        raise SourceError(str(error)) from error
