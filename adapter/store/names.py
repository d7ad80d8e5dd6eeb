"""Addresses and folder names, and the file names they become.

Escaping is reversible, readable and free of collisions:

* every octet outside a safe set becomes ``%XX``; letters of any script stay as they are;
* the hierarchy delimiter ``/`` of a folder name becomes ``~`` (a literal ``~`` is escaped), so that every folder is one
  directory directly below its account and a projection always has the same relative target;
* the six folders made with an account are written in lower case (``Sent`` is ``sent``); a user's folder that would
  collide with one of those has its first letter escaped;
* a name longer than a directory entry may be is cut and closed with ``%+`` and a hash of the whole name; the full name
  is then kept in a ``.name`` file inside the directory.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from protocol.errors import MailError, Reason

INBOX = "INBOX"
DELIMITER = "/"
#: The folders every account starts with: IMAP name -> (directory name, special use).
STANDARD_FOLDERS = {
    INBOX: ("inbox", ""),
    "Sent": ("sent", "\\Sent"),
    "Drafts": ("drafts", "\\Drafts"),
    "Archive": ("archive", "\\Archive"),
    "Trash": ("trash", "\\Trash"),
    "Junk": ("junk", "\\Junk"),
}
_STANDARD_DIRECTORIES = {directory: name for name, (directory, _) in STANDARD_FOLDERS.items()}

MAX_FOLDER_NAME = 1000  # octets of UTF-8; more than any client shows, small enough to index
MAX_FOLDER_DEPTH = 64
_MAX_ENTRY = 255
_MAX_ADDRESS_ENTRY = 200  # leaves room for ".lock" and the suffix of a stashed mailbox

_SAFE_ADDRESS = re.compile(r"(?!\.)[A-Za-z0-9@._+=\-]*\Z")
_SAFE_FOLDER = re.compile(r"[A-Za-z0-9_+=,@()\[\] &'!#-][A-Za-z0-9_+=,@()\[\] .&'!#-]*\Z")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_QUOTED_LOCAL = re.compile(r'"((?:[^"\\]|\\.)*)"\Z', re.DOTALL)
_DOMAIN_LITERAL = re.compile(r"\[[0-9A-Za-z:.\-]+\]\Z")
_DOMAIN_LABEL = re.compile(r"(?!-)[\w-]{1,63}(?<!-)\Z")


def _is_readable(character: str) -> bool:
    return character.isascii() or unicodedata.category(character)[0] in "LMNPS"


def _escape(text: str, safe: re.Pattern[str]) -> str:
    if safe.match(text):
        return text
    out = []
    for position, character in enumerate(text):
        keep = safe.match(f"a{character}") if character.isascii() else _is_readable(character)
        if keep and not (character == "." and position == 0):
            out.append(character)
        else:
            out.extend(f"%{octet:02X}" for octet in character.encode())
    return "".join(out)


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    raw = re.sub(
        rb"%([0-9A-F]{2})",
        lambda match: bytes([int(match.group(1), 16)]),
        text.encode("utf-8", "surrogateescape"),
    )
    return raw.decode("utf-8", "surrogateescape")


def _spell(text: str) -> tuple[str, str]:
    local, _, domain = unicodedata.normalize("NFC", text.strip()).rpartition("@")
    if quoted := _QUOTED_LOCAL.match(local):
        local = re.sub(r"\\(.)", r"\1", quoted.group(1), flags=re.DOTALL)
    return local.lower(), domain.lower().rstrip(".")


def normalise_address(text: str) -> str:
    """The one spelling of an address: NFC, lower case, no needless quotes. Raises ``BAD_ADDRESS``."""
    local, domain = _spell(text)
    valid = (
        0 < len(local.encode("utf-8", "replace")) <= 64
        and 0 < len(domain.encode("utf-8", "replace")) <= 253
        and not any(unicodedata.category(character)[0] == "C" for character in local)
        and (_DOMAIN_LITERAL.match(domain) or all(_DOMAIN_LABEL.match(label) for label in domain.split(".")))
    )
    address = f"{local}@{domain}"
    # A local part that normalisation would change again (quotes or blanks inside its quotes) has two spellings.
    if (
        not valid
        or _spell(address) != (local, domain)
        or len(_escape(address, _SAFE_ADDRESS).encode()) > _MAX_ADDRESS_ENTRY
    ):
        raise MailError(Reason.BAD_ADDRESS, f"not an address: {text!r}")
    return address


def address_entry(address: str) -> str:
    """The directory (and lock file) name of a normalised address."""
    return _escape(address, _SAFE_ADDRESS)


def is_text(name: str) -> bool:
    """True if a name, for example of a file, is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def address_of_entry(entry: str) -> str:
    return _unescape(entry)


def stash_entry(address: str, registration: str) -> str:
    """The directory of a stashed mailbox; ``%~`` never occurs in an escaped address, so there is no collision."""
    return f"{address_entry(address)}%~{registration}"


def owner_of_entry(entry: str) -> str:
    """The address in the name of a mailbox's directory, stashed or not; the entry itself if that is not text."""
    address = address_of_entry(entry.partition("%~")[0])
    return address if is_text(address) else entry


def normalise_folder(name: str) -> str:
    """The one spelling of a folder name: INBOX in capitals (alone or as first level). Raises ``BAD_FOLDER_NAME``."""
    name = name.removesuffix(DELIMITER)
    levels = name.split(DELIMITER)
    if levels[0].isascii() and levels[0].upper() == INBOX:
        levels[0] = INBOX
    try:
        octets = len(name.encode())
    except UnicodeEncodeError:
        raise MailError(Reason.BAD_FOLDER_NAME, "not Unicode text") from None
    if not all(levels) or octets > MAX_FOLDER_NAME or len(levels) > MAX_FOLDER_DEPTH:
        raise MailError(Reason.BAD_FOLDER_NAME, f"folder name {name!r}")
    return DELIMITER.join(levels)


def folder_entry(name: str) -> str:
    """The directory name of a normalised folder name."""
    if name in STANDARD_FOLDERS:
        return STANDARD_FOLDERS[name][0]
    entry = "~".join(_escape(level, _SAFE_FOLDER) for level in name.split(DELIMITER))
    if entry in _STANDARD_DIRECTORIES:
        entry = f"%{ord(entry[0]):02X}{entry[1:]}"
    if len(entry.encode()) > _MAX_ENTRY:
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        head = entry.encode()[: _MAX_ENTRY - len(digest) - 2].decode("utf-8", "ignore")
        entry = f"{re.sub(r'%[0-9A-F]?$', '', head)}%+{digest}"
    return entry


def is_shortened(entry: str) -> bool:
    """True if a directory name is a shortened folder name (the full one is in the ``.name`` file)."""
    return "%+" in entry


def folder_of_entry(entry: str) -> str:
    """The folder name of a directory that is not shortened."""
    if entry in _STANDARD_DIRECTORIES:
        return _STANDARD_DIRECTORIES[entry]
    return DELIMITER.join(_unescape(level) for level in entry.split("~"))


def parents(name: str) -> list[str]:
    """Every proper ancestor of a folder name, outermost first."""
    levels = name.split(DELIMITER)
    return [DELIMITER.join(levels[:depth]) for depth in range(1, len(levels))]
