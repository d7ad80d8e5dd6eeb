"""Modified UTF-7: the encodings of RFC 3501 5.1.3, and those that must be refused."""

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
def test_names_round_trip(name: str, spelling: bytes) -> None:
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
        b"&AOl-",  # same character as &AOk-, with other unused bits
        b"&AOk=-",  # padded
        b"&AGE-",  # printable ASCII must not be encoded
        b"&ACY-",  # & is encoded as &-
        b"&U,BTFw-&ZeVnLIqe-",  # redundant shift
        b"&2D0-",  # lone surrogate
        b"&3gDYPQ-",  # surrogates in the wrong order
        b"Entw\xc3\xbcrfe",
        b"a\tb",
        b"a\x00b",
    ],
)
def test_other_encodings_are_refused(spelling: bytes) -> None:
    with pytest.raises(ProtocolError):
        utf7.decode(spelling)


def test_lone_surrogate_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        utf7.encode("\ud800")
