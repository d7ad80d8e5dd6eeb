"""Ingest: the readable body, attachments, headers, and the canonical file as a whole."""

from __future__ import annotations

import base64
import mmap
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import frontmatter
import pytest

from adapter.content import front_matter
from adapter.content.ingest import Ingested, ThreadKeys, default_thread, ingest
from adapter.content.parts import safe_name
from adapter.content.wire import BLOB, BODY, RAW, TEXT, Recipe, rebuild
from protocol.errors import MailError, Reason

_ID = "msg-20261115T230601Z-0f3c9a0f3c9a0f3c9a0f"
_ARRIVED = "2026-11-15T23:06:01Z"


class Blobs:
    def __init__(self, result: Ingested) -> None:
        self.data = {draft.sha256: draft.data or b"" for draft in result.blobs}

    def read(self, sha256: str, offset: int, length: int) -> bytes:
        return self.data[sha256][offset:] if length < 0 else self.data[sha256][offset : offset + length]


def ingest_message(text: str | bytes) -> Ingested:
    """Ingest a message written with LF, and assert that it is rebuilt exactly."""
    raw = (text.encode() if isinstance(text, str) else text).replace(b"\n", b"\r\n")
    result = ingest(raw, id=_ID, arrived=_ARRIVED)
    assert rebuild(result.file, result.recipe, Blobs(result)) == raw
    return result


def body_of(result: Ingested) -> str:
    return result.file[front_matter.read(result.file).body_start :].decode()


def kinds(result: Ingested) -> list[int]:
    return [segment.kind for segment in result.recipe.segments]


GOLDEN = """\
---
id: msg-20261115T230601Z-0f3c9a0f3c9a0f3c9a0f
date: "2026-11-15T22:06:01Z"
from: {name: Ada Lovelace, address: ada@example.test}
to: [{name: "Bob, B.", address: bob@example.test}, {address: eve@example.test}]
subject: Grüße aus der Engine
message_id: <CA+x@example.test>
in_reply_to: <p@example.test>
references: [<r@example.test>, <p@example.test>]
thread: thr-41bd0366b56a1a310e8d
wire:
  sha256: WIRE
  size: 427
  segments:
    - |2+
      From: Ada Lovelace <ada@example.test>
      To: "Bob, B." <bob@example.test>, eve@example.test
      Bcc: secret@example.test
      Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?= aus der Engine
      Date: Sun, 15 Nov 2026 23:06:01 +0100
      Message-ID: <CA+x@example.test>
      In-Reply-To: <p@example.test>
      References: <r@example.test>
       <p@example.test>
      Content-Type: text/plain; charset=utf-8
      Content-Transfer-Encoding: 8bit
      
    - body: 8bit
digest: DIGEST
---

Hällo Bob,

    see you.
"""  # noqa: W293 - blank lines of a text segment are indented


def test_canonical_file_of_a_simple_message() -> None:
    before, _, rest = GOLDEN.partition("    - |2+\n")
    segment, _, after = rest.partition("    - body: 8bit\n")
    result = ingest_message("".join(line[6:] + "\n" for line in segment.splitlines()) + after.partition("---\n\n")[2])
    digest = front_matter.read(result.file).digest
    expected = GOLDEN.replace("DIGEST", digest).replace("WIRE", result.wire_sha256)
    assert result.file.decode() == expected
    assert "secret" not in before
    assert result.recipients == (("to", "bob@example.test"), ("to", "eve@example.test"))
    assert result.sender == "ada@example.test"
    assert result.date == "2026-11-15T22:06:01Z"
    assert result.preview == "Hällo Bob, see you."


def test_python_frontmatter_parses_the_file() -> None:
    result = ingest_message("Subject: a: b\nFrom: A <a@b.test>\n\nhello\n---\nworld\n")
    post = frontmatter.loads(result.file.decode())
    assert post["subject"] == "a: b"
    assert post["from"] == {"name": "A", "address": "a@b.test"}
    wire = post["wire"]
    assert isinstance(wire, dict)
    assert wire["segments"] == ["Subject: a: b\nFrom: A <a@b.test>\n\n", {"body": "7bit"}]
    assert post.content == "hello\n---\nworld"


