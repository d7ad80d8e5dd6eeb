"""One canonical file against everything it says of itself: digest, name, blobs, octets; and what the cache keeps."""

from __future__ import annotations

import contextlib
import os
import re
from hashlib import blake2b, file_digest, sha256
from typing import Any, NamedTuple

import orjson

from adapter.content import front_matter, wire
from adapter.content.ingest import preview_of
from adapter.content.parts import encode_outline
from adapter.content.wire import Recipe
from adapter.store import disk, layout
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason
from protocol.imap.responses.envelope import encode_envelope, encode_structure
from protocol.mime.addresses import mailboxes
from protocol.mime.parser import scan
from protocol.mime.structure import envelope, structure

_ATTACHMENTS = b"\nattachments:\n"
_ATTACHED = re.compile(rb'^  - \{sha256: "?([0-9a-f]{64})', re.MULTILINE)
_CLAIMED = re.compile(rb"^id: \"?(msg-[0-9A-Za-z-]+)", re.MULTILINE)
LARGEST_FILE = 64 << 20
_HEAD = 1 << 20  # octets in which the headers are looked for


class Examined(NamedTuple):
    sha256: str = ""
    problem: str = ""  # why the file is no good; empty if it is
    blobs: tuple[str, ...] = ()
    recipe: bytes | None = None
    envelope: bytes | None = None
    structure: bytes | None = None
    outline: bytes | None = None
    preview: str | None = None

    def cache_hash(self) -> str:
        return "" if self.recipe is None else cache_hash(self[3:])


def cache_hash(values: tuple[object, ...]) -> str:
    """One short value for the columns of a row of ``cache_messages``."""
    raw = [value.encode() if isinstance(value, str) else bytes(value) for value in values]  # type: ignore[call-overload]
    whole = b"".join([*(b"%d:" % len(each) for each in raw), *raw])
    return blake2b(whole, digest_size=16).hexdigest()


class Blobs:
    """Reads blobs straight from the store, on an executor."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories

    def read(self, sha256: str, offset: int, length: int) -> bytes:
        """Raises ``MailError`` for whatever keeps it from being read, also a directory of that name or a bad sector."""
        try:
            with self._directories.open(layout.blob_directory(sha256)) as directory:
                fd = disk.open_read(directory, sha256)
            try:
                return os.pread(fd, os.fstat(fd).st_size - offset if length < 0 else length, offset)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise MailError(Reason.NO_SUCH_MESSAGE, f"blob {sha256}: {error}") from error

    def is_whole(self, sha256: str) -> bool:
        try:
            with self._directories.open(layout.blob_directory(sha256)) as directory:
                return hash_file(directory, sha256) == sha256
        except OSError:
            return False


def hash_file(directory: int, name: str) -> str:
    fd = disk.open_read(directory, name)
    try:
        with open(fd, "rb", closefd=False) as file:
            return file_digest(file, "sha256").hexdigest()
    finally:
        os.close(fd)


def examine(file: bytes, message_id: str, blobs: Blobs) -> Examined:
    """Never raises for what is in the file."""
    digest = sha256(file).hexdigest()
    if len(file) > LARGEST_FILE:
        return Examined(digest, "too large to be ours")
    if not front_matter.digest_matches(file):
        return Examined(digest, "does not match its digest", _blobs_of_damaged(file))
    try:
        recipe = front_matter.recipe_of(file)
        _, body = front_matter.split(file)
        if not file.startswith(b"---\nid: %b\n" % message_id.encode()) and front_matter.read(file).id != message_id:
            return Examined(digest, "is another message by its front matter")
    except MailError as error:
        return Examined(digest, f"cannot be read: {error}"[:200])
    needed = recipe.blobs
    if file.find(_ATTACHMENTS, 0, body) >= 0:
        needed = tuple(dict.fromkeys((*needed, *(raw.decode() for raw in _ATTACHED.findall(file, 0, body)))))
    try:
        octets = wire.rebuild(file, recipe, blobs)
    except MailError:
        octets = None
    if octets is None or sha256(octets).hexdigest() != recipe.wire_sha256:
        if all(blobs.is_whole(blob) for blob in recipe.blobs):
            return Examined(digest, "does not give the octets it names", needed)
        return Examined(digest, "", needed)  # the blob is to blame, and is found by itself
    return Examined(digest, "", needed, recipe.encode(), *_pieces(octets), preview_of(file[body : body + 4096]))


def _pieces(octets: bytes) -> tuple[bytes, bytes, bytes]:
    root = scan(octets)
    return (
        encode_envelope(envelope(root.headers)),
        encode_structure(structure(octets, root), True),
        encode_outline(root),
    )


def description(file: bytes, blobs: Blobs) -> bytes:
    """What the index wants to know of a message that only its file tells of, as JSON."""
    matter = front_matter.read(file)
    recipe: Recipe = matter.recipe or front_matter.recipe_of(file)
    attached = [(item.sha256, "attachment", item.name, item.type, item.size) for item in matter.attachments]
    listed = {item[0] for item in attached}
    return orjson.dumps(
        {
            "id": matter.id,
            "from": matter.sender.address if matter.sender else "",
            "subject": matter.subject,
            "header_id": matter.message_id,
            "thread": matter.thread,
            "size": recipe.size,
            "wire": recipe.wire_sha256,
            "file": sha256(file).hexdigest(),
            "to": [person.address for person in matter.to],
            "cc": [person.address for person in matter.cc],
            "addressed": _addressed(_head(file, recipe, blobs)),
            "attachments": attached,
            "parts": [blob for blob in recipe.blobs if blob not in listed],
        }
    )


def description_of_damaged(file: bytes, blobs: Blobs) -> dict[str, Any]:
    """The same of a file that does not match its digest: what can still be read of it."""
    told: dict[str, Any] = {
        "from": "", "subject": "", "header_id": "", "thread": "", "size": len(file), "wire": "", "to": [], "cc": [],
        "addressed": [], "attachments": [], "parts": [],
    }  # fmt: skip
    with contextlib.suppress(MailError, ValueError, TypeError, LookupError):
        told |= orjson.loads(description(file, blobs))
    digest = sha256(file).hexdigest()
    return {**told, "file": digest, "damaged": digest}


def _blobs_of_damaged(file: bytes) -> tuple[str, ...]:
    found = [raw.decode() for raw in _ATTACHED.findall(file, 0, _HEAD)]
    with contextlib.suppress(MailError, ValueError, TypeError, LookupError):
        found += front_matter.recipe_of(file).blobs
    return tuple(dict.fromkeys(blob for blob in found if layout.SHA256.match(blob)))


def is_foreign(file: bytes, message_id: str) -> bool:
    """Whether a file says that it is another message: what is in it is not this one's recipients' to read."""
    claimed = _CLAIMED.search(file, 0, _HEAD)
    return claimed is not None and claimed.group(1) != message_id.encode()


def _head(file: bytes, recipe: Recipe, blobs: Blobs) -> bytes:
    """The octets as far as the headers reach, or as far as they can be had."""
    head = bytearray()
    with contextlib.suppress(MailError):
        for piece in wire.octets(file, recipe, blobs, 0, _HEAD):
            head += piece
            if b"\r\n\r\n" in head:
                break
    return bytes(head)


def _addressed(head: bytes) -> list[str]:
    """To, Cc and Delivered-To of the octets, in that order."""
    headers = scan(head).headers
    return [
        mailbox.address
        for name in ("to", "cc", "delivered-to")
        for value in headers.all(name)
        for mailbox in mailboxes(value)
    ]
