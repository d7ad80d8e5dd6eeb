"""The rows of a message that only its canonical file tells of."""

from __future__ import annotations

import calendar
import os
import time

import orjson

from adapter.maintenance import examine
from adapter.maintenance.state import State
from adapter.store import disk, layout
from adapter.store.journal import Effect
from protocol.errors import MailError


def content_effect(state: State, message_id: str, meta: bytes | None = None) -> Effect | None:
    """The rows of a message as its canonical file tells them; None if the file is not good or a part is not there."""
    try:
        if meta is None:
            with state.directories.open(layout.message_directory(message_id)) as directory:
                file = disk.read_file(directory, layout.message_name(message_id))
            if examine.examine(file, message_id, examine.Blobs(state.directories)).recipe is None:
                return None
            meta = examine.description(file)
        told = orjson.loads(meta)
    except (OSError, ValueError, MailError):
        return None
    known = {
        address
        for address in {*told["to"], *told["cc"]}
        if state.connection.execute(
            "SELECT 1 FROM mailbox_registrations WHERE address = ? AND status <> 'purged'", (address.casefold(),)
        ).fetchone()
    }
    recipients = {address.casefold(): "cc" for address in told["cc"] if address in known}
    recipients |= {address.casefold(): "to" for address in told["to"] if address in known}
    sizes = []
    try:
        for sha256 in told["parts"]:
            with state.directories.open(layout.blob_directory(sha256)) as directory:
                sizes.append((sha256, "part", "", "", os.stat(sha256, dir_fd=directory).st_size))
    except OSError:
        return None
    return {
        "do": "content",
        "id": message_id,
        "arrived": arrived(message_id),
        "sender": told["from"],
        "from": told["from"],
        "subject": told["subject"],
        "header_id": told["header_id"],
        "thread": told["thread"],
        "size": told["size"],
        "wire": told["wire"],
        "file": told["file"],
        "text": None,
        "staged": ["", None],
        "blobs": [],
        "attachments": [*told["attachments"], *sizes],
        "recipients": list(recipients.items()),
    }


def arrived(message_id: str) -> int:
    return calendar.timegm(time.strptime(message_id[4:20], "%Y%m%dT%H%M%SZ"))
