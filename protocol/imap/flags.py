"""Flags as bits: one integer for the flags of a message, one table for those of a folder.

With masks STORE is ``|`` or ``& ~``, SEARCH is ``&``, and FETCH FLAGS is one dictionary look-up of the encoded list.
The table holds keywords in the order and spelling of their first use and never removes one, so a mask never changes its
meaning. Names are case-insensitive (RFC 3501 9).
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import MailError, Reason

SEEN = 1
ANSWERED = 2
FLAGGED = 4
DELETED = 8
DRAFT = 16

# RFC 3501 2.3.2. \Recent is not stored: it belongs to a session (protocol.imap.session_view).
_SYSTEM = {
    "\\seen": SEEN,
    "\\answered": ANSWERED,
    "\\flagged": FLAGGED,
    "\\deleted": DELETED,
    "\\draft": DRAFT,
}
SYSTEM_FLAGS = ("\\Seen", "\\Answered", "\\Flagged", "\\Deleted", "\\Draft")

#: Keywords a folder may have; further ones are refused.
KEYWORD_LIMIT = 1024

# Encoded combinations in the cache. Real folders have dozens; the limit is for hostile ones.
_ENCODED_LIMIT = 4096


class _Encoded(dict[int, bytes]):
    """mask -> ``(\\Seen $Junk)``, filled on demand at the speed of a plain dictionary."""

    def __init__(self, names: list[bytes]) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, mask: int) -> bytes:
        if len(self) >= _ENCODED_LIMIT:
            self.clear()
        names = [name for bit, name in enumerate(self._names) if mask >> bit & 1]
        encoded = self[mask] = b"(" + b" ".join(names) + b")"
        return encoded


def with_recent(encoded: bytes) -> bytes:
    r"""Add ``\Recent`` to encoded flags: ``(\Recent \Seen)``."""
    return b"(\\Recent)" if encoded == b"()" else b"(\\Recent " + encoded[1:]


class FlagTable:
    """The flags of one folder. ``encoded[mask]`` is the parenthesised list for the wire."""

    __slots__ = ("_bits", "_names", "encoded")

    def __init__(self, keywords: Iterable[str] = ()) -> None:
        self._names = [name.encode("ascii") for name in SYSTEM_FLAGS]
        self._bits = dict(_SYSTEM)
        self.encoded: dict[int, bytes] = _Encoded(self._names)
        for keyword in keywords:
            self._add(keyword)

    def __len__(self) -> int:
        """The number of flags; it grows with every keyword, so a session compares it to see if it is up to date."""
        return len(self._names)

    @property
    def keywords(self) -> list[str]:
        return [name.decode("ascii") for name in self._names[len(SYSTEM_FLAGS) :]]

    def bit(self, name: str) -> int:
        r"""Return the bit of a flag; 0 if the folder does not have it (an unused keyword, ``\Recent``)."""
        return self._bits.get(name.lower(), 0)

    def mask(self, names: Iterable[str]) -> int:
        r"""Return the mask of these flags. Adds new keywords to the table and ignores ``\Recent``.

        Raises MailError LIMIT, and adds nothing, if the folder would have too many keywords.
        """
        flags = list(names)
        new = {name.lower() for name in flags if not name.startswith("\\")} - self._bits.keys()
        if len(self._names) - len(SYSTEM_FLAGS) + len(new) > KEYWORD_LIMIT:
            raise MailError(Reason.LIMIT, "too many keywords in folder")
        mask = 0
        for name in flags:
            if name.lower() in new and name.lower() not in self._bits:
                self._add(name)
            mask |= self.bit(name)
        return mask

    def names(self, mask: int) -> list[str]:
        return [name.decode("ascii") for bit, name in enumerate(self._names) if mask >> bit & 1]

    # RFC 3501 7.2.6
    def flags_response(self) -> bytes:
        return b"* FLAGS (" + b" ".join(self._names) + b")\r\n"

    # RFC 3501 7.1, PERMANENTFLAGS
    def permanent_flags(self, read_only: bool) -> bytes:
        r"""Return the list of the PERMANENTFLAGS code: all flags, and ``\*`` while keywords can be added."""
        if read_only:
            return b"()"
        has_room = len(self._names) - len(SYSTEM_FLAGS) < KEYWORD_LIMIT
        return b"(" + b" ".join([*self._names, b"\\*"] if has_room else self._names) + b")"

    def _add(self, keyword: str) -> None:
        self._bits[keyword.lower()] = 1 << len(self._names)
        self._names.append(keyword.encode("ascii"))
