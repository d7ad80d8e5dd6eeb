"""The event that a hook gets for a new message: a JSON object, and the same values as environment variables.

It has no content: ``file`` names the canonical Markdown file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from adapter.store import layout
from adapter.store.queries.messages import MessageHeader
from adapter.transport.changes import Arrival

_INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ")
#: The kernel limits the environment of a program; the full values are in the JSON.
_MAX_VARIABLE_CHARACTERS = 1000


def new_mail_event(root: str, hook: str, account: str, arrival: Arrival, header: MessageHeader) -> dict[str, Any]:
    """Return the event for a message of the store at ``root``."""
    directory, name = layout.message_directory(arrival.message_id), layout.message_name(arrival.message_id)
    return {
        "event": "new-mail",
        "hook": hook,
        "account": account,
        "folder": arrival.folder_name,
        "uid": arrival.uid,
        "message": arrival.message_id,
        "file": layout.absolute(os.path.abspath(root), *directory, name),
        "from": header.header_from,
        "subject": header.subject,
        "message_id": header.header_id,
        "thread": header.thread_id,
        "size": header.size,
        "arrived": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(header.arrived_at)),
    }


def environment(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a command: what it needs to run, and the event as ``MARKPOST_…``."""
    variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    for name, value in event.items():
        text = str(value).replace("\0", "")
        variables[f"MARKPOST_{name.upper()}"] = text[:_MAX_VARIABLE_CHARACTERS].encode("utf-8", "replace").decode()
    return variables
