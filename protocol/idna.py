"""The two forms of an international domain (RFC 5890 2.3.2): U-labels for people, A-labels for the DNS.

Mail uses IDNA 2008 (RFC 6531 3.2). The codec of the standard library is IDNA 2003, which turns ``straße`` into
``strasse``: a different domain with a different owner. ASCII labels are left unchanged.
"""

from __future__ import annotations

import unicodedata

import idna

_MAX_LABEL_BYTES = 63  # RFC 1035 2.3.4


def to_ascii(domain: str) -> str:
    """The domain in A-labels. Raises UnicodeError if there is no such form."""
    labels = domain.removesuffix(".").split(".")
    return ".".join(map(_a_label, labels)) + ("." if domain.endswith(".") else "")


def to_unicode(domain: str) -> str:
    """The domain in U-labels. Raises UnicodeError for a label that starts with ``xn--`` but is not an A-label."""
    return ".".join(idna.ulabel(label) if label[:4].lower() == "xn--" else label for label in domain.split("."))


def _a_label(label: str) -> str:
    if not label.isascii():
        return idna.alabel(unicodedata.normalize("NFC", label.lower())).decode("ascii")
    if not 0 < len(label) <= _MAX_LABEL_BYTES:
        raise UnicodeError("label empty or too long")
    return label
