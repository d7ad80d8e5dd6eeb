"""Collation of text: case folding for substring search, sort keys for sorting and threading.

Both are pure functions of the text, so their results can be computed once, at delivery, and stored.
"""

from __future__ import annotations

from unicodedata import normalize


def fold(text: str) -> str:
    """Fold text for the case-insensitive comparison of a search, needle and haystack alike.

    RFC 3501 6.4.4 requires case-insensitive substrings, RFC 5255 4.4 Unicode rules. Compatibility forms are composed,
    so that "é" matches in every encoding and "e" does not match it.
    """
    if text.isascii():
        return text.lower()
    # Folding can undo composition and vice versa; after the second round the result is stable for every character.
    return normalize("NFKC", normalize("NFKC", text.casefold()).casefold())


def _titlecase(character: str) -> str:
    # Python maps some characters to several (ß to Ss); RFC 5051 uses only the one-to-one mapping.
    mapped = character.title()
    return mapped if len(mapped) == 1 else character


def collation_key(text: str) -> str:
    """Map text to a sort key, to be compared by code points (RFC 5051 2, i;unicode-casemap; RFC 5256 7)."""
    if text.isascii():
        return text.upper()
    return normalize("NFKD", "".join(map(_titlecase, text)))