ALTERNATIVE = """\
MIME-Version: 1.0
Content-Type: multipart/alternative; boundary="b"

--b
Content-Type: text/plain; charset="utf-8"
Content-Transfer-Encoding: {plain_encoding}

{plain}
--b
Content-Type: text/html; charset="utf-8"
Content-Transfer-Encoding: 7bit

{html}
--b--
"""


def alternative(plain: str, html: str, plain_encoding: str = "7bit") -> Ingested:
    return ingest_message(ALTERNATIVE.format(plain=plain, html=html, plain_encoding=plain_encoding))


def test_plain_text_is_the_body_and_small_html_stays_in_the_file() -> None:
    result = alternative("Hello\n\nyou", "<p>Hello<p>you")
    assert body_of(result) == "Hello\n\nyou\n"
    assert kinds(result) == [TEXT, BODY, TEXT]
    assert result.blobs == ()
    assert b"<p>Hello<p>you" in result.file


def test_blank_text_next_to_html_is_not_the_body() -> None:
    result = alternative("   \n", '<p>Hello <b>you</b>, <a href="https://x.test/a">see</a>')
    assert body_of(result) == "Hello **you**, [see](https://x.test/a)\n"
    assert BODY not in kinds(result)


def test_long_html_becomes_a_blob() -> None:
    html = "<p>long</p>\n" * 1000
    result = alternative("Hello", html)
    assert [blob.data for blob in result.blobs] == [html.replace("\n", "\r\n").encode()]
    assert result.attachments == ()
    assert result.recipe.exact


def test_markdown_takes_precedence_over_plain_text() -> None:
    text = ALTERNATIVE.format(plain="plain", html="**md**", plain_encoding="7bit")
    assert body_of(ingest_message(text.replace("text/html", "text/markdown"))) == "**md**\n"


def test_html_only_message_is_converted_to_markdown() -> None:
    result = ingest_message("Content-Type: text/html; charset=utf-8\n\n<style>x</style><h1>Titel</h1><p>Grüße\n")
    assert body_of(result) == "# Titel\n\nGrüße\n"
    assert b"<h1>Titel</h1>" in result.file


QUOTED = [
    "Gr=C3=BC=C3=9Fe an alle =3D Leute",
    "a long line of plain words that a mailer had to break because it was longer t=\nhan it may be",
    "broken at a word because this mailer prefers to break lines between the =\nwords",
    "=2E a dot and =46rom at the start\n=46rom here From there.",
    "trailing=20\ntab=09\nend",
    "trailing raw blank \nend",
    "=E2=82=AC=E2=82=AC=E2=82=AC=E2=82=AC=E2=82=AC=E2=82=AC=E2=82=AC=E2=82=AC=\n=E2=82=AC",
]


@pytest.mark.parametrize("quoted", QUOTED)
def test_quoted_printable_in_the_styles_of_mailers(quoted: str) -> None:
    result = alternative(quoted, "<p>", "quoted-printable")
    body = next(segment for segment in result.recipe.segments if segment.kind == BODY)
    assert body.coding is not None
    assert body.coding.encoding == "quoted-printable"
    assert "=\n" not in body_of(result)
    assert "=C3" not in body_of(result)


@pytest.mark.parametrize("quoted", ["lower =c3=bc case", "a =0D=0Ab", "stray = sign", "=C3=BC=ZZ"])
def test_irreversible_quoted_printable_is_stored_undecoded_and_read_decoded(quoted: str) -> None:
    result = alternative(quoted, "<p>", "quoted-printable")
    assert BODY not in kinds(result)
    assert quoted.encode() in result.file
    assert "=c3=bc" not in body_of(result)


