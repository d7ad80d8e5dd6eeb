"""Report of a run: JSON with a stable schema, a table for people, and the copy saved in the store.

Items are appended to a file in the run's scratch directory; only counts are kept in memory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, Any

import orjson

from adapter.maintenance.expected import tables
from adapter.maintenance.findings import KINDS, SEVERITIES, URGENT, Finding, Outcome
from adapter.store import disk, layout
from adapter.store.disk import Directories

SCHEMA = 1
_MAX_SHOWN = 20  # items of each kind in the table
_MAX_RECORDED_SHOWN = 100  # recorded losses of each kind in the JSON
OPEN_SEVERITIES = ("conflict", "unreadable")  # left to a person: the verifying inspection finds these again


class Report:
    """The outcomes of a run, counted by kind and severity."""

    def __init__(self, command: str, root: str, master: str, scratch: str) -> None:
        self.head: dict[str, Any] = {
            "schema": SCHEMA,
            "command": command,
            "root": os.path.abspath(root),
            "master": master,
            "started": _now(),
        }
        self.kinds: Counter[str] = Counter()
        self.severities: Counter[str] = Counter()
        self.verified: bool | None = None
        self._conflicts = tables.private(tables.create(f"{scratch}/conflicts.sqlite"))
        self._conflicts.execute("CREATE TABLE conflicts (kind TEXT, subject TEXT, PRIMARY KEY (kind, subject))")
        self._path = f"{scratch}/items.jsonl"
        self._parent = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fd = disk.open_new(self._parent, "items.jsonl", mode=0o600)

    def close(self) -> None:
        self._conflicts.close()
        os.close(self._fd)
        os.close(self._parent)

    def add(self, outcome: Outcome) -> None:
        finding = outcome.finding
        self.kinds[finding.kind] += 1
        self.severities[outcome.severity] += 1
        if outcome.severity in OPEN_SEVERITIES:
            self._conflicts.execute("INSERT OR IGNORE INTO conflicts VALUES (?, ?)", (finding.kind, finding.subject))
        disk.write_all(self._fd, orjson.dumps(_item(outcome)) + b"\n")

    def is_open(self, finding: Finding) -> bool:
        """True if the finding was left to a person: to decide a conflict, or to make a file readable."""
        query = "SELECT 1 FROM conflicts WHERE kind = ? AND subject = ?"
        return self._conflicts.execute(query, (finding.kind, finding.subject)).fetchone() is not None

    @property
    def total(self) -> int:
        return sum(self.kinds.values())

    @property
    def needs_attention(self) -> bool:
        """True if a person must act or know: loss, conflict, unreadable file, or a repair that did not converge."""
        return self.verified is False or any(self.severities[name] for name in (*OPEN_SEVERITIES, "loss"))

    def finish(self, **more: Any) -> None:
        self.head |= {
            "finished": _now(),
            **more,
            "verified": self.verified,
            "counts": dict(sorted(self.kinds.items())),
            "severities": {name: self.severities[name] for name in SEVERITIES},
        }

    def json(self) -> Iterator[bytes]:
        """The report as JSON, in chunks."""
        yield orjson.dumps(self.head, option=orjson.OPT_INDENT_2).removesuffix(b"\n}") + b',\n  "items": ['
        before = b"\n    "
        for line in self._lines():
            yield before + line.rstrip(b"\n")
            before = b",\n    "
        yield b"\n  ]\n}\n"

    def _lines(self) -> Iterator[bytes]:
        with open(self._path, "rb") as items:
            yield from items

    def _items(self, kind: str) -> Iterator[dict[str, Any]]:
        """The items of one kind, read from the file again: there may be too many to keep in memory."""
        start = b'{"kind":"%b",' % kind.encode()
        return (orjson.loads(line) for line in self._lines() if line.startswith(start))

    def save(self, directories: Directories) -> str:
        """Save the report in the store and return its path."""
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(2).hex()}-{self.head['command']}.json"
        where = (*layout.MAINTENANCE, "reports")
        with directories.open(where, create=True) as directory:
            fd = disk.open_new(directory, name, mode=0o600)
            try:
                for chunk in self.json():
                    disk.write_all(fd, chunk)
                disk.sync_data(fd)
            finally:
                os.close(fd)
            disk.sync_directory(directory)
        return layout.absolute(*where, name)

    def table(self, out: IO[str]) -> None:
        """Print the report for people. After a check, which changes nothing, "repaired" becomes "repairable"."""
        names = {} if self.verified is not None else {"repaired": "repairable"}
        scanned = self.head.get("scanned", {})
        counts = ", ".join(f"{count} {what[:-1] if count == 1 else what}" for what, count in scanned.items())
        print(f"scanned {counts}", file=out)
        self._print_recorded_losses(out)
        if not self.total:
            print("no findings", file=out)
            return
        for kind, count in sorted(self.kinds.items(), key=lambda item: (item[0] not in URGENT, item)):
            print(f"\n{kind}  {count}  (decided by: {KINDS[kind].authority})", file=out)
            shown = 0
            for item in self._items(kind):
                if shown < _MAX_SHOWN or item["severity"] in (*OPEN_SEVERITIES, "loss"):
                    shown += 1
                    detail = f" - {item['detail']}" if item["detail"] else ""
                    name = names.get(item["severity"], item["severity"])
                    print(_printable(f"  {name:8}  {item['subject']}{detail}: {item['outcome']}"), file=out)
                    if item["decide"]:
                        print(_printable(f"            {item['decide']}"), file=out)
            if count > shown:
                print(f"  … and {count - shown} more", file=out)
        print("", file=out)
        print(
            "  ".join(f"{names.get(name, name)}: {self.severities[name]}" for name in self.head["severities"]), file=out
        )

    def _print_recorded_losses(self, out: IO[str]) -> None:
        """Print the losses recorded by earlier repairs. They are not findings: nothing can be done about them."""
        recorded = self.head.get("recorded", {})
        if not recorded.get("shown"):
            return
        print(
            f"recorded by earlier repairs: {recorded['parts']} damaged parts, {recorded['messages']} lost messages",
            file=out,
        )
        for each in recorded["shown"][:_MAX_SHOWN]:
            print(f"  {each['what']:8}  {each['message']} {each['subject']!r} from {each['from']}", file=out)


def _printable(line: str) -> str:
    """Escape control characters, which file names may contain and a terminal would interpret."""
    return line if line.isprintable() else "".join(char if char.isprintable() else _escaped(char) for char in line)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _item(outcome: Outcome) -> dict[str, Any]:
    finding = asdict(outcome.finding)
    seen = {key: value for key, value in finding.items() if value and key not in ("kind", "subject", "detail")}
    with contextlib.suppress(KeyError):
        seen["folder"] = f"mbx-{seen['folder']:012x}"
    return {
        "kind": outcome.finding.kind,
        "subject": outcome.finding.subject,
        "seen": seen,
        "detail": outcome.finding.detail,
        "authority": KINDS[outcome.finding.kind].authority,
        "severity": outcome.severity,
        "outcome": outcome.done,
        "decide": outcome.decide,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# --- recorded losses: a known state, listed but not findings ------------------------------------------------

_DAMAGED_PARTS = """
SELECT d.message_id, d.part, m.header_from, m.subject FROM damaged_parts d JOIN messages m USING (message_id)
WHERE m.file_sha256 <> '' ORDER BY 1, 2 LIMIT ?
"""
_LOST_MESSAGES = """
SELECT message_id, '', header_from, subject FROM messages m
WHERE message_id IN (SELECT message_id FROM lost_places) ORDER BY 1 LIMIT ?
"""


def recorded_losses(path: str) -> dict[str, Any]:
    """Losses recorded by earlier repairs: the counts in the tables at ``path``, and the first of each kind."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(tables.connect(path)) as connection:
        (parts,) = connection.execute("SELECT count(*) FROM damaged_parts").fetchone()
        (messages,) = connection.execute("SELECT count(DISTINCT message_id) FROM lost_places").fetchone()
        shown = [
            {"what": what, "message": row[0], "part": row[1], "from": row[2], "subject": row[3]}
            for what, sql in (("damaged", _DAMAGED_PARTS), ("lost", _LOST_MESSAGES))
            for row in connection.execute(sql, (_MAX_RECORDED_SHOWN,))
        ]
        return {"parts": parts, "messages": messages, "shown": shown}
    return {"parts": 0, "messages": 0, "shown": []}
