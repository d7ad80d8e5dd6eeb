"""Which thread a message belongs to, as far as its own headers tell."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple


class ThreadKeys(NamedTuple):
    message_id: str | None
    in_reply_to: str | None
    references: tuple[str, ...]
    id: str


def default_thread(keys: ThreadKeys) -> str:
    """Named after the oldest ancestor the message knows of, or after itself."""
    root = (keys.references[0] if keys.references else None) or keys.in_reply_to or keys.message_id or keys.id
    return "thr-" + sha256(root.encode("utf-8", "replace")).hexdigest()[:20]