def test_base64_text_is_the_body() -> None:
    encoded = base64.b64encode("Grüße\r\nan alle\r\n".encode()).decode()
    result = alternative(encoded, "<p>", "base64")
    assert body_of(result) == "Grüße\nan alle\n"


@pytest.mark.parametrize(
    ("charset", "text"),
    [("iso-8859-1", "Grüße"), ("windows-1252", "„Zitat“ – €"), ("iso-2022-jp", "日本語"), ("koi8-r", "Привет"),
     ("shift_jis", "日本"), ("gb2312", "中文"), ("euc-kr", "한국어"), ("iso-8859-15", "100 €"), ("big5", "中文")],
)  # fmt: skip
def test_text_in_other_charsets_is_stored_as_utf8(charset: str, text: str) -> None:
    raw = f"Subject: x\nContent-Type: text/plain; charset={charset}\n\n".encode() + (text + "\n").encode(charset)
    result = ingest_message(raw)
    assert body_of(result) == text + "\n"
    assert kinds(result) == [TEXT, BODY]
    recipe = Recipe.decode(result.recipe.encode())
    assert recipe.segments[1].coding is not None
    assert recipe.segments[1].coding.charset == charset


def test_wrong_charset_label_does_not_change_the_text() -> None:
    utf8 = ingest_message("Content-Type: text/plain; charset=us-ascii\n\nGrüße\n")
    assert body_of(utf8) == "Grüße\n"
    windows = ingest_message(b"Content-Type: text/plain; charset=iso-8859-1\n\n\x84Zitat\x93\n")
    assert body_of(windows) == "„Zitat“\n"
    unknown = ingest_message(b"Content-Type: text/plain; charset=x-nonsense\n\ngr\xfc\xdfe\n")
    assert body_of(unknown) == "grüße\n"


def test_raw_octets_in_headers_stay_readable() -> None:
    result = ingest_message(b"Subject: Gr\xfc\xdfe\nFrom: a@b.test\n\nhello\n")
    assert "      Subject: Grüße\n".encode() in result.file.replace(b"        ", b"      ")
    assert result.subject == "Grüße"
    assert result.recipe.exact
    assert RAW not in kinds(result)


def test_binary_octets_are_stored_as_base64() -> None:
    result = ingest_message(b"X-Odd: \x00\x01\nSubject: s\n\nhello\n")
    assert kinds(result) == [RAW, TEXT, BODY]
    assert body_of(result) == "hello\n"


@pytest.mark.parametrize("raw", [b"Subject: a\n\nb\n", b"Subject: a\r\n\r\nb\nc\n", b"Subject: a\nTo: b\r\n\r\nc\r\n"])
def test_bare_line_feeds_stay_text(raw: bytes) -> None:
    result = ingest(raw, id=_ID, arrived=_ARRIVED)
    assert rebuild(result.file, result.recipe, Blobs(result)) == raw
    assert set(kinds(result)) <= {TEXT, BODY}


def test_nul_never_reaches_the_file() -> None:
    result = ingest_message(b"Subject: s\n\nhello\x00world\n")
    assert b"\x00" not in result.file
    assert body_of(result) == "helloworld\n"


ATTACHED = """\
Content-Type: multipart/mixed; boundary=b

--b
Content-Type: text/plain

see file
--b
Content-Type: {type}
Content-Disposition: {disposition}
Content-Transfer-Encoding: {encoding}

{data}
--b--
"""


def attached(
    data: str, kind: str = "application/pdf", disposition: str = "attachment", encoding: str = "base64"
) -> Ingested:
    return ingest_message(ATTACHED.format(type=kind, disposition=disposition, encoding=encoding, data=data))


def test_attachment_is_a_blob_with_a_name() -> None:
    data = bytes(range(256)) * 3
    result = attached(base64.encodebytes(data).decode(), disposition='attachment; filename="plan.pdf"')
    (meta,) = result.attachments
    assert (meta.name, meta.type, meta.size) == ("plan.pdf", "application/pdf", len(data))
    assert Blobs(result).data == {meta.sha256: data}
    assert kinds(result) == [TEXT, BODY, TEXT, BLOB, TEXT]


