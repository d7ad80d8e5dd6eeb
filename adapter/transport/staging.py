"""Staging: content is parsed and written here, without locks, before an operation makes it mail.

Each open store has its own directory below ``staging/`` and holds a kernel lock on it, so that leftovers of a dead
process are recognised. Content small enough to travel inside the journal record is not
synced here; larger content is, before its operation may be submitted.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from adapter.content import ingest
from adapter.content.ingest import BlobDraft, Ingested, ThreadKeys
from adapter.store import disk, layout, locks
from adapter.store.disk import Directories
from adapter.store.effects import AddContent, Attachment, Blob, Octets, Recipient, StagedFile
from adapter.transport import errors, ids
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

#: So much of a message rides in its journal record: the file, then blobs as they fit. The rest is synced in staging.
INLINE_BYTES = 256 << 10
#: A spool keeps this much in memory before it goes to disk.
SPOOL_MEMORY = 256 << 10
_MAPPED_AT_ONCE = 2 << 20
_PATIENCE = 10.0  # seconds, while another process checks the lock of a session that was just made


@dataclass(frozen=True, slots=True)
class StagedBlob:
    sha256: str
    size: int
    data: bytes | None  # None: too large for the journal, synced in staging under ``name``
    name: str | None  # None: the store has it already


@dataclass(frozen=True, slots=True)
class Staged:
    """A message ready to be committed, once; nothing of it is visible yet."""

    content: Ingested
    arrived: int  # microseconds
    name: str
    session: str
    blobs: tuple[StagedBlob, ...]

    @property
    def inline(self) -> bool:
        return len(self.content.file) <= INLINE_BYTES

    def effect(self, sender: str, recipients: tuple[Recipient, ...]) -> AddContent:
        """The effect that makes it a message; ``sender`` is that of the envelope."""
        content = self.content
        attachments = [
            Attachment(item.sha256, "attachment", item.name, item.type, item.size) for item in content.attachments
        ]
        if self.blobs:
            offered = {item.sha256 for item in content.attachments}
            attachments += [
                Attachment(blob.sha256, "part", "", "", blob.size) for blob in self.blobs if blob.sha256 not in offered
            ]
        return AddContent(
            content.id,
            self.arrived // 1_000_000,
            sender,
            content.sender,
            content.subject,
            content.message_id or "",
            content.thread,
            content.size,
            content.wire_sha256,
            content.file_sha256,
            StagedFile(self.session, self.name),
            content.file.decode() if self.inline else None,
            tuple(
                Blob(blob.sha256, blob.size, None if blob.data is None else Octets(blob.data), blob.name)
                for blob in self.blobs
            ),
            tuple(attachments),
            recipients,
        )


class StagingArea:
    def __init__(
        self,
        directories: Directories,
        find_thread: Callable[[ThreadKeys], str],
        knows_blob: Callable[[str], bool],
    ) -> None:
        self._directories = directories
        self._find_thread = find_thread
        self._knows_blob = knows_blob
        self.session = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._counter = 0
        self._retiring: list[str] = []
        self._mutex = threading.Condition()
        self._users: Counter[int] = Counter()  # of the directory, at this moment: threads
        self._ended = False
        with directories.stable(layout.STAGING) as parent:
            disk.make_directory(parent, self.session)
            disk.sync_directory(parent)
        self._scope = contextlib.ExitStack()
        self._directory = self._scope.enter_context(directories.open(layout.staging_directory(self.session)))
        if not self._scope.enter_context(locks.claim_directory(self._directory, _PATIENCE)):
            raise RuntimeError("a new staging directory is already claimed")

    def close(self, *, keep: bool) -> None:
        """Remove this session's directory, unless no checkpoint made its content durable elsewhere: then ``keep``.

        Waits for other threads that write to it, but not for a write of this thread that Ctrl-C interrupted. Later
        writers find it closed: the descriptor may soon belong to another file.
        """
        with self._mutex:
            self._ended = True
            self._mutex.wait_for(lambda: not self._users.keys() - {threading.get_ident()})
        with self._scope:
            if not keep:
                remove_session(self._directories, self.session, self._directory)

    @contextlib.contextmanager
    def _using(self) -> Iterator[int]:
        """The directory, which stays for the length of the block. Raises ``MAINTENANCE`` when it is closed."""
        thread = threading.get_ident()
        with self._mutex:
            if self._ended:
                raise MailError(Reason.MAINTENANCE, "the store is closed")
            self._users[thread] += 1
        try:
            yield self._directory
        finally:
            with self._mutex:
                self._users[thread] -= 1
                if not self._users[thread]:
                    del self._users[thread]
                if self._ended:
                    self._mutex.notify_all()

    def fresh_name(self) -> str:
        with self._mutex:
            self._counter += 1
            return f"{self._counter:08x}"

    def stage(self, octets: ingest.Buffer, arrived: int | None = None) -> Staged:
        """Parse octets into canonical content and write it to disk. Never refuses content for being ugly."""
        arrived = ids.microseconds() if arrived is None else arrived
        made: list[str] = []  # the name of every file, before it is written
        try:
            with errors.translate_disk_errors(), self._using():
                return self._stage(octets, arrived, made)
        except BaseException:
            for name in made:
                self.remove(name)
            raise

    def _stage(self, octets: ingest.Buffer, arrived: int, made: list[str]) -> Staged:
        content = ingest.ingest(
            octets,
            id=ids.message_id(arrived),
            arrived=ids.iso_time(arrived),
            thread=self._find_thread,
            sink=_DiskSink(self, made),
        )
        name = self.fresh_name()
        made.append(name)
        inline = len(content.file) <= INLINE_BYTES
        room = INLINE_BYTES - len(content.file)
        blobs = []
        for draft in content.blobs:
            blob = self._stage_blob(draft, made, inline=draft.size <= room)
            room -= len(blob.data or b"")
            blobs.append(blob)
        disk.write_new(self._directory, name, content.file, sync=not inline)
        if not inline or any(blob.data is None for blob in blobs):
            disk.sync_directory(self._directory)
        return Staged(content, arrived, name, self.session, tuple(blobs))

    def _stage_blob(self, blob: BlobDraft, made: list[str], *, inline: bool) -> StagedBlob:
        if blob.data is None:
            return StagedBlob(blob.sha256, blob.size, None, str(blob.handle))
        with self._directories.stable(layout.blob_directory(blob.sha256), create=True) as directory:
            if disk.is_file(directory, blob.sha256, blob.size) and self._knows_blob(blob.sha256):
                return StagedBlob(blob.sha256, blob.size, None, None)
        name = self.fresh_name()
        made.append(name)
        disk.write_new(self._directory, name, blob.data, sync=not inline)
        return StagedBlob(blob.sha256, blob.size, blob.data if inline else None, name)

    def release(self, staged: Staged, *, committed: bool) -> None:
        """An operation is done with a message: remove what it left here.

        Content that is not in the journal stays until the next checkpoint has made its other name durable.
        """
        leftover = [blob.name for blob in staged.blobs if blob.name and (blob.data is not None or not committed)]
        if not committed:
            leftover.append(staged.name)
        else:
            retiring = [blob.name for blob in staged.blobs if blob.name and blob.data is None]
            if not staged.inline:
                retiring.append(staged.name)
            with self._mutex:
                self._retiring += retiring
        for name in leftover:
            self.remove(name)

    def retiring(self) -> list[str]:
        with self._mutex:
            names, self._retiring = self._retiring, []
        return names

    def spool(self, memory: int = SPOOL_MEMORY) -> Spool:
        return Spool(self, memory)

    def open_new(self, name: str) -> int:
        with self._using() as directory:
            return disk.open_new(directory, name, mode=0o600)

    def reopen(self, name: str) -> int:
        with self._using() as directory:
            return disk.open_read(directory, name)

    def remove(self, name: str) -> None:
        """Remove a staged file. After a failure it goes with the session: finished work does not fail for it."""
        try:
            with self._using() as directory:
                disk.unlink(directory, name)
        except (FileNotFoundError, MailError):
            pass
        except OSError as error:
            _log.warning("%s stays in staging for now: %s", name, error)


class _DiskSink:
    """Receives the decoded parts of large messages: each becomes a synced file in staging."""

    def __init__(self, area: StagingArea, made: list[str]) -> None:
        self._area = area
        self._made = made

    def start(self) -> _DiskBlob:
        name = self._area.fresh_name()
        self._made.append(name)
        return _DiskBlob(self._area, name)


class _DiskBlob:
    def __init__(self, area: StagingArea, name: str) -> None:
        self._area = area
        self._name = name
        self._fd = area.open_new(name)

    def write(self, chunk: bytes) -> None:
        disk.write_all(self._fd, chunk)

    def finish(self) -> str:
        try:
            os.fchmod(self._fd, 0o444)
            disk.sync_data(self._fd)
        finally:
            os.close(self._fd)
        return self._name

    def abort(self) -> None:
        os.close(self._fd)
        self._area.remove(self._name)


class _Mapped(mmap.mmap):
    """A mapped file that is let go of while it is read: its pages would count as this process's memory."""

    _read = 0

    def __getitem__(self, key: Any) -> Any:
        about = super().__getitem__(key)
        if isinstance(key, slice):
            self._read += len(about)
            if self._read > _MAPPED_AT_ONCE:
                self._read = 0
                self.madvise(mmap.MADV_DONTNEED)
        return about


