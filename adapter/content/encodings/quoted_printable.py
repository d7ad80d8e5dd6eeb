"""Quoted-printable (RFC 2045 section 6.7) as mailers write it in practice.

The standard lets a mailer escape more than necessary and choose where to break long lines. ``analyse`` detects these
choices and records them in a :class:`Quoting`; ``encode`` repeats them. Text that no quoting reproduces exactly has no
:class:`Quoting`.

Text here has ``\\n`` line endings; the caller converts them to the line endings on the wire.
"""

from __future__ import annotations

import re
from binascii import a2b_qp
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

MAX_EXTRA = 256
MAX_BREAKS = 4000
_NARROWEST = 8
_EQUALS = 0x3D
_ESCAPED = re.compile(rb"=([0-9A-F]{2})")
_LINE_END_BLANK = re.compile(rb"[ \t](?=\n|\Z)")


class Quoting(NamedTuple):
    """The choices a mailer made when quoting a text.

    Always escaped: ``=``, controls except tab, and octets from 0x7F. ``escape``: further octets escaped everywhere.
    ``blanks``: whether a trailing blank is escaped. ``extra``: offsets (in the decoded text) escaped in addition to
    these rules. Lines longer than ``final`` are broken after ``width`` characters, before an escape that would not
    fit; if no such rule applies, ``breaks`` lists the distances between soft breaks.
    """

    escape: tuple[int, ...] = ()
    blanks: bool = True
    extra: tuple[int, ...] = ()
    width: int = 0
    final: int = 0
    breaks: tuple[int, ...] = ()


class _Runs(dict[bytes, bytes]):
    """Cache of escaped short runs of octets; most texts contain only a few distinct ones."""

    def __missing__(self, run: bytes) -> bytes:
        escaped = b"=" + run.hex("=").upper().encode()
        if len(run) <= _RUN_LENGTH:
            if len(self) >= _RUN_COUNT:
                self.clear()
            self[run] = escaped
        return escaped


_RUN_LENGTH, _RUN_COUNT = 8, 4096
_ESCAPES = _Runs()


@lru_cache(maxsize=128)
def _escaper(escape: tuple[int, ...]) -> re.Pattern[bytes]:
    plain = {9, 10, *range(0x20, 0x7F)} - {_EQUALS, *escape}
    return re.compile(b"([^" + b"".join(b"\\x%02x" % octet for octet in sorted(plain)) + b"]+)")


def _escape_runs(text: bytes, pattern: re.Pattern[bytes]) -> bytes:
    pieces = pattern.split(text)
    if len(pieces) > 1:
        escapes = _ESCAPES
        pieces[1::2] = [escapes[run] for run in pieces[1::2]]
    return b"".join(pieces)


def _escape(text: bytes, quoting: Quoting) -> bytes:
    pattern = _escaper(quoting.escape)
    if not quoting.extra:
        escaped = _escape_runs(text, pattern)
    else:
        pieces: list[bytes] = []
        at = 0
        for offset in quoting.extra:
            pieces += _escape_runs(text[at:offset], pattern), b"=%02X" % text[offset]
            at = offset + 1
        pieces.append(_escape_runs(text[at:], pattern))
        escaped = b"".join(pieces)
    if quoting.blanks and (b" \n" in escaped or b"\t\n" in escaped or escaped.endswith((b" ", b"\t"))):
        escaped = _LINE_END_BLANK.sub(lambda match: _ESCAPES[match[0]], escaped)
    return escaped


def _fold(line: bytes, width: int, final: int) -> bytes:
    pieces: list[bytes] = []
    at, size = 0, len(line)
    while size - at > final:
        cut = at + width
        if line[cut - 1] == _EQUALS:
            cut -= 1
        elif line[cut - 2] == _EQUALS:
            cut -= 2
        pieces.append(line[at:cut])
        at = cut
    pieces.append(line[at:])
    return b"=\n".join(pieces)


def _wrap(escaped: bytes, width: int, final: int) -> bytes:
    return b"\n".join([line if len(line) <= final else _fold(line, width, final) for line in escaped.split(b"\n")])


def encode(text: bytes, quoting: Quoting) -> bytes:
    """Quote ``text``. A quoting made for another text may raise IndexError or give garbage, but always terminates."""
    escaped = _escape(text, quoting)
    if quoting.width >= _NARROWEST and quoting.final >= quoting.width:
        return _wrap(escaped, quoting.width, quoting.final)
    if quoting.breaks:
        cuts = [0, *accumulate(quoting.breaks), len(escaped)]
        return b"=\n".join([escaped[a:b] for a, b in pairwise(cuts)])
    return escaped


def analyse(quoted: bytes) -> tuple[bytes, Quoting] | None:
    """Decode ``quoted``; return the text and the quoting that reproduces ``quoted``, or None if there is none."""
    escaped = quoted.replace(b"=\n", b"")
    text = a2b_qp(escaped)
    rule = _escape_rule(text, escaped)
    if rule is None:
        return None
    quoting = rule if len(escaped) == len(quoted) else _break_rule(quoted, escaped, rule)
    return None if quoting is None else (text, quoting)


def _escape_rule(text: bytes, escaped: bytes) -> Quoting | None:
    quoting = Quoting()
    if _escape(text, quoting) == escaped:
        return quoting
    used = {int(code, 16) for code in _ESCAPED.findall(escaped)}
    literal = set(_ESCAPED.sub(b"", escaped))
    always = {octet for octet in used - literal if octet == 9 or 0x20 <= octet < 0x7F} - {_EQUALS}
    for blanks in (True, False):
        quoting = Quoting(tuple(sorted(always - {0x20, 9} if blanks else always)), blanks)
        if _escape(text, quoting) == escaped:
            return quoting
    # Some octets are both literal and escaped, for instance "." and "From" at the start of a line.
    mixed = used & literal - {_EQUALS}
    extra: list[int] = []
    for count, match in enumerate(_ESCAPED.finditer(escaped)):
        if int(match[1], 16) in mixed:
            if len(extra) == MAX_EXTRA:
                return None
            extra.append(match.start() - 2 * count)
    quoting = Quoting(tuple(sorted(always)), False, tuple(extra))
    return quoting if _escape(text, quoting) == escaped else None


def _break_rule(quoted: bytes, escaped: bytes, rule: Quoting) -> Quoting | None:
    pieces = quoted.split(b"=\n")
    width = max([len(piece) - piece.rfind(b"\n") - 1 for piece in pieces[:-1]])
    if width >= _NARROWEST:
        for final in (width, width + 1):
            if _wrap(escaped, width, final) == quoted:
                return rule._replace(width=width, final=final)
    if len(pieces) > MAX_BREAKS:
        return None
    quoting = rule._replace(breaks=tuple(map(len, pieces[:-1])))
    return quoting if b"=\n".join(pieces) == quoted else None
