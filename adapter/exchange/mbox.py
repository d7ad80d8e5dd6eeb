"""mbox: many messages in one file, in the mboxrd dialect.

A message starts with a ``From `` line (sender and date) after a blank line. Body lines that consist of ``From `` after
any number of ``>`` get one more ``>``. Flags and keywords are header fields: Status, X-Status and X-Keywords as mutt
and Dovecot write them, X-Mozilla-Status as Thunderbird does; import removes them.

An exported message starts with such fields. The last one is ``X-Markpost-Octets: <size> <crlf|raw>``: the message
follows with LF for each CRLF (``crlf``), or unchanged if it contains a bare LF (``raw``), and has that many octets. The
import restores it to the octet.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

from adapter.exchange import files
from adapter.exchange.eml import header_date
from adapter.exchange.model import FORWARDED, Item, Source, SourceError, tidy_folder
from adapter.store import names
from adapter.store.flags import Flag, valid_keywords
from adapter.store.queries.mailboxes import Folder, Row
from protocol.mime.headers import parse_headers

SUFFIX = ".mbox"
#: Bound on memory: a message is unquoted in memory.
MAX_MESSAGE_BYTES = 256 << 20
_FROM = b"From "
_MAX_FROM_LINE_BYTES = 1000
_QUOTED = re.compile(rb"^>(?=>*From )", re.MULTILINE)
_TO_QUOTE = re.compile(rb"^(?=>*From )", re.MULTILINE)
_BARE_LF = re.compile(rb"(?<!\r)\n")
_DATE = re.compile(
    rb" [A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d{1,2}):(\d{2})(?::(\d{2}))?"
    rb"(?: ([+-]\d{4})| [A-Z]{1,5})? (\d{4})(?: ([+-]\d{4}))?\s*\Z"
)
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_OUR_FIELDS = re.compile(
    rb"(?:(?:Status|X-Status|X-Keywords): [^\n]*\n){0,3}X-Markpost-Octets: (\d{1,15}) (crlf|raw)\n"
)
_STATUS = {"R": Flag.READ}
_X_STATUS = {"A": Flag.ANSWERED, "F": Flag.STARRED, "D": Flag.DELETED, "T": Flag.DRAFT}
_MOZILLA = {0x0001: Flag.READ, 0x0002: Flag.ANSWERED, 0x0004: Flag.STARRED}
_MOZILLA_EXPUNGED = 0x0008
_MOZILLA_FORWARDED = 0x1000
_METADATA = frozenset({
    "status", "x-status", "x-keywords", "x-uid", "x-imap", "x-imapbase", "content-length",
    "x-mozilla-status", "x-mozilla-status2", "x-mozilla-keys",
})  # fmt: skip
_HEADER_END = re.compile(rb"\n\r?\n")


# --- reading ---------------------------------------------------------------------------------------------------------


def is_mbox(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(64).lstrip(b"\r\n").startswith(_FROM)


def single(path: str, folder: str = names.INBOX) -> Source:
    return Source((folder,), os.path.getsize(path), partial(_items, path, folder))


def directory(path: str) -> Source:
    """Return a directory of ``.mbox`` files as a source; each file is a folder."""
    full_names = files.read_full_names(path)
    folders = {}
    for entry in sorted(os.listdir(path)):
        file = os.path.join(path, entry)
        if entry.endswith(SUFFIX) and os.path.isfile(file) and not os.path.islink(file):
            name = full_names.get(entry) or names.folder_of_entry(entry.removesuffix(SUFFIX))
            folders[file] = tidy_folder(name.split(names.DELIMITER))

    def items() -> Iterator[Item]:
        for file, folder in folders.items():
            yield from _items(file, folder)

    octets = sum(os.path.getsize(file) for file in folders)
    return Source(tuple(folders.values()), octets, items, files.read_subscriptions(path, names.DELIMITER.encode()))


def contains_folders(path: str) -> bool:
    return any(entry.name.endswith(SUFFIX) and entry.is_file() for entry in os.scandir(path))


def _items(path: str, folder: str) -> Iterator[Item]:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for number, (start, body, end) in enumerate(_split(data), 1):
                label = f"{os.path.basename(path)}, message {number}"
                if end - body > MAX_MESSAGE_BYTES:
                    yield Item(label, folder, end - start, partial(_refuse, end - body))
                    continue
                item = _item(label, folder, data[start:body], data[body:end])
                if item is not None:
                    yield item


def _refuse(size: int) -> Iterator[bytes]:
    raise SourceError(f"{size} octets; a message of an mbox may have {MAX_MESSAGE_BYTES}")


def _split(data: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """Yield the offsets of each message: its From line, its first octet, its end."""
    start = 0
    while data[start : start + 1] in (b"\n", b"\r"):
        start += 1
    size = len(data)
    while start < size:
        line_end = data.find(b"\n", start)
        body = size if line_end < 0 else line_end + 1
        following = _next_from(data, max(body - 1, start))
        end = size if following < 0 else following
        yield start, body, max(body, _without_blank_line(data, body, end))
        start = end


def _next_from(data: mmap.mmap, position: int) -> int:
    while (position := data.find(b"\nFrom ", position)) >= 0:
        blank = data[position - 1 : position] == b"\n" or data[position - 2 : position] == b"\n\r"
        if blank and _DATE.search(data[position + 1 : position + _MAX_FROM_LINE_BYTES].partition(b"\n")[0]):
            return position + 1
        position += 1
    return -1


def _without_blank_line(data: mmap.mmap, body: int, end: int) -> int:
    if data[end - 2 : end] == b"\n\n" and end - 1 > body:
        return end - 1
    if data[end - 3 : end] == b"\n\r\n" and end - 2 > body:
        return end - 2
    return end


def _item(label: str, folder: str, from_line: bytes, raw: bytes) -> Item | None:
    exported = _OUR_FIELDS.match(raw)
    fields_end = _HEADER_END.search(raw)
    fields = parse_headers(raw, 0, exported.end() if exported else fields_end.end() if fields_end else len(raw))
    if fields.first("x-imap") is not None and not exported:
        return None  # an internal record of the UW IMAP server, not mail

    def text(name: str) -> str:
        return (fields.first(name) or b"").decode("latin-1")

    flags = 0
    for letters, meanings in ((text("status"), _STATUS), (text("x-status"), _X_STATUS)):
        for letter in letters:
            flags |= meanings.get(letter, 0)
    words = f"{text('x-keywords')} {text('x-mozilla-keys')}".split()
    mozilla = _hex(text("x-mozilla-status"))
    if mozilla & _MOZILLA_EXPUNGED:
        return None
    for bit, flag in _MOZILLA.items():
        flags |= flag if mozilla & bit else 0
    if mozilla & _MOZILLA_FORWARDED:
        words.append(FORWARDED)
    if exported:
        message = _QUOTED.sub(b"", raw[exported.end() :])
        if exported[2] == b"crlf":
            message = message.replace(b"\n", b"\r\n")
        message = message[: int(exported[1])]
    else:
        kept, at = [], 0
        for field in fields.fields:
            if field.lower in _METADATA:
                kept.append(raw[at : field.start])
                after = raw.find(b"\n", field.end)
                at = len(raw) if after < 0 else after + 1
        message = _BARE_LF.sub(b"\r\n", _QUOTED.sub(b"", b"".join((*kept, raw[at:]))))
    date = _from_date(from_line)
    if date is None:
        date = header_date(message[: 1 << 16])
    return Item(label, folder, len(from_line) + len(raw), partial(iter, [message]), date, flags, valid_keywords(words))


def _hex(text: str) -> int:
    return int(text, 16) if re.fullmatch(r"[0-9A-Fa-f]{1,8}", text) else 0


def _from_date(line: bytes) -> int | None:
    match = _DATE.search(line)
    if match is None or match[1] not in _MONTHS:
        return None
    _, day, hour, minute, second, zone, year, zone_after = match.groups()
    zone = zone or zone_after or b"+0000"
    offset = (int(zone[1:3]) * 60 + int(zone[3:5])) * (-60 if zone[:1] == b"-" else 60)
    month = _MONTHS.index(match[1]) + 1
    try:
        moment = datetime(int(year), month, int(day), int(hour), int(minute), int(second or 0), tzinfo=UTC)
    except ValueError:
        return None
    return int(moment.timestamp()) - offset


# --- writing ---------------------------------------------------------------------------------------------------------


def file_name(folder: str, shortened: dict[str, str]) -> str:
    entry = names.folder_entry(folder)
    name = files.fit(entry, SUFFIX)
    if names.is_shortened(entry) or name != entry + SUFFIX:
        shortened[name] = folder
    return name


class FolderWriter:
    """Writes one folder; call ``finish`` after the last message."""

    def __init__(self, directory: str, folder: Folder, shortened: dict[str, str]) -> None:
        self._file = files.new_file(os.path.join(directory, file_name(folder.name, shortened)))

    def add(self, row: Row, sender: str, octets: bytes) -> None:
        status = "RO" if row.flags & Flag.READ else "O"
        x_status = "".join(letter for letter, flag in _X_STATUS.items() if row.flags & flag)
        crlf = _BARE_LF.search(octets) is None
        head = [f"From {_from_sender(sender)} {_asctime(row.internal_date)}", f"Status: {status}"]
        head += [f"X-Status: {x_status}"] if x_status else []
        head += [f"X-Keywords: {row.keywords}"] if row.keywords else []
        head += [f"X-Markpost-Octets: {len(octets)} {'crlf' if crlf else 'raw'}"]
        message = _TO_QUOTE.sub(b">", octets.replace(b"\r\n", b"\n") if crlf else octets)
        self._file.writelines(f"{line}\n".encode("utf-8", "replace") for line in head)
        self._file.write(message)
        self._file.write(b"\n" if message.endswith(b"\n") else b"\n\n")

    def finish(self) -> None:
        self._file.close()


def _from_sender(sender: str) -> str:
    return re.sub(r"[\s\x00-\x1f\x7f]", "_", sender) or "MAILER-DAEMON"


def _asctime(seconds: int) -> str:
    moment = time.gmtime(seconds)
    month = _MONTHS[moment.tm_mon - 1].decode()
    clock = f"{moment.tm_hour:02}:{moment.tm_min:02}:{moment.tm_sec:02}"
    return f"{_WEEKDAYS[moment.tm_wday]} {month} {moment.tm_mday:2} {clock} {moment.tm_year:04}"