class Spool:
    """Incoming octets of unknown size: in memory while small, in a staging file beyond."""

    def __init__(self, area: StagingArea, memory: int) -> None:
        self._area = area
        self._memory = memory
        self._pieces: list[bytes] = []
        self._fd = -1
        self._name = ""
        self.size = 0

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self._fd < 0:
            self._pieces.append(chunk)
            if self.size <= self._memory:
                return
        with errors.translate_disk_errors():
            if self._fd < 0:
                self._name = self._area.fresh_name()
                self._fd = self._area.open_new(self._name)
                chunk = b"".join(self._pieces)
                self._pieces.clear()
            disk.write_all(self._fd, chunk)

    def stage(self, arrived: int | None = None) -> Staged:
        """Parse what was written; the spool itself is closed either way."""
        with self, self.reading() as octets:
            return self._area.stage(octets, arrived)

    @contextlib.contextmanager
    def reading(self) -> Iterator[ingest.Buffer]:
        """The octets written so far, for the length of the block."""
        if self._fd < 0:
            yield b"".join(self._pieces)
            return
        with open(self._area.reopen(self._name), "rb") as file:
            view = _Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            yield view
        finally:
            view.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._area.remove(self._name)
        self._pieces.clear()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_session(directories: Directories, session: str, directory: int) -> bool:
    """Remove a session; False if that failed: the next process that opens the store retries."""
    try:
        for name in os.listdir(directory):
            disk.unlink(directory, name)
        with directories.stable(layout.STAGING) as parent:
            disk.remove_directory(parent, session)
    except OSError as error:
        _log.warning("%s stays in staging: %s", session, error)
        return False
    return True


def is_in_use(directories: Directories) -> bool:
    """True if a process has the store open. Exact for the holder of the index lock, under which processes that open the
    store create their session."""
    return any(not claimed for _, _, claimed in _sessions(directories))


def remove_dead_sessions(directories: Directories) -> list[str]:
    """Remove what processes that no longer live left in staging; nothing there was ever acknowledged."""
    return [
        session
        for session, fd, claimed in _sessions(directories)
        if claimed and remove_session(directories, session, fd)
    ]


def _sessions(directories: Directories) -> Iterator[tuple[str, int, bool]]:
    """Each session with its directory, and whether it could be claimed because its process is dead.

    Folders that a recovery has set aside are skipped: they may hold foreign files, and recovery moves them back.
    """
    with directories.stable(layout.STAGING) as parent:
        entries = [entry.name for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)]
    for session in (name for name in entries if not name.startswith(layout.SET_ASIDE)):
        with (
            contextlib.suppress(FileNotFoundError),
            directories.open(layout.staging_directory(session)) as fd,
            locks.claim_directory(fd) as claimed,
        ):
            yield session, fd, claimed
