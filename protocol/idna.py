"""The two forms of an international domain (RFC 5890 2.3.2): as people write it, and as it stands in the DNS.

IDNA 2008, as mail has it (RFC 6531 3.2). The codec of the standard library is IDNA 2003, for which ``straße`` is
``strasse``: another domain, of somebody else. Labels that are ASCII are left as they are.
"""

from __future__ import annotations

import unicodedata

import idna

_LONGEST = 63  # octets of a label (RFC 1035 2.3.4)


def to_ascii(domain: str) -> str:
    """Raises UnicodeError where there is no such form."""
    labels = domain.removesuffix(".").split(".")
    return ".".join(map(_a_label, labels)) + ("." if domain.endswith(".") else "")


def to_unicode(domain: str) -> str:
    """Raises UnicodeError if a label says that it is of this kind and is not."""
    return ".".join(idna.ulabel(label) if label[:4].lower() == "xn--" else label for label in domain.split("."))


def _a_label(label: str) -> str:
    if not label.isascii():
        return idna.alabel(unicodedata.normalize("NFC", label.lower())).decode("ascii")
    if not 0 < len(label) <= _LONGEST:
        raise UnicodeError("label empty or too long")
    return label
