"""What a hook is told of a message: a JSON object, and the same as environment variables.

The content is not in it: ``file`` names the canonical Markdown file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from adapter.store import layout
from adapter.transport.changes import Arrival
from adapter.transport.transport import Transport

_MESSAGE = """
SELECT m.header_from, m.subject, m.header_id, m.thread_id, m.size, m.arrived_at, r.address
FROM messages m, mailbox_registrations r
WHERE m.message_id = ? AND m.file_sha256 <> '' AND r.registration_id = ?
"""
_INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ")
#: The system bounds what a program may be started with; the whole text is in the JSON.
_LONGEST_VARIABLE = 1000


def facts(transport: Transport, hook: str, arrival: Arrival) -> dict[str, Any] | None:
    """None if the message is no more: then there is nothing to tell. Blocks."""
    with transport.reading() as connection:
        row = connection.execute(_MESSAGE, (arrival.message_id, arrival.registration)).fetchone()
    if row is None:
        return None
    sender, subject, header_id, thread, size, arrived, account = row
    place = layout.message_directory(arrival.message_id), layout.message_name(arrival.message_id)
    return {
        "event": "new-mail",
        "hook": hook,
        "account": account,
        "folder": arrival.folder_name,
        "uid": arrival.uid,
        "message": arrival.message_id,
        "file": layout.absolute(os.path.abspath(transport.root), *place[0], place[1]),
        "from": sender,
        "subject": subject,
        "message_id": header_id,
        "thread": thread,
        "size": size,
        "arrived": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(arrived)),
    }


def environment(told: Mapping[str, Any]) -> dict[str, str]:
    """For a command: what it needs to run, and the facts as ``MARKPOST_…``; nothing else of our own environment."""
    variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    for name, value in told.items():
        text = str(value).replace("\0", "")
        variables[f"MARKPOST_{name.upper()}"] = text[:_LONGEST_VARIABLE].encode("utf-8", "replace").decode()
    return variables
