"""Character sets for reversible conversion to UTF-8.

Only charsets with a fixed table are listed: text stored under a name today must encode to the same octets for ever.
Canonical files use the names in ``MIME_NAMES``; UTF-8 and ASCII need no name.
"""

from __future__ import annotations

import re
from encodings.aliases import aliases

from protocol.errors import MailError, Reason

#: Python codec name -> name in canonical files.
MIME_NAMES = {
    **{f"iso8859-{n}": f"iso-8859-{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16)},
    **{f"cp125{n}": f"windows-125{n}" for n in range(9)},
    "cp437": "ibm437",
    "cp850": "ibm850",
    "cp866": "ibm866",
    "koi8-r": "koi8-r",
    "koi8-u": "koi8-u",
    "mac-roman": "macintosh",
    "iso2022_jp": "iso-2022-jp",
    "shift_jis": "shift_jis",
    "cp932": "windows-31j",
    "euc_jp": "euc-jp",
    "euc_kr": "euc-kr",
    "cp949": "cp949",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "big5": "big5",
}
_CODECS = {name: codec for codec, name in MIME_NAMES.items()}
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_LATIN1, _WINDOWS = "iso-8859-1", "windows-1252"
_STATEFUL = frozenset({"iso-2022-jp"})
_C1 = bytes(range(0x80, 0xA0))


def _labels() -> dict[str, str]:
    """All of Python's labels for the listed charsets, so that untrusted labels never reach the codec registry."""
    modules = {_SEPARATORS.sub("_", codec): name for codec, name in MIME_NAMES.items()}
    modules["latin_1"] = _LATIN1
    labels = {alias: modules[module] for alias, module in aliases.items() if module in modules}
    labels |= modules
    labels |= {_SEPARATORS.sub("_", name): name for name in _CODECS}
    return labels


_LABELS = _labels()


def name_of(label: str) -> str:
    """The listed name for a MIME charset label, or "" for UTF-8, ASCII and unlisted charsets."""
    return _LABELS.get(_SEPARATORS.sub("_", label[:64].lower()).strip("_"), "")


def encode(text: str, name: str) -> bytes:
    """Encode ``text`` in the named charset; "" is UTF-8."""
    try:
        return text.encode(_CODECS[name] if name else "utf-8")
    except (KeyError, UnicodeError) as error:
        raise MailError(Reason.BAD_CONTENT, f"text cannot be encoded in charset {name!r}") from error


def _reversible(raw: bytes, name: str) -> str | None:
    codec = _CODECS[name]
    try:
        text = raw.decode(codec)
        return text if text.encode(codec) == raw else None
    except UnicodeError:
        return None


def decode(raw: bytes, label: str) -> tuple[str, str] | None:
    """Decode ``raw`` to (text, name) such that ``encode(text, name) == raw``; None if no listed charset is reversible.

    UTF-8 takes precedence over the label, because text that is valid UTF-8 is almost always UTF-8. The exception is a
    charset that switches by escape sequences and would pass for ASCII.
    """
    declared = name_of(label) if label else ""
    if declared in _STATEFUL and b"\x1b" in raw:
        text = _reversible(raw, declared)
        if text is not None:
            return text, declared
    try:
        return raw.decode(), ""
    except UnicodeDecodeError:
        pass
    # Mail labelled Latin-1 that uses 0x80-0x9F is Windows-1252, where these are quotes and dashes.
    if declared == _LATIN1 and len(raw.translate(None, _C1)) != len(raw):
        declared = _WINDOWS
    for name in (declared, _WINDOWS, _LATIN1):
        if name:
            text = _reversible(raw, name)
            if text is not None:
                return text, name
    return None
