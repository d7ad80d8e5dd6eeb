"""The ``.mailbox`` file: who a folder is, and which UIDs it may have given out.

UIDs below ``uids_below`` may have been given out. It is raised in steps, before a UID beyond it is acknowledged: should
index and journal be lost, no UID is given out twice under the same UIDVALIDITY. All else is written once and never
changed; the file is replaced as a whole.

store: 5f0c2f6a8d3b4e17a9c6d1e2f3a4b5c6
id: mbx-0f3c9a12bc34
registration: reg-5c1f0a99d2e4b781
uidvalidity: 1794877561
special_use: \\Sent
uids_below: 1001
sha256: <of the lines above>
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

UID_STEP = 1000
_FORM = re.compile(
    rb"store: (?P<store>[0-9a-f]{32})\n"
    rb"id: mbx-(?P<id>[0-9a-f]{12})\n"
    rb"registration: (?P<registration>reg-[0-9a-f]{16})\n"
    rb"uidvalidity: (?P<uidvalidity>[1-9][0-9]{0,9})\n"
    rb"(?:special_use: (?P<special>\\[A-Za-z]+)\n)?"
    rb"uids_below: (?P<uids_below>[1-9][0-9]{0,9})\n"
    rb"sha256: (?P<sha256>[0-9a-f]{64})\n\Z"
)


def mark(uidnext: int) -> int:
    """The high-water mark of a folder with this UIDNEXT: greater, and the same for a thousand UIDs."""
    return ((uidnext - 1) // UID_STEP + 1) * UID_STEP + 1


@dataclass(frozen=True, slots=True)
class Identity:
    store: str
    folder: int
    registration: str
    uidvalidity: int
    special_use: str
    uids_below: int = 1 + UID_STEP

    def encode(self) -> bytes:
        special = f"special_use: {self.special_use}\n" if self.special_use else ""
        head = (
            f"store: {self.store}\nid: mbx-{self.folder:012x}\nregistration: {self.registration}\n"
            f"uidvalidity: {self.uidvalidity}\n{special}uids_below: {self.uids_below}\n"
        )
        return f"{head}sha256: {hashlib.sha256(head.encode()).hexdigest()}\n".encode()


def decode(data: bytes) -> Identity | None:
    """None if the file is not exactly what was written."""
    match = _FORM.match(data)
    if match is None:
        return None
    identity = Identity(
        match["store"].decode(),
        int(match["id"], 16),
        match["registration"].decode(),
        int(match["uidvalidity"]),
        (match["special"] or b"").decode(),
        int(match["uids_below"]),
    )
    return identity if identity.encode() == data else None
