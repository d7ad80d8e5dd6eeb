"""How text is compared: folded for substring search, mapped to an order for sorting and threading.

Both are pure functions of the text, so their results can be computed once at delivery and kept.
"""

from __future__ import annotations

from unicodedata import normalize


def fold(text: str) -> str:
    """The form in which both needle and haystack of a search are compared, without regard to case.

    RFC 3501 6.4.4 asks for case-insensitive substrings, RFC 5255 4.4 for Unicode rules. Compatibility forms
    are composed, so that "é" matches however it was encoded and "e" does not match it.
    """
    if text.isascii():
        return text.lower()
    # Folding can undo composition and the other way round; the second round settles every known character.
    return normalize("NFKC", normalize("NFKC", text.casefold()).casefold())


def _titlecase(character: str) -> str:
    # Python maps some characters to several (ß to Ss); RFC 5051 uses the one-to-one mapping alone.
    mapped = character.title()
    return mapped if len(mapped) == 1 else character


def collation_key(text: str) -> str:
    """A string whose code point order is that of ``text`` (RFC 5051 2, i;unicode-casemap; RFC 5256 7)."""
    if text.isascii():
        return text.upper()
    return normalize("NFKD", "".join(map(_titlecase, text)))
