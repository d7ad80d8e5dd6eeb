"""Maildir with Maildir++ folders, as Dovecot and Courier keep it.

A folder ``Work/Plans`` is the directory ``.Work.Plans`` next to INBOX's ``cur``, ``new`` and ``tmp``. Names are in
modified UTF-7; a dot or backslash within a name is written ``\\2e`` or ``\\5c``. Each message is a file. Its name ends
in ``:2,`` and letters: capitals are flags, small letters are keywords, which ``dovecot-keywords`` lists. The
modification time is the internal date. ``dovecot-uidlist`` has the order of messages and lets Dovecot keep the UIDs.

Files exported by Markpost have names ending in ``.markpost`` and hold exact octets. In other files a bare LF is read as
CRLF, because Maildirs are commonly stored that way.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from adapter.exchange import files
from adapter.exchange.eml import with_crlf
from adapter.exchange.model import FORWARDED, Item, Source, read_file, read_note, tidy_folder
from adapter.store import names
from adapter.store.flags import Flag, valid_keywords
from adapter.store.queries.mailboxes import Folder, Row
from protocol.imap.wire import utf7

_LETTERS = {"D": Flag.DRAFT, "F": Flag.STARRED, "R": Flag.ANSWERED, "S": Flag.READ, "T": Flag.DELETED}
_PASSED = "P"
_KEYWORDS = "dovecot-keywords"
_UIDLIST = "dovecot-uidlist"
_EXPORTED_NAME = re.compile(r"\.markpost(?:,[^:]*)?\Z")
_SPLIT_NAME = re.compile(r"(.*?)(?:[:;!]2,([A-Za-z]*).*)?\Z", re.DOTALL)
_ESCAPED = re.compile(r"\\([0-9A-Fa-f]{2})")
_UIDLIST_LINE = re.compile(r"(\d{1,10}) [^:]*:(.+)\Z")
_MAX_KEYWORDS = 26


def folder_directory(name: str) -> str:
    """Return the directory of a folder, relative to the Maildir; empty for INBOX."""
    if name == names.INBOX:
        return ""
    levels = (level.replace("\\", "\\5c").replace(".", "\\2e") for level in name.split(names.DELIMITER))
    return "".join("." + utf7.encode(level).decode("ascii") for level in levels)


def folder_name(entry: str) -> str:
    """Return the folder of a Maildir++ directory."""
    levels = map(files.decode_level, os.fsencode(entry).split(b"."))
    return tidy_folder(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), level) for level in levels)


# --- reading ---------------------------------------------------------------------------------------------------------


def is_maildir(path: str) -> bool:
    return any(os.path.isdir(os.path.join(path, name)) for name in ("cur", "new"))


def source(path: str) -> Source:
    """Return a Maildir with all its folders as a source."""
    full_names = files.read_full_names(path)
    directories = {names.INBOX: [path]}
    for entry in sorted(os.listdir(path)):
        inner = os.path.join(path, entry)
        if entry.startswith(".") and is_maildir(inner):
            directories.setdefault(full_names.get(entry) or folder_name(entry), []).append(inner)
    items = [
        item
        for folder, paths in directories.items()
        for directory in paths
        for item in _messages(directory, folder, os.path.relpath(directory, path))
    ]
    subscribed = files.read_subscriptions(path, b".")
    return Source(tuple(directories), sum(item.octets for item in items), partial(iter, items), subscribed)


def _messages(directory: str, folder: str, shown: str) -> Iterator[Item]:
    keywords = _read_keywords(directory)
    uids = _read_uidlist(directory)
    files_in_order = []
    for part in ("cur", "new"):
        try:
            entries = list(os.scandir(os.path.join(directory, part)))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            match = _SPLIT_NAME.match(entry.name)
            if entry.name.startswith(".") or match is None or entry.is_dir(follow_symlinks=False):
                continue
            unique, letters = match.groups()
            stamp = re.match(r"\d{1,12}", unique)
            order = (unique not in uids, uids.get(unique, 0), int(stamp[0]) if stamp else 0, unique)
            files_in_order.append((order, unique, letters or "", part, entry))
    files_in_order.sort(key=lambda each: each[0])
    for _, unique, letters, part, entry in files_in_order:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            status = None  # moved or removed by another process; reading it reports the error
        flags, words = _read_letters(letters, keywords)
        yield Item(
            label=os.path.normpath(os.path.join(shown, part, entry.name)),
            folder=folder,
            octets=status.st_size if status and stat.S_ISREG(status.st_mode) else 0,
            chunks=_reader(entry.path, exact=bool(_EXPORTED_NAME.search(unique))),
            date=int(status.st_mtime) if status else None,
            flags=flags,
            keywords=words,
        )


def _reader(path: str, exact: bool) -> Callable[[], Iterator[bytes]]:
    return (lambda: read_file(path)) if exact else (lambda: with_crlf(read_file(path)))


def _read_letters(letters: str, keywords: dict[str, str]) -> tuple[int, tuple[str, ...]]:
    flags = 0
    words = [keywords[letter] for letter in letters if letter in keywords]
    for letter in letters:
        flags |= _LETTERS.get(letter, 0)
    if _PASSED in letters and FORWARDED not in words:
        words.append(FORWARDED)
    return flags, tuple(words)


def _read_keywords(directory: str) -> dict[str, str]:
    keywords = {}
    for line in _lines(directory, _KEYWORDS):
        number, _, word = line.partition(" ")
        if number.isdecimal() and int(number) < _MAX_KEYWORDS and valid_keywords([word]):
            keywords[chr(ord("a") + int(number))] = word
    return keywords


def _read_uidlist(directory: str) -> dict[str, int]:
    lines = _lines(directory, _UIDLIST)
    uids = {}
    for line in lines[1:] if lines[0].startswith("3 ") else ():
        match = _UIDLIST_LINE.match(line)
        if match:
            uids[_SPLIT_NAME.sub(r"\1", match[2])] = int(match[1])
    return uids


def _lines(directory: str, name: str) -> list[str]:
    return os.fsdecode(read_note(os.path.join(directory, name)) or b"").split("\n")


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FolderWriter:
    """Writes one folder; call ``finish`` after the last message."""

    directory: str
    folder: Folder
    letters: dict[str, str]
    lost_keywords: tuple[str, ...]
    uidlist: list[str]

    @classmethod
    def create(cls, maildir: str, folder: Folder, rows: Iterable[Row], shortened: dict[str, str]) -> FolderWriter:
        entry = files.fit(folder_directory(folder.name))
        if entry != folder_directory(folder.name):
            shortened[entry] = folder.name
        directory = os.path.join(maildir, entry)
        if entry:
            files.make_directory(directory)
            files.write(os.path.join(directory, "maildirfolder"), ())
        for name in ("tmp", "new", "cur"):
            files.make_directory(os.path.join(directory, name))
        # A Maildir folder has letters for 26 keywords: the most frequent ones get them.
        by_frequency = [
            word for word, _ in Counter(word for row in rows for word in row.keywords.split()).most_common()
        ]
        letters = {word: chr(ord("a") + number) for number, word in enumerate(by_frequency[:_MAX_KEYWORDS])}
        return cls(directory, folder, letters, tuple(by_frequency[_MAX_KEYWORDS:]), [])

    def add(self, row: Row, octets: Iterable[bytes]) -> None:
        unique = f"{row.internal_date}.U{row.uid}_{row.message_id}.markpost,S={row.size}"
        files.write_then_move(
            os.path.join(self.directory, "tmp", unique),
            os.path.join(self.directory, "cur", f"{unique}:2,{self._letters(row)}"),
            octets,
            row.internal_date,
        )
        self.uidlist.append(f"{row.uid} :{unique}")

    def _letters(self, row: Row) -> str:
        words = row.keywords.split()
        letters = [letter for letter, flag in _LETTERS.items() if row.flags & flag]
        if FORWARDED in words:
            letters.append(_PASSED)
        return "".join(sorted(letters) + sorted(self.letters[word] for word in words if word in self.letters))

    def finish(self) -> None:
        if self.letters:
            words = "".join(f"{number} {word}\n" for number, word in enumerate(self.letters))
            self._write(_KEYWORDS, words)
        guid = f"{self.folder.id:032x}"
        head = f"3 V{self.folder.uidvalidity} N{self.folder.uidnext} G{guid}"
        self._write(_UIDLIST, "".join(f"{line}\n" for line in (head, *self.uidlist)))

    def _write(self, name: str, text: str) -> None:
        files.write(os.path.join(self.directory, name), [text.encode()])
