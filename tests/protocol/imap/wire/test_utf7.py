"""Modified UTF-7: the spellings of RFC 3501 5.1.3 and what must be refused."""

from __future__ import annotations

import pytest

from protocol.errors import ProtocolError
from protocol.imap.wire import utf7

SPELLINGS = [
    ("INBOX", b"INBOX"),
    ("", b""),
    ("R&D", b"R&-D"),
    ("&", b"&-"),
    ("Entwürfe", b"Entw&APw-rfe"),
    ("~peter/mail/台北/日本語", b"~peter/mail/&U,BTFw-/&ZeVnLIqe-"),
    ("é&é", b"&AOk-&-&AOk-"),
    ("😀", b"&2D3eAA-"),
    ("a\tb", b"a&AAk-b"),
    ('a\\b "c"%*', b'a\\b "c"%*'),
]


@pytest.mark.parametrize(("name", "spelling"), SPELLINGS)
def test_both_ways(name: str, spelling: bytes) -> None:
    assert utf7.encode(name) == spelling
    assert utf7.decode(spelling) == name


@pytest.mark.parametrize(
    "spelling",
    [
        b"R&D",  # never closed
        b"&",
        b"&AOk",
        b"&AOk/-",  # not of the modified alphabet
        b"&A-",  # a single base64 character
        b"&AA-",  # half a UTF-16 unit
        b"&AOl-",  # same character as &AOk- but for the unused bits
        b"&AOk=-",  # padded
        b"&AGE-",  # printable ASCII must stand for itself
        b"&ACY-",  # & is spelled &-
        b"&U,BTFw-&ZeVnLIqe-",  # superfluous shift
        b"&2D0-",  # lone surrogate
        b"&3gDYPQ-",  # surrogates the wrong way round
        b"Entw\xc3\xbcrfe",
        b"a\tb",
        b"a\x00b",
    ],
)
def test_refused(spelling: bytes) -> None:
    with pytest.raises(ProtocolError):
        utf7.decode(spelling)


def test_lone_surrogate_has_no_spelling() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        utf7.encode("\ud800")