@pytest.mark.parametrize("line", [4, 60, 64, 72, 75, 76, 77, 998])
def test_base64_of_any_line_length_is_decoded(line: int) -> None:
    encoded = base64.b64encode(bytes(range(256)) * 5).decode()
    lines = "\n".join(encoded[i : i + line] for i in range(0, len(encoded), line))
    result = attached(lines)
    assert [blob.data for blob in result.blobs] == [bytes(range(256)) * 5]
    assert result.recipe.exact


@pytest.mark.parametrize("data", ["QUJD\nQUI=\nQUJD", "QUJDR", "Q U J D", "QUJDRB=="])
def test_attachment_in_irreversible_base64_can_be_opened(data: str) -> None:
    result = attached(data)
    assert data.replace("\n", "\n      ").encode() in result.file
    (meta,) = result.attachments
    assert Blobs(result).data[meta.sha256].startswith(b"ABC")


def test_long_irreversible_base64_is_stored_undecoded() -> None:
    result = attached("QUJD\n" + "QUJDQUJD\n" * 2000)
    assert not result.recipe.exact
    (meta,) = result.attachments
    assert Blobs(result).data[meta.sha256] == b"ABC" + b"ABCABC" * 2000


def test_empty_attachment_is_listed() -> None:
    result = attached("")
    assert [(a.name, a.size) for a in result.attachments] == [("part-2.pdf", 0)]


def test_inline_files_are_attachments_and_text_parts_are_not() -> None:
    assert attached("x", "text/plain; name=a.txt", "inline", "7bit").attachments[0].name == "a.txt"
    assert attached("x", "text/plain", "inline", "7bit").attachments == ()
    assert attached("x", "image/png", "inline; filename=p.png", "7bit").attachments[0].name == "p.png"
    assert attached("x: y", "message/delivery-status", "inline", "7bit").attachments == ()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ('filename="../../etc/passwd"', "passwd"),
        ('filename="C:\\\\temp\\\\x.txt"', "x.txt"),
        ("filename*=utf-8''Gr%C3%BC%C3%9Fe%20%E2%82%AC.txt", "Grüße €.txt"),
        ('filename="=?utf-8?B?R3LDvMOfZQ==?=.txt"', "Grüße.txt"),
        ("filename*0=\"long \"; filename*1=\"name.txt\"", "long name.txt"),
        ('filename=".."', "part-2.pdf"),
        ("filename=\"a\x01b\u202egpj.exe\"", "a_b_gpj.exe"),
        ("", "part-2.pdf"),
    ],
)  # fmt: skip
def test_attachment_names_are_safe(given: str, name: str) -> None:
    assert attached("QUJD", disposition=f"attachment; {given}").attachments[0].name in (name, name.replace("_", ""))


def test_long_name_keeps_its_extension() -> None:
    name = safe_name("ü" * 300 + ".docx")
    assert name.endswith(".docx")
    assert len(name.encode()) <= 160


def test_attachments_of_forwarded_messages_are_files() -> None:
    inner = ATTACHED.format(type="image/png", disposition="attachment; filename=p.png", encoding="base64", data="QUJD")
    result = ingest_message(
        f"Content-Type: multipart/mixed; boundary=o\n\n--o\nContent-Type: message/rfc822\n\n{inner}\n--o--\n"
    )
    assert [a.name for a in result.attachments] == ["p.png"]
    assert body_of(result) == "see file\n"


def test_text_of_the_message_takes_precedence_over_a_forwarded_one() -> None:
    result = ingest_message(
        "Content-Type: multipart/mixed; boundary=o\n\n"
        "--o\nContent-Type: message/rfc822\n\nSubject: inner\n\ninner text\n"
        "--o\nContent-Type: text/plain\n\nouter text\n--o--\n"
    )
    assert body_of(result) == "outer text\n"


