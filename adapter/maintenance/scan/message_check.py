"""Check a canonical file against its own metadata (digest, name, blobs, octets), and compute its cache row."""

from __future__ import annotations

import contextlib
import os
import re
from hashlib import blake2b, file_digest, sha256
from typing import NamedTuple

from msgspec import Struct, structs

from adapter.content import front_matter, wire
from adapter.content.ingest import preview_of
from adapter.content.parts import encode_outline
from adapter.content.wire import Recipe
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.effects import Attachment
from protocol.errors import MailError, Reason
from protocol.imap.responses.envelope import encode_envelope, encode_structure
from protocol.mime.addresses import mailboxes
from protocol.mime.parser import scan
from protocol.mime.structure import envelope, structure

_ATTACHMENTS = b"\nattachments:\n"
_ATTACHED = re.compile(rb'^  - \{sha256: "?([0-9a-f]{64})', re.MULTILINE)
TOO_LARGE = "too large for a message file"
_NAMED_ID = re.compile(rb"^id: \"?(msg-[0-9A-Za-z-]+)", re.MULTILINE)
MAX_FILE_BYTES = 64 << 20
_MAX_HEAD_BYTES = 1 << 20  # how much of a file or message is searched for its headers


class MessageCheck(NamedTuple):
    """The result of checking a file, with its cache columns if the file is valid."""

    sha256: str = ""
    problem: str = ""  # "" for a valid file
    blobs: tuple[str, ...] = ()
    recipe: bytes | None = None
    envelope: bytes | None = None
    structure: bytes | None = None
    outline: bytes | None = None
    preview: str | None = None

    def cache_hash(self) -> str:
        return "" if self.recipe is None else cache_hash(self[3:])


def cache_hash(values: tuple[object, ...]) -> str:
    """Hash the columns of a row of ``cache_messages``."""
    raw = [value.encode() if isinstance(value, str) else bytes(value) for value in values]  # type: ignore[call-overload]
    joined = b"".join([*(b"%d:" % len(each) for each in raw), *raw])
    return blake2b(joined, digest_size=16).hexdigest()


