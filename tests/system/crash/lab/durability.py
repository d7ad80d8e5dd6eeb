"""A model of what a disk holds when the power goes: effects that were not synced are lost, wholly or in part.

The shadow follows a store that runs on a real file system. Syncing a file makes its content durable, syncing a
directory its entries, syncing the file system everything. Two kinds of states can be taken at any step:

* strict: exactly what was synced;
* scrambled: of what was not synced, any part is there. Entries of files come and go one by one, so that a renamed file
  may be at both places or at none; new content is whole, short, zeroed or garbage; overwritten content (the index) is
  a mix of old and new pages; rollback journals of the index that were seen may be back. Directories alone are moved
  and removed whole and in order, as every file system does.

A sync of the file system that fails loses the content it should have written: it is shown as before, but what is synced
later does not hold it, unless it is written once more.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

from adapter.store import layout

Entry = tuple[str, int | str]  # ("file", inode), ("directory", inode), ("link", target)
Entries = dict[str, Entry]
#: A directory and all below it, to be written out: content, link target, or another tree.
Tree = dict[str, "bytes | str | Tree"]

_PAGE = 4096
_HOT = f"{layout.INDEX_FILE}-journal"
#: Files changed in place: neither size nor time proves that they did not change.
_VOLATILE = (layout.INDEX_FILE, ".jsonl")
_WRITABLE = (".sqlite", ".jsonl", ".lock", "-journal")


@dataclass
class _Disk:
    directories: dict[int, Entries]
    contents: dict[int, bytes]

    def skeleton(self) -> dict[int, Entries]:
        return {
            inode: {name: entry for name, entry in entries.items() if entry[0] == "directory"}
            for inode, entries in self.directories.items()
        }


class Shadow:
    def __init__(self, root: str) -> None:
        self._root = root
        self._top = os.stat(root).st_ino
        self._read: dict[int, tuple[int, bytes]] = {}  # inode -> size and content when last read
        self._durable = self._walk()
        self._lost: dict[int, bytes] = {}  # content that failed syncs did not write
        self._forget_history()
        self._pending: tuple[str, str] | None = None
        self.version = 0  # changes when what is durable does

    # --- following the store ---------------------------------------------------------------------------------------

    def before_step(self, fd: int, action: str, name: str) -> None:
        """Record the effects of the step before; the step announced now has not started."""
        if self._pending is not None:
            self._note(*self._pending)
        place = os.readlink(f"/proc/self/fd/{fd}") if fd >= 0 else self._root
        self._note(self._root, _HOT)
        self._pending = None
        if name and action not in ("write", "write-rest", "fsync"):
            self._note(place, name)  # about to be removed or replaced
            self._pending = (place, name)
        if action in ("mkdir", "rmdir", "rename"):
            self._skeletons.append(self._walk(contents=False).skeleton())

    def after_announcement(self, fd: int, action: str) -> None:
        """The step will happen: what it syncs is durable from now on."""
        if action == "syncfs":
            now = self._walk()
            written = {inode: self._written(inode, content) for inode, content in now.contents.items()}
            self._durable = _Disk(now.directories, written)
            self._forget_history()
        elif action == "fsync":
            inode = os.fstat(fd).st_ino
            self._durable.contents[inode] = self._written(inode, self._content(os.readlink(f"/proc/self/fd/{fd}")))
        elif action == "fsync-directory":
            inode = os.fstat(fd).st_ino
            self._durable.directories[inode] = self._entries(os.readlink(f"/proc/self/fd/{fd}"))
            self._history.pop(inode, None)
            self._skeletons.clear()
        else:
            return
        self.version += 1

    def sync_failed(self) -> None:
        """Instead of :meth:`after_announcement`: the file system could not be synced."""
        for inode, content in self._walk().contents.items():
            if content != self._durable.contents.get(inode):
                self._lost[inode] = content

    def _written(self, inode: int, content: bytes) -> bytes:
        """The content that a sync writes: pages that a failed sync left clean are not among it."""
        lost = self._lost.get(inode)
        if lost is None:
            return content
        old = self._durable.contents.get(inode, b"")
        pages = [(content[at : at + _PAGE], at) for at in range(0, len(content), _PAGE)]
        return b"".join(
            old[at : at + _PAGE].ljust(len(page), b"\0")[: len(page)] if page == lost[at : at + _PAGE] else page
            for page, at in pages
        )

    def _forget_history(self) -> None:
        self._history: dict[int, dict[str, list[Entry]]] = {}
        self._seen: dict[int, bytes] = {}
        self._skeletons: list[dict[int, Entries]] = []

    def _note(self, place: str, name: str) -> None:
        """Remember an entry as it is now: it may be what the disk holds in the end."""
        path = f"{place}/{name}"
        try:
            inode = os.stat(place).st_ino
            entry = self._entry(path)
            if entry[0] == "file":
                self._seen[int(entry[1])] = self._content(path)
        except FileNotFoundError:
            return
        past = self._history.setdefault(inode, {}).setdefault(name, [])
        if entry[0] != "directory" and entry not in past:
            past.append(entry)

    def _entry(self, path: str) -> Entry:
        if os.path.islink(path):
            return "link", os.readlink(path)
        return "directory" if os.path.isdir(path) else "file", os.stat(path).st_ino

    def _entries(self, directory: str) -> Entries:
        entries: Entries = {}
        for entry in os.scandir(directory):
            if entry.is_symlink():
                entries[entry.name] = ("link", os.readlink(entry.path))
            else:
                entries[entry.name] = ("directory" if entry.is_dir() else "file", entry.inode())
        return entries

    def _content(self, path: str) -> bytes:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            content = self._read.get(status.st_ino)
            if content is not None and content[0] == status.st_size and not path.endswith(_VOLATILE):
                return content[1]
            data = file.read()
        self._read[status.st_ino] = (status.st_size, data)
        return data

    def _walk(self, *, contents: bool = True) -> _Disk:
        disk = _Disk({}, {})
        pending = [(self._top, self._root)]
        while pending:
            inode, path = pending.pop()
            disk.directories[inode] = self._entries(path)
            for name, (kind, value) in disk.directories[inode].items():
                if kind == "directory":
                    pending.append((int(value), f"{path}/{name}"))
                elif kind == "file" and contents:
                    disk.contents[int(value)] = self._content(f"{path}/{name}")
        return disk

    # --- what is left ----------------------------------------------------------------------------------------------

    def strict(self) -> Tree:
        return self._strict(self._top)

    def _strict(self, inode: int) -> Tree:
        tree: Tree = {}
        for name, (kind, value) in self._durable.directories.get(inode, {}).items():
            if kind == "directory":
                tree[name] = self._strict(int(value))
            elif kind == "link":
                tree[name] = str(value)
            else:
                tree[name] = self._durable.contents.get(int(value), b"")
        return tree

    def scrambled(self, chance: random.Random) -> Tree:
        live = self._walk()
        skeletons = [self._durable.skeleton(), *self._skeletons, live.skeleton()]
        return _Scrambler(chance, self._durable, live, chance.choice(skeletons), self._history, self._seen).tree(
            self._top
        )


class _Scrambler:
    def __init__(
        self,
        chance: random.Random,
        durable: _Disk,
        live: _Disk,
        skeleton: dict[int, Entries],
        history: dict[int, dict[str, list[Entry]]],
        seen: dict[int, bytes],
    ) -> None:
        self._chance = chance
        self._durable = durable
        self._live = live
        self._skeleton = skeleton
        self._history = history
        self._seen = seen
        self._chosen: dict[int, bytes] = {}
        self._keeps = chance.choice([0.1, 0.5, 0.9])  # how much of what was not synced is there

    def tree(self, inode: int) -> Tree:
        old = self._durable.directories.get(inode, {})
        new = self._live.directories.get(inode, old)
        past = self._history.get(inode, {})
        tree: Tree = {}
        for name in sorted({*old, *new, *past}):
            candidates = [entry for entry in (old.get(name), new.get(name)) if entry is None or entry[0] != "directory"]
            if len(set(candidates)) <= 1 and name not in past:
                entry = candidates[0] if candidates else None
            elif past.get(name) and self._chance.random() < 0.2:
                entry = self._chance.choice(past[name])
            else:
                entry = (
                    candidates[-1] if candidates and self._chance.random() < self._keeps else (candidates or [None])[0]
                )
            if entry is not None:
                tree[name] = str(entry[1]) if entry[0] == "link" else self._content(int(entry[1]))
        for name, (_, child) in self._skeleton.get(inode, {}).items():
            tree[name] = self.tree(int(child))
        return tree

    def _content(self, inode: int) -> bytes:
        if inode not in self._chosen:
            old = self._durable.contents.get(inode)
            new = self._live.contents.get(inode, self._seen.get(inode, old))
            self._chosen[inode] = self._mix(old, b"" if new is None else new)
        return self._chosen[inode]

    def _mix(self, old: bytes | None, new: bytes) -> bytes:
        if old == new:
            return new
        if old is None:
            old = b""
        if new.startswith(old):
            return old + self._torn(new[len(old) :])
        if old.startswith(new):
            return self._chance.choice([old, new])
        pages = range(0, max(len(old), len(new)), _PAGE)
        mixed = [(new if self._chance.random() < self._keeps else old)[at : at + _PAGE] for at in pages]
        return b"".join(mixed)

    def _torn(self, data: bytes) -> bytes:
        """Data on its way to the disk."""
        whole = self._chance.random() < self._keeps
        if whole:
            return data
        kept = data[: self._chance.randrange(len(data) + 1)]
        missing = len(data) - len(kept)
        tail = self._chance.choice([b"", bytes(missing), self._chance.randbytes(missing)])
        return self._chance.choice([b"", bytes(len(data)), kept + tail])


def write_out(tree: Tree, root: str) -> str:
    os.mkdir(root, 0o700)
    for name, value in tree.items():
        path = f"{root}/{name}"
        if isinstance(value, bytes):
            with open(path, "wb", opener=_opener) as file:
                file.write(value)
        elif isinstance(value, str):
            os.symlink(value, path)
        else:
            write_out(value, path)
    return root


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600 if path.endswith(_WRITABLE) else 0o444)
