"""Canonical file: front matter in one exact form of YAML, followed by the body.

::

    ---
    id: msg-20261115T230601Z-0f3c9a…
    date: "2026-11-15T23:06:01Z"
    from: {name: Ada Lovelace, address: ada@example.test}
    to: [{name: Bob, address: bob@example.test}, {address: eve@example.test}]
    cc: […]
    reply_to: […]
    subject: Grüße aus der Engine
    message_id: <CA+x@example.test>
    in_reply_to: <…>
    references: [<…>, <…>]
    thread: thr-…
    attachments:
      - {sha256: 9f86d0…, name: plan.pdf, type: application/pdf, size: 48213}
    wire: …                                     (see wire_encoding)
    digest: <sha256 of the file without this line>
    ---

    The body: everything after the blank line, to the end of the file.

Keys are written in this order; a key without a value is omitted. Each entry is one line, and strings are quoted as
described in ``yaml``. The strict reader below accepts exactly what the writer produces; any other file is parsed by the
guarded YAML loader. No string starts a line, so the second ``---`` line ends the front matter, and the first line that
starts with ``digest: `` holds the digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NamedTuple

from adapter.content import wire_encoding
from adapter.content.wire import Recipe
from adapter.content.wire_encoding import SegmentDraft
from adapter.content.yaml import (
    MAX_FRONT_MATTER_BYTES,
    GuardedHandler,
    block_scalar,
    fits_yaml,
    flow_scalar,
    hex_scalar,
    quote,
    unquote,
)
from protocol.errors import MailError, Reason
from protocol.mime.addresses import Mailbox

_OPEN, _CLOSE, _DIGEST = b"---\n", b"\n---\n", b"\ndigest: "
_DIGEST_LINE = 1 + 8 + 64
_HANDLER = GuardedHandler()


@dataclass(frozen=True, slots=True)
class AttachmentMeta:
    sha256: str
    name: str
    type: str
    size: int


class FrontMatter(NamedTuple):
    """The front matter of a message. ``extra``: unknown keys of a file that Markpost did not write."""

    id: str = ""
    date: str = ""
    sender: Mailbox | None = None
    to: tuple[Mailbox, ...] = ()
    cc: tuple[Mailbox, ...] = ()
    reply_to: tuple[Mailbox, ...] = ()
    subject: str = ""
    message_id: str = ""
    in_reply_to: str = ""
    references: tuple[str, ...] = ()
    thread: str = ""
    attachments: tuple[AttachmentMeta, ...] = ()
    recipe: Recipe | None = None
    digest: str = ""
    body_start: int = 0
    extra: Mapping[str, Any] = MappingProxyType({})


class CanonicalFile(NamedTuple):
    file: bytes
    recipe: Recipe
    sha256: str


# -- writing ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _mailbox(mailbox: Mailbox) -> str:
    name, address = mailbox
    if name:
        return f"{{name: {flow_scalar(name)}, address: {flow_scalar(address)}}}"
    return f"{{address: {flow_scalar(address)}}}"


def _mailboxes(people: Iterable[Mailbox]) -> str:
    return "[" + ", ".join(map(_mailbox, people)) + "]"


def _entries(matter: FrontMatter) -> str:
    """Format all entries before ``wire``."""
    lines = [f"---\nid: {block_scalar(matter.id)}\n"]
    if matter.date:
        lines.append(f"date: {quote(matter.date)}\n")
    if matter.sender is not None:
        lines.append(f"from: {_mailbox(matter.sender)}\n")
    for key, people in (("to", matter.to), ("cc", matter.cc), ("reply_to", matter.reply_to)):
        if people:
            lines.append(f"{key}: {_mailboxes(people)}\n")
    if matter.subject:
        lines.append(f"subject: {block_scalar(matter.subject)}\n")
    if matter.message_id:
        lines.append(f"message_id: {block_scalar(matter.message_id)}\n")
    if matter.in_reply_to:
        lines.append(f"in_reply_to: {block_scalar(matter.in_reply_to)}\n")
    if matter.references:
        lines.append(f"references: [{', '.join(map(flow_scalar, matter.references))}]\n")
    if matter.thread:
        lines.append(f"thread: {block_scalar(matter.thread)}\n")
    if matter.attachments:
        lines.append("attachments:\n")
        for a in matter.attachments:
            name = f"name: {flow_scalar(a.name)}, type: {flow_scalar(a.type)}"
            lines.append(f"  - {{sha256: {hex_scalar(a.sha256)}, {name}, size: {a.size}}}\n")
    return "".join(lines)


def write(
    matter: FrontMatter, wire_sha256: str, size: int, segment_drafts: Iterable[SegmentDraft], body: bytes
) -> CanonicalFile:
    """Write the canonical file of a message. ``recipe`` and ``digest`` of ``matter`` are ignored and computed here."""
    entries = _entries(matter).encode()
    wire, segments = wire_encoding.write_wire(len(entries), _DIGEST_LINE + 5, wire_sha256, size, segment_drafts)
    hash_head = sha256(entries)
    hash_head.update(wire)
    without = hash_head.copy()
    without.update(b"---\n\n")
    without.update(body)
    end = f"digest: {without.hexdigest()}\n---\n\n".encode()
    file = b"".join((entries, wire, end, body))
    hash_head.update(end)
    hash_head.update(body)
    return CanonicalFile(file, Recipe(size, wire_sha256, segments), hash_head.hexdigest())


# -- reading ----------------------------------------------------------------------------------------------------


def split(file: bytes) -> tuple[int, int]:
    """Find the end of the front matter (after its last line) and the start of the body."""
    if not file.startswith(_OPEN):
        raise MailError(Reason.BAD_CONTENT, "no front matter")
    close = file.find(_CLOSE, 3, MAX_FRONT_MATTER_BYTES + 8)
    if close < 0:
        raise MailError(Reason.BAD_CONTENT, "front matter has no closing --- line, or is too large")
    body = close + len(_CLOSE)
    return close + 1, body + 1 if file[body : body + 1] == b"\n" else body


def digest_matches(file: bytes) -> bool:
    """True if the file contains a digest that matches the rest of the file."""
    try:
        end, _ = split(file)
    except MailError:
        return False
    at = file.find(_DIGEST, 0, end)
    if at < 0 or at + _DIGEST_LINE + 1 != end:
        return False
    digest = file[at + len(_DIGEST) : end - 1]
    hasher = sha256(memoryview(file)[: at + 1])
    hasher.update(memoryview(file)[end:])
    return hasher.hexdigest().encode() == digest


def recipe_of(file: bytes) -> Recipe:
    """Read the recipe from a canonical file; raises MailError(BAD_CONTENT)."""
    end, body = split(file)
    wire = wire_encoding.read_wire(file, end, body)
    if wire is not None and file.startswith(b"digest: ", wire[1], end):
        return wire[0]
    return wire_encoding.wire_from_yaml(_load(file[len(_OPEN) : end]).get("wire"), body)


def read(file: bytes) -> FrontMatter:
    """Parse the front matter of a file; raises MailError(BAD_CONTENT)."""
    end, body = split(file)
    matter = _read_strict(file, end, body)
    return _read_yaml(file, end, body) if matter is None else matter


def load(file: bytes) -> tuple[dict[str, Any], int]:
    """Parse the front matter of an untrusted file into plain values; also return the start of the body."""
    end, body = split(file)
    return _load(file[len(_OPEN) : end]), body


def _load(head: bytes) -> dict[str, Any]:
    try:
        return _HANDLER.load(head.decode())
    except UnicodeDecodeError as error:
        raise MailError(Reason.BAD_CONTENT, "front matter is not UTF-8") from error


_SCALAR = r'(?:"(?>(?:[^"\\\n]++|\\[^\n])*)"|[^ \n",\[\]{}][^\n,\[\]{}]*+)'
_PERSON = re.compile(rf"\{{(?:name: ({_SCALAR}), )?address: ({_SCALAR})\}}(?:, |\]?\Z)")
_ITEM = re.compile(rf"({_SCALAR})(?:, |\]\Z)")
_ATTACHMENT = re.compile(
    rf'  - \{{sha256: "?([0-9a-f]{{64}})"?, name: ({_SCALAR}), type: ({_SCALAR}), size: ([0-9]{{1,15}})\}}\n'
)
_ENTRY = re.compile(r"([a-z_]+): ([^\n]+)\n")
_DIGEST_AND_END = re.compile(rb"digest: ([0-9a-f]{64})\n")
_STRINGS = frozenset({"id", "date", "subject", "message_id", "in_reply_to", "thread"})


def _text(scalar: str) -> str:
    return unquote(scalar) if scalar.startswith('"') else scalar


def _people(value: str) -> tuple[Mailbox, ...]:
    return tuple(Mailbox(_text(name) if name else "", _text(a)) for name, a in _PERSON.findall(value))


def _read_strict(file: bytes, end: int, body: int) -> FrontMatter | None:
    """Parse front matter exactly as ``write`` formats it (verified by formatting it again), or return None."""
    recipe_and_end = wire_encoding.read_wire(file, end, body)
    if recipe_and_end is None:
        return None
    recipe, wire_end = recipe_and_end
    digest = _DIGEST_AND_END.fullmatch(file, wire_end, end)
    wire_start = file.find(b"\nwire:\n") + 1
    wire = file[wire_start:wire_end]
    if digest is None or b"\r" in wire or not fits_yaml(wire):
        return None
    try:
        entries = file[:wire_start].decode()
    except UnicodeDecodeError:
        return None
    values: dict[str, Any] = {}
    at = len(_OPEN)
    while match := _ENTRY.match(entries, at):
        key, value = match.groups()
        if key in _STRINGS:
            values[key] = _text(value)
        elif key == "references":
            values[key] = tuple(_text(item) for item in _ITEM.findall(value, 1))
        elif key == "from":
            people = _people(value)
            values["sender"] = people[0] if people else None
        elif key in ("to", "cc", "reply_to"):
            values[key] = _people(value[1:])
        else:
            return None
        at = match.end()
    if entries.startswith("attachments:\n", at):
        values["attachments"] = tuple(
            AttachmentMeta(digest, _text(name), _text(kind), int(size))
            for digest, name, kind, size in _ATTACHMENT.findall(entries, at)
        )
    matter = FrontMatter(**values, recipe=recipe, digest=digest[1].decode(), body_start=body)
    return matter if _entries(matter) == entries else None


def _read_yaml(file: bytes, end: int, body: int) -> FrontMatter:
    loaded = _load(file[len(_OPEN) : end])
    wire = loaded.pop("wire", None)
    values: dict[str, Any] = {key: _plain(loaded.pop(key)) for key in (*_STRINGS, "digest") if key in loaded}
    for key in ("to", "cc", "reply_to"):
        if key in loaded:
            values[key] = _yaml_people(loaded.pop(key))
    if "from" in loaded:
        senders = _yaml_people(loaded.pop("from"))
        values["sender"] = senders[0] if senders else None
    if "references" in loaded:
        references = loaded.pop("references")
        values["references"] = tuple(map(_plain, references if isinstance(references, list) else [references]))
    if "attachments" in loaded:
        values["attachments"] = _yaml_attachments(loaded.pop("attachments"))
    recipe = None if wire is None else wire_encoding.wire_from_yaml(wire, body)
    return FrontMatter(**values, recipe=recipe, body_start=body, extra=loaded)


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return str(value)


def _yaml_people(value: object) -> tuple[Mailbox, ...]:
    people = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            people.append(Mailbox(_plain(item.get("name")), _plain(item.get("address"))))
        elif item is not None:
            people.append(Mailbox("", _plain(item)))
    return tuple(people)


def _yaml_attachments(value: object) -> tuple[AttachmentMeta, ...]:
    attachments = []
    for item in value if isinstance(value, list) else [value]:
        size = item.get("size") if isinstance(item, dict) else None
        if isinstance(item, dict) and type(size) is int:
            digest, name, kind = (_plain(item.get(key)) for key in ("sha256", "name", "type"))
            attachments.append(AttachmentMeta(digest, name, kind, size))
        else:
            raise MailError(Reason.BAD_CONTENT, "front matter: malformed attachment entry")
    return tuple(attachments)