class BlobFiles:
    """BlobReader over the files of the store, for executors."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories

    def read(self, sha256: str, offset: int, length: int) -> bytes:
        """Read a range of a blob; any failure, such as a bad sector or a directory of that name, is a ``MailError``."""
        try:
            with self._directories.open(layout.blob_directory(sha256)) as directory:
                fd = disk.open_read(directory, sha256)
            try:
                return os.pread(fd, os.fstat(fd).st_size - offset if length < 0 else length, offset)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise MailError(Reason.NO_SUCH_MESSAGE, f"blob {sha256}: {error}") from error

    def is_intact(self, sha256: str) -> bool:
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


def check_message(file: bytes, message_id: str, blobs: BlobFiles) -> MessageCheck:
    """Check a canonical file. No content of the file makes this raise."""
    digest = sha256(file).hexdigest()
    if len(file) > MAX_FILE_BYTES:
        return MessageCheck(digest, TOO_LARGE)
    if not front_matter.digest_matches(file):
        return MessageCheck(digest, "does not match its digest", _blobs_of_damaged(file))
    try:
        recipe = front_matter.recipe_of(file)
        _, body = front_matter.split(file)
        if not file.startswith(b"---\nid: %b\n" % message_id.encode()) and front_matter.read(file).id != message_id:
            return MessageCheck(digest, "front matter names another message")
    except MailError as error:
        return MessageCheck(digest, f"cannot be parsed: {error}"[:200])
    needed = recipe.blobs
    if file.find(_ATTACHMENTS, 0, body) >= 0:
        needed = tuple(dict.fromkeys((*needed, *(raw.decode() for raw in _ATTACHED.findall(file, 0, body)))))
    try:
        octets = wire.rebuild(file, recipe, blobs)
    except MailError:
        octets = None
    if octets is None or sha256(octets).hexdigest() != recipe.wire_sha256:
        if all(blobs.is_intact(blob) for blob in recipe.blobs):
            return MessageCheck(digest, "rebuilt octets do not match their checksum", needed)
        return MessageCheck(digest, "", needed)  # a damaged blob is a finding of its own
    return MessageCheck(
        digest, "", needed, recipe.encode(), *_cached_parts(octets), preview_of(file[body : body + 4096])
    )


def _cached_parts(octets: bytes) -> tuple[bytes, bytes, bytes]:
    """Envelope, body structure and outline, as the cache stores them."""
    root = scan(octets)
    return (
        encode_envelope(envelope(root.headers)),
        encode_structure(structure(octets, root), True),
        encode_outline(root),
    )


class IndexEntries(Struct, frozen=True):
    """The index entries of a message, as far as its canonical file contains them."""

    sender: str = ""
    subject: str = ""
    header_id: str = ""
    thread: str = ""
    size: int = 0
    wire_sha256: str = ""
    file_sha256: str = ""
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    addressed: tuple[str, ...] = ()  # To, Cc and Delivered-To of the octets
    attachments: tuple[Attachment, ...] = ()
    parts: tuple[str, ...] = ()  # blobs that are not attachments
    damaged: str = ""  # digest of a damaged file


def describe_message(file: bytes, blobs: BlobFiles) -> IndexEntries:
    """Extract the index entries of a message from its canonical file."""
    matter = front_matter.read(file)
    recipe: Recipe = matter.recipe or front_matter.recipe_of(file)
    listed = {item.sha256 for item in matter.attachments}
    return IndexEntries(
        sender=matter.sender.address if matter.sender else "",
        subject=matter.subject,
        header_id=matter.message_id,
        thread=matter.thread,
        size=recipe.size,
        wire_sha256=recipe.wire_sha256,
        file_sha256=sha256(file).hexdigest(),
        to=tuple(person.address for person in matter.to),
        cc=tuple(person.address for person in matter.cc),
        addressed=_addressed(_head(file, recipe, blobs)),
        attachments=tuple(
            Attachment(item.sha256, "attachment", item.name, item.type, item.size) for item in matter.attachments
        ),
        parts=tuple(blob for blob in recipe.blobs if blob not in listed),
    )


def describe_damaged_message(file: bytes, blobs: BlobFiles) -> IndexEntries:
    """Extract the index entries that are still readable from a file that does not match its digest."""
    entries = IndexEntries(size=len(file))
    with contextlib.suppress(MailError, ValueError, TypeError, LookupError):
        entries = describe_message(file, blobs)
    digest = sha256(file).hexdigest()
    return structs.replace(entries, file_sha256=digest, damaged=digest)


def _blobs_of_damaged(file: bytes) -> tuple[str, ...]:
    blobs = [raw.decode() for raw in _ATTACHED.findall(file, 0, _MAX_HEAD_BYTES)]
    with contextlib.suppress(MailError, ValueError, TypeError, LookupError):
        blobs += front_matter.recipe_of(file).blobs
    return tuple(dict.fromkeys(blob for blob in blobs if layout.SHA256.match(blob)))


def has_other_id(file: bytes, message_id: str) -> bool:
    """True if the file names another message: the recipients of this message must not read it."""
    named_id = _NAMED_ID.search(file, 0, _MAX_HEAD_BYTES)
    return named_id is not None and named_id.group(1) != message_id.encode()


def _head(file: bytes, recipe: Recipe, blobs: BlobFiles) -> bytes:
    """The header block of the message, as far as it can be rebuilt."""
    head = bytearray()
    with contextlib.suppress(MailError):
        for chunk in wire.octets(file, recipe, blobs, 0, _MAX_HEAD_BYTES):
            head += chunk
            if b"\r\n\r\n" in head:
                break
    return bytes(head)


def _addressed(head: bytes) -> tuple[str, ...]:
    """The addresses in To, Cc and Delivered-To, in that order."""
    headers = scan(head).headers
    return tuple(
        mailbox.address
        for name in ("to", "cc", "delivered-to")
        for value in headers.all(name)
        for mailbox in mailboxes(value)
    )
