"""Flags as bits: the flags of a message are one integer, those of a folder one table.

A mask makes STORE an ``|`` or ``& ~``, SEARCH an ``&``, and FETCH FLAGS one dictionary look-up that gives
the encoded list. Keywords are known to the table in the order they first came and in that spelling; they only
ever grow, so a mask never changes its meaning. Names are compared without regard to case (RFC 3501 9).
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

#: Keywords a folder may have; beyond that a new one is refused.
KEYWORD_LIMIT = 1024

# Combinations kept encoded. Real folders have dozens; the bound is for hostile ones.
_ENCODED_LIMIT = 4096


class _Encoded(dict[int, bytes]):
    """mask -> ``(\\Seen $Junk)``, filled on demand at the speed of a plain dictionary."""

    def __init__(self, names: list[bytes]) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, mask: int) -> bytes:
        if len(self) >= _ENCODED_LIMIT:
            self.clear()
        found = [name for bit, name in enumerate(self._names) if mask >> bit & 1]
        encoded = self[mask] = b"(" + b" ".join(found) + b")"
        return encoded


def with_recent(encoded: bytes) -> bytes:
    r"""The encoded flags of a message that is recent to the session: ``(\Recent \Seen)``."""
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
        """How many flags there are; grows with every keyword, so it tells whether a session is up to date."""
        return len(self._names)

    @property
    def keywords(self) -> list[str]:
        return [name.decode("ascii") for name in self._names[len(SYSTEM_FLAGS) :]]

    def bit(self, name: str) -> int:
        r"""The bit of a flag; 0 if the folder does not have it (a keyword never used, ``\Recent``)."""
        return self._bits.get(name.lower(), 0)

    def mask(self, names: Iterable[str]) -> int:
        r"""The mask of these flags; keywords not yet known are added, ``\Recent`` is left out.

        MailError LIMIT if the folder has too many keywords; nothing is added then.
        """
        wanted = list(names)
        new = {name.lower() for name in wanted if not name.startswith("\\")} - self._bits.keys()
        if len(self._names) - len(SYSTEM_FLAGS) + len(new) > KEYWORD_LIMIT:
            raise MailError(Reason.LIMIT, "too many keywords in folder")
        mask = 0
        for name in wanted:
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
        r"""The list of the PERMANENTFLAGS code: all, and ``\*`` while new keywords can be made."""
        if read_only:
            return b"()"
        room = len(self._names) - len(SYSTEM_FLAGS) < KEYWORD_LIMIT
        return b"(" + b" ".join([*self._names, b"\\*"] if room else self._names) + b")"

    def _add(self, keyword: str) -> None:
        self._bits[keyword.lower()] = 1 << len(self._names)
        self._names.append(keyword.encode("ascii"))
