"""Decode octets to text for any charset label of a message.

Invariants: never raises, always linear, the result has no lone surrogate (so it can be written as UTF-8). Only labels
from an allowlist reach the codec registry: the registry remembers every unknown name for ever, and has codecs that are
quadratic (punycode) or not text at all (zlib).
"""

from __future__ import annotations

import codecs
import re
from encodings.aliases import aliases

# "ascii" is treated as unknown: it labels text of every charset.
_NOT_CHARSETS = frozenset(
    {
        "ascii",
        "base64_codec",
        "bz2_codec",
        "hex_codec",
        "idna",
        "mbcs",
        "oem",
        "punycode",
        "quopri_codec",
        "raw_unicode_escape",
        "rot_13",
        "undefined",
        "unicode_escape",
        "uu_codec",
        "zlib_codec",
    }
)
_CODECS = {alias: module for alias, module in aliases.items() if module not in _NOT_CHARSETS}
_CODECS.update({module: module for module in tuple(_CODECS.values())})
_CODECS.update({module: module for module in ("cp720", "cp737", "cp874", "koi8_u", "utf_8_sig")})  # have no alias

# Labels unknown to Python, and labels that mean a superset (WHATWG Encoding, section 4.2).
_REPLACEMENTS = {
    "gb2312": "gb18030",
    "gb_2312_80": "gb18030",
    "gbk": "gb18030",
    "cp936": "gb18030",
    "x_gbk": "gb18030",
    "euc_kr": "cp949",
    "ks_c_5601": "cp949",
    "ks_c_5601_1987": "cp949",
    "ksc5601": "cp949",
    "ksc_5601": "cp949",
    "windows_949": "cp949",
    "shift_jis": "cp932",
    "sjis": "cp932",
    "x_sjis": "cp932",
    "windows_31j": "cp932",
    "iso_2022_jp": "iso2022_jp_ext",
    "cp50220": "iso2022_jp_ext",
    "x_euc_jp": "euc_jp",
    "big5": "big5hkscs",
    "cn_big5": "big5hkscs",
    "x_x_big5": "big5hkscs",
    "tis_620": "cp874",
    "windows_874": "cp874",
    "iso_8859_11": "cp874",
    "iso_8859_9": "cp1254",
    "latin5": "cp1254",
    "iso_8859_8_i": "iso8859_8",
    "iso_8859_8_e": "iso8859_8",
    "iso_8859_6_i": "iso8859_6",
    "unicode_1_1_utf_8": "utf_8",
    "unicode_1_1_utf_7": "utf_7",
    "utf8mb4": "utf_8",
    "x_utf_8": "utf_8",
    "unicode": "utf_16",
    "x_mac_roman": "mac_roman",
    "x_mac_cyrillic": "mac_cyrillic",
    "macintosh": "mac_roman",
    "x_koi8_r": "koi8_r",
    "koi8": "koi8_r",
}
_LATIN_1 = frozenset({"latin_1", "cp1252"})
_SEPARATORS = re.compile(r"[^a-z0-9.]+")
_MAX_LABEL_CHARS = 40


def _cp1252_hole(error: UnicodeError) -> tuple[str, int]:
    """The five octets cp1252 leaves undefined are the C1 controls of ISO-8859-1."""
    assert isinstance(error, UnicodeDecodeError)  # noqa: S101 - the registry calls this for decoding only
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("markpost.cp1252", _cp1252_hole)


def codec_of(charset: str | None) -> str | None:
    """The Python codec for a charset label; None if the label is unknown or uninformative."""
    if charset is None or len(charset) > _MAX_LABEL_CHARS:
        return None
    label = _SEPARATORS.sub("_", charset.lower()).strip("_")
    return _REPLACEMENTS.get(label) or _CODECS.get(label) or _CODECS.get(label.replace(".", "_"))


def decode_octets(raw: bytes) -> str:
    """Octets of unknown charset: UTF-8 if valid, else Windows-1252 (ISO-8859-1 with its C1 holes filled)."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("cp1252", "markpost.cp1252")


def decode_charset(raw: bytes, charset: str | None) -> str:
    """Decode ``raw`` by its charset label; fall back to :func:`decode_octets`."""
    codec = codec_of(charset)
    if codec is None:
        return decode_octets(raw)
    if codec in _LATIN_1:
        return raw.decode("cp1252", "markpost.cp1252")
    if codec == "utf_8":
        return raw.decode("utf-8", "replace")
    try:
        text = raw.decode(codec, "replace")
    except (UnicodeError, LookupError):
        return decode_octets(raw)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
