"""The ``.mailbox`` file: who a folder is, written once and never changed.

id: mbx-0f3c9a12bc34
registration: reg-5c1f0a99d2e4b781
uidvalidity: 1794877561
special_use: \\Sent
sha256: <of the lines above>
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_FORM = re.compile(
    rb"id: mbx-(?P<id>[0-9a-f]{12})\n"
    rb"registration: (?P<registration>reg-[0-9a-f]{16})\n"
    rb"uidvalidity: (?P<uidvalidity>[1-9][0-9]{0,9})\n"
    rb"(?:special_use: (?P<special>\\[A-Za-z]+)\n)?"
    rb"sha256: (?P<sha256>[0-9a-f]{64})\n\Z"
)


@dataclass(frozen=True, slots=True)
class Identity:
    folder: int
    registration: str
    uidvalidity: int
    special_use: str

    def encode(self) -> bytes:
        special = f"special_use: {self.special_use}\n" if self.special_use else ""
        head = (
            f"id: mbx-{self.folder:012x}\nregistration: {self.registration}\nuidvalidity: {self.uidvalidity}\n{special}"
        )
        return f"{head}sha256: {hashlib.sha256(head.encode()).hexdigest()}\n".encode()


def decode(data: bytes) -> Identity | None:
    """None if the file is not exactly what was written."""
    match = _FORM.match(data)
    if match is None:
        return None
    found = Identity(
        int(match["id"], 16),
        match["registration"].decode(),
        int(match["uidvalidity"]),
        (match["special"] or b"").decode(),
    )
    return found if found.encode() == data else None
