"""Transfer encodings and charsets: decoding and encoding again reproduces the same octets."""

from __future__ import annotations

import base64
import email.charset
import quopri
import re
from email.mime.text import MIMEText

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.content.encodings import base64_lines, charsets, quoted_printable
from adapter.content.encodings.codings import Coding, blob_range, encode_blob, encode_text
from adapter.content.encodings.quoted_printable import Quoting
from adapter.content.text_segments import coded_text
from protocol.errors import MailError

lines = st.lists(
    st.one_of(
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200),
        st.text(max_size=60),
        st.sampled_from(["", " ", "a ", "\t", ".", "From x", "=", "a=b" * 40, "é" * 60, "word " * 40]),
    ),
    max_size=6,
).map("\n".join)
texts = lines.map(lambda text: text.encode("utf-8", "replace").replace(b"\r", b""))


def soft_wrapped(escaped: bytes, width: int) -> bytes:
    """Soft line breaks between words where possible, as some mailers write them."""
    out = []
    for line in escaped.split(b"\n"):
        pieces = []
        while len(line) > width:
            cut = line.rfind(b" ", 1, width) + 1 or width
            while cut > 1 and b"=" in line[cut - 2 : cut]:
                cut -= 1
            pieces.append(line[:cut])
            line = line[cut:]
        out.append(b"=\n".join([*pieces, line]))
    return b"\n".join(out)


@given(texts)
def test_quoted_printable_of_python_is_analysed(text: bytes) -> None:
    analysed = quoted_printable.analyse(quopri.encodestring(text))
    assert analysed is not None
    assert analysed[0] == text
    assert quoted_printable.encode(*analysed) == quopri.encodestring(text)


@given(lines)
def test_quoted_printable_of_the_email_package_is_analysed(text: str) -> None:
    charset = email.charset.Charset("utf-8")
    charset.body_encoding = email.charset.QP
    encoded = MIMEText(re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", "", text), "plain", charset)  # type: ignore[arg-type]
    payload = str(encoded.get_payload()).encode("ascii")
    analysed = quoted_printable.analyse(payload)
    assert analysed is not None
    assert quoted_printable.encode(*analysed) == payload


@given(texts, st.integers(20, 90), st.sampled_from([0, 1]), st.lists(st.integers(33, 126), max_size=3), st.booleans())
def test_every_quoting_rule_is_detected(text: bytes, width: int, more: int, escape: list[int], blanks: bool) -> None:
    rule = Quoting(tuple(sorted({*escape} - {61})), blanks, (), width, width + more)
    encoded = quoted_printable.encode(text, rule)
    analysed = quoted_printable.analyse(encoded)
    if b"\r" not in text and analysed is not None:
        assert analysed[0] == text
        assert quoted_printable.encode(*analysed) == encoded
    else:
        assert b"\r" in text


@given(texts, st.integers(20, 90))
def test_word_wrapped_quoting_is_analysed(text: bytes, width: int) -> None:
    encoded = soft_wrapped(quoted_printable.encode(text, Quoting()), width)
    analysed = quoted_printable.analyse(encoded)
    assert analysed is not None
    assert quoted_printable.encode(*analysed) == encoded


@given(st.binary(max_size=200))
def test_every_analysed_text_is_reproduced(raw: bytes) -> None:
    analysed = quoted_printable.analyse(raw)
    if analysed is not None:
        assert quoted_printable.encode(*analysed) == raw


@given(st.binary(max_size=2000), st.integers(0, 200), st.sampled_from([b"\r\n", b"\n"]), st.data())
def test_base64_lines_and_ranges_are_reproduced(data: bytes, line: int, eol: bytes, draw: st.DataObject) -> None:
    encoded = base64_lines.encode(data, line, eol)
    if data:
        start, end, detected_line, detected_eol = base64_lines.detect(
            b"\r\n" + encoded + eol, 0, len(encoded) + 2 + len(eol)
        )
        assert (start, end) == (2, 2 + len(encoded))
        decoded = base64_lines.decode_exact(encoded, 0, len(encoded), detected_line, detected_eol)
        assert b"".join(decoded) == data
        assert b"".join(base64_lines.decode_tolerant(encoded, 0, len(encoded))) == data
    start = draw.draw(st.integers(0, len(encoded)))
    stop = draw.draw(st.integers(start, len(encoded)))
    coding = Coding("base64", "", "crlf", line, "lf" if eol == b"\n" else "crlf")
    pieces = blob_range(lambda at, length: data[at : at + length], coding, len(encoded), start, stop)
    assert b"".join(pieces) == encoded[start:stop]
    assert encode_blob(data, coding) == encoded
    if not line:
        assert encoded == base64.b64encode(data)


@given(st.binary(max_size=300))
def test_inexact_base64_is_refused(raw: bytes) -> None:
    start, end, line, eol = base64_lines.detect(raw, 0, len(raw))
    try:
        data = b"".join(base64_lines.decode_exact(raw, start, end, line, eol))
    except base64_lines.InexactError:
        return
    assert base64_lines.encode(data, line, eol) == raw[start:end]


def test_base64_padding_at_the_end_of_a_chunk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base64_lines, "CHUNK_BYTES", 16)
    with pytest.raises(base64_lines.InexactError):
        b"".join(base64_lines.decode_exact(b"QUJDQUJDQUJDQQ==QUJD", 0, 20, 0, b"\r\n"))


@given(st.binary(max_size=100), st.sampled_from([*charsets.MIME_NAMES.values(), "utf-8", "us-ascii", "", "x-unknown"]))
def test_charsets_are_reversible(raw: bytes, label: str) -> None:
    decoded = charsets.decode(raw, label)
    if decoded is not None:
        assert charsets.encode(*decoded) == raw


@given(
    st.one_of(texts, st.binary(max_size=200)),
    st.sampled_from(["7bit", "8bit", "quoted-printable", "base64"]),
    st.sampled_from(["", "iso-8859-1", "iso-2022-jp", "utf-8"]),
    st.sampled_from([b"\r\n", b"\n"]),
)
def test_coded_text_is_reversible(raw: bytes, encoding: str, label: str, newline: bytes) -> None:
    raw = raw.replace(b"\n", newline)
    if encoding == "base64":
        raw = base64_lines.encode(raw, 76, b"\r\n")
    text_and_coding = coded_text(raw, encoding, label)
    if text_and_coding is not None:
        text, coding = text_and_coding
        text.decode()
        assert encode_text(text, coding) == raw


def test_wrong_parameters_raise_the_documented_error() -> None:
    for coding in (
        Coding("quoted-printable", extra=(99,)),
        Coding("8bit", charset="koi8-r"),
        Coding("8bit", charset="no-such"),
    ):
        with pytest.raises(MailError):
            encode_text("→".encode(), coding)
    for width in (1, 2, 3, 7):
        assert encode_text(b"a" * 50, Coding("quoted-printable", width=width, final=width))
    for breaks in ((0, 0), (5, 1000), (1000,)):
        encode_text(b"a" * 50, Coding("quoted-printable", breaks=breaks))