def test_very_long_text_becomes_a_blob_with_an_excerpt() -> None:
    text = "a line of a very long text\n" * 60_000
    result = ingest_message("Content-Type: text/plain\n\n" + text)
    assert [blob.size for blob in result.blobs] == [len(text) + 60_000]
    body = body_of(result)
    assert len(body) < 70_000
    assert body.startswith("a line of a very long text\na line")
    assert body.endswith(f"\n\n[…] attachments/{result.blobs[0].sha256[:2]}/{result.blobs[0].sha256}\n")


def test_mapped_file_is_ingested(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    raw = ATTACHED.format(
        type="application/zip", disposition="attachment", encoding="base64", data=base64.encodebytes(data).decode()
    )
    path = tmp_path / "message"
    path.write_bytes(raw.replace("\n", "\r\n").encode())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        result = ingest(mapped, id=_ID, arrived=_ARRIVED)
        assert rebuild(result.file, result.recipe, Blobs(result)) == mapped[:]
    assert [blob.data for blob in result.blobs] == [data]


def test_message_that_cannot_be_rebuilt_is_stored_as_one_blob() -> None:
    raw = b"Subject: x\r\n\r\nhello\r\n"
    with patch("adapter.content.ingest.segment_octets", return_value=[b"something else"]):
        result = ingest(raw, id=_ID, arrived=_ARRIVED)
    assert kinds(result) == [BLOB]
    assert rebuild(result.file, result.recipe, Blobs(result)) == raw
    assert body_of(result) == "hello\n"
    assert front_matter.recipe_of(result.file) == result.recipe


def test_error_during_verification_counts_as_mismatch() -> None:
    with patch("adapter.content.ingest.segment_octets", side_effect=MailError(Reason.BAD_CONTENT)):
        assert kinds(ingest(b"Subject: x\r\n\r\nhello\r\n", id=_ID, arrived=_ARRIVED)) == [BLOB]


@pytest.mark.parametrize(
    ("keys", "same_as"),
    [
        (ThreadKeys("<m>", "<p>", ("<r>", "<p>"), "i"), "<r>"),
        (ThreadKeys("<m>", "<p>", (), "i"), "<p>"),
        (ThreadKeys("<m>", None, (), "i"), "<m>"),
        (ThreadKeys(None, None, (), "i"), "i"),
    ],
)
def test_thread_id_depends_on_the_root_message(keys: ThreadKeys, same_as: str) -> None:
    thread = default_thread(keys)
    assert thread == default_thread(ThreadKeys(same_as, None, (), "other"))
    assert len(thread) == 24


def test_caller_can_choose_the_thread() -> None:
    choose: Callable[[ThreadKeys], str] = lambda keys: f"thr-{keys.message_id}"  # noqa: E731
    result = ingest(b"Message-ID: <m@x>\r\n\r\n", id=_ID, arrived=_ARRIVED, thread=choose)
    assert result.thread == front_matter.read(result.file).thread == "thr-<m@x>"


def test_oversized_headers_are_truncated_in_front_matter_only() -> None:
    people = ", ".join(f"Person {n} <p{n}@example.test>" for n in range(2000))
    ids = " ".join(f"<id{n}@example.test>" for n in range(2000))
    result = ingest_message(f"To: {people}\nReferences: {ids}\nSubject: {'long ' * 5000}\n\nx\n")
    matter = front_matter.read(result.file)
    assert len(matter.to) == 500
    assert len(matter.references) == 100
    assert matter.references[0] == "<id0@example.test>"
    assert matter.references[-1] == "<id1999@example.test>"
    assert len(matter.subject) <= 2000


def test_message_without_a_date_has_its_arrival_date() -> None:
    result = ingest_message("Subject: x\n\ny\n")
    assert result.date is None
    assert front_matter.read(result.file).date == _ARRIVED
