"""Rules of the store's tree: which names belong in each directory, and the mode bits that entries must not have.

A directory is given by its parts below the root. An entry that :func:`expected` does not list is a stray entry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from adapter.store import layout, names, snapshots

#: Forbidden mode bits: write access of others, for public files; any access of others; any access of others and group.
READABLE, PRIVATE, SECRET = 0o022, 0o027, 0o077

_ANYTHING = re.compile("")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9]+\.new\Z")  # of disk.replace_file
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_PREFIX = re.compile(r"[0-9a-f]{2}\Z")
_SNAPSHOT = re.compile(r"[0-9]{16}\Z|\.[0-9]{16}\.new\Z")
_DATABASE = r"\.sqlite(?:-journal|-wal|-shm)?\Z"
#: Entries of file systems, snapshots, synchronisation tools, or a user with the root as home directory.
_OF_OTHERS = re.compile(r"\.|lost\+found\Z")


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected type and forbidden mode bits of an entry."""

    is_directory: bool
    forbidden: int = READABLE
    is_checked: bool = True  # False: the scan of content, links, staging or the journal reports its problems


_CONTENT = Expected(False, READABLE, is_checked=False)
_FOREIGN = Expected(False, 0, is_checked=False)


def _file(pattern: str, forbidden: int, *, is_checked: bool = True) -> tuple[re.Pattern[str], Expected]:
    return re.compile(pattern), Expected(False, forbidden, is_checked)


def _directory(pattern: re.Pattern[str], forbidden: int = PRIVATE) -> tuple[re.Pattern[str], Expected]:
    return pattern, Expected(True, forbidden)


_Rules = tuple[tuple[re.Pattern[str], Expected], ...]
_TOP = sorted({re.escape(parts[0]) for parts in layout.DIRECTORIES})
_ROOT: _Rules = (
    _file(rf"(?:protocol-version|store-id)\.txt\Z|{re.escape(layout.README_FILE)}\Z", READABLE),
    _file(r"index" + _DATABASE, PRIVATE, is_checked=False),
    _file(r"cache-[a-z]+" + _DATABASE, PRIVATE, is_checked=False),
    _directory(re.compile(rf"(?:{'|'.join(_TOP)})\Z")),
    _directory(re.compile(rf"{re.escape(layout.CREDENTIALS[0])}\Z"), SECRET),
)
_INSIDE: dict[str, dict[int, _Rules]] = {
    layout.MAILBOXES[0]: {
        1: (_directory(_ANYTHING),),
        2: (_directory(_ANYTHING),),
        3: (
            (layout.PROJECTION, _FOREIGN),
            _file(rf"{re.escape(layout.IDENTITY_FILE)}(?:\.new)?\Z", READABLE, is_checked=False),
        ),
    },
    layout.MESSAGES[0]: {1: (_directory(_DAY),), 2: ((_ANYTHING, _CONTENT),)},
    layout.ATTACHMENTS[0]: {1: (_directory(_PREFIX),), 2: ((_ANYTHING, _CONTENT),)},
    layout.JOURNAL[0]: {
        1: (
            (layout.JOURNAL_SEGMENT, Expected(False, PRIVATE, is_checked=False)),
            _file(rf"{re.escape(layout.CHECKPOINT_FILE)}\Z", PRIVATE),
        )
    },
    layout.SNAPSHOTS[0]: {
        1: (_directory(_SNAPSHOT),),
        2: (_file(rf"(?:(?:{'|'.join(snapshots.TABLES)})\.parquet|{re.escape(layout.MANIFEST_FILE)})\Z", READABLE),),
    },
    layout.STAGING[0]: {1: ((_ANYTHING, _FOREIGN),)},
    layout.LOCKS[0]: {
        1: (_file(rf".+\.lock\Z|{layout.PUBLISHED_FILE}\Z", PRIVATE), _directory(re.compile(r"addresses\Z"))),
        2: (_file(r".+\.lock\Z", PRIVATE),),
    },
    layout.CREDENTIALS[0]: {
        1: (_file(rf"(?:{'|'.join(map(re.escape, layout.CREDENTIAL_FILES))})\Z", SECRET),),
    },
    layout.MAINTENANCE[0]: {
        1: (
            _directory(re.compile(r"(?:index-backups|quarantine|reports|runs?(?:-.*)?)\Z")),
            _file(rf"{layout.OFFLINE_MARKER}\Z", READABLE),
            _file(rf"{re.escape(layout.UNDECIDED_FILE)}\Z", PRIVATE),
        )
    },
}


def expected(where: layout.Parts, name: str) -> Expected | None:
    """The rule for an entry of a directory; None if the entry does not belong there."""
    if not names.is_text(name):
        return _FOREIGN if not where and name.startswith(".") else None
    for pattern, rule in _rules(where):
        if pattern.match(name):
            return rule
    if len(where) == 3 and name == layout.FULL_NAME_FILE and names.is_shortened(where[2]):
        return Expected(False, READABLE, is_checked=False)
    if temporary := _TEMPORARY.match(name):
        return expected(where, temporary.group(1))
    return _FOREIGN if not where and _OF_OTHERS.match(name) else None


def _rules(where: layout.Parts) -> _Rules:
    return _INSIDE.get(where[0], {}).get(len(where), ()) if where else _ROOT


def has_own_scan(where: layout.Parts) -> bool:
    """True if executors read each file of this directory, and check its mode."""
    return where[0] in (*layout.MESSAGES, *layout.ATTACHMENTS)


def is_walked(where: layout.Parts) -> bool:
    """True if there are rules for the entries of a directory: not for quarantine, old indexes, reports and staging."""
    return bool(_rules(where)) and not (len(where) == 2 and where[0] == layout.SNAPSHOTS[0] and where[1][:1] == ".")
