"""Searching a buffer in windows gives the same tree as searching it at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mime import parser
from protocol.mime.parser import Part, scan, walk

_PIECES = st.sampled_from(
    [b"--a", b"--a--", b"--b", b"--b--", b"--", b"-", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"x", b" ", b"text\r\n",
     b"Content-Type: multipart/mixed; boundary=a\r\n\r\n", b"Content-Type: multipart/mixed; boundary=b\r\n\r\n",
     b"Content-Type: message/rfc822\r\n\r\n", b"\n--" + b"y" * 1200 + b"\n", b"\n--" + b"z" * 999, b"q" * 500]
)  # fmt: skip


def _shape(part: Part) -> list[tuple[int, int, int, str, str]]:
    return [(each.start, each.body, each.end, each.type, each.number) for each in walk(part)]


@given(st.lists(_PIECES, max_size=60).map(b"".join), st.integers(1, 64), st.integers(1, 3))
def test_windows_do_not_change_the_tree(octets: bytes, first: int, growth: int) -> None:
    message = b"Content-Type: multipart/mixed; boundary=a\r\n\r\n" + octets
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parser, "_FIRST_WINDOW_BYTES", first)
        patched.setattr(parser, "_LAST_WINDOW_BYTES", first * growth)
        assert _shape(scan(memoryview(message))) == _shape(scan(message))
