"""Compose a message from Markdown: correct headers, no header injection, and the Markdown back as the body."""

from __future__ import annotations

import email
import email.policy
import json
from datetime import UTC, datetime, timedelta, timezone
from email.message import EmailMessage

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adapter.content import front_matter
from adapter.content.compose import compose
from adapter.content.ingest import Ingested, ingest
from adapter.content.wire import BODY, rebuild
from protocol.errors import MailError, Reason
from protocol.mime.addresses import Mailbox

NOW = datetime(2026, 11, 15, 23, 6, 1, tzinfo=UTC)
ID = "<1@example.test>"


def make(
    markdown: bytes | str,
    *,
    sender: str | Mailbox = "ada@example.test",
    recipients: tuple[str, ...] = ("bob@example.test",),
    attachments: tuple[tuple[str, str, bytes], ...] = (),
    message_id: str = ID,
) -> bytes:
    return compose(
        markdown, sender=sender, recipients=recipients, now=NOW, message_id=message_id, attachments=attachments
    )


def parse(octets: bytes) -> EmailMessage:
    message = email.message_from_bytes(octets, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    assert not message.defects
    return message


def stored(octets: bytes) -> Ingested:
    result = ingest(octets, id="msg-1", arrived="2026-11-15T23:06:01Z")

    class Blobs:
        def read(self, sha256: str, offset: int, length: int) -> bytes:
            (data,) = [draft.data for draft in result.blobs if draft.sha256 == sha256]
            return (data or b"")[offset:] if length < 0 else (data or b"")[offset : offset + length]

    assert rebuild(result.file, result.recipe, Blobs()) == octets
    return result


def body(result: Ingested) -> str:
    return result.file[front_matter.read(result.file).body_start :].decode()


def test_markdown_without_front_matter_is_composed() -> None:
    octets = make("# Notes\n\nSee *this*.\n")
    message = parse(octets)
    assert message["from"] == "ada@example.test"
    assert message["to"] == "bob@example.test"
    assert message["subject"] == "Notes"
    assert message["date"].datetime == NOW
    assert message["message-id"] == ID
    assert message.get_content_type() == "multipart/alternative"
    plain, html = message.iter_parts()
    assert isinstance(plain, EmailMessage)
    assert isinstance(html, EmailMessage)
    assert plain.get_content_type() == "text/plain"
    assert "<em>this</em>" in html.get_content()
    assert octets.isascii()
    assert octets.count(b"\n") == octets.count(b"\r\n") == octets.count(b"\r")
    assert body(stored(octets)) == "# Notes\n\nSee *this*.\n"


def test_front_matter_sets_the_headers() -> None:
    markdown = """---
from: {name: Ada Lovelace, address: ada@example.test}
to:
  - '"Bob, B." <bob@example.test>'
cc: eve@example.test, Zoë <zoe@example.test>
reply_to: {address: list@example.test}
subject: Grüße aus der Engine
in_reply_to: <p@example.test>
references: [<r@example.test>, <p@example.test>]
---

Hällo
"""
    octets = make(markdown, recipients=("bob@example.test", "secret@example.test"))
    message = parse(octets)
    assert message["from"] == "Ada Lovelace <ada@example.test>"
    assert [(a.display_name, a.addr_spec) for a in message["to"].addresses] == [("Bob, B.", "bob@example.test")]
    assert [(a.display_name, a.addr_spec) for a in message["cc"].addresses] == [
        ("", "eve@example.test"),
        ("Zoë", "zoe@example.test"),
    ]
    assert message["reply-to"] == "list@example.test"
    assert message["subject"] == "Grüße aus der Engine"
    assert message["in-reply-to"] == "<p@example.test>"
    assert message["references"].split() == ["<r@example.test>", "<p@example.test>"]
    assert b"secret" not in octets
    assert "sender" not in message
    assert body(stored(octets)) == "Hällo\n"


def test_sender_writing_for_another_author_is_in_the_sender_field() -> None:
    message = parse(make("---\nfrom: boss@example.test\n---\nx\n"))
    assert message["from"] == "boss@example.test"
    assert message["sender"] == "ada@example.test"


def test_message_without_recipients_has_undisclosed_recipients() -> None:
    assert parse(make("x", recipients=()))["to"] == "undisclosed-recipients:;"


def test_stored_message_can_be_sent_again() -> None:
    first = make("---\nsubject: one\nto: bob@example.test\n---\n\ntext\n")
    file = stored(first).file
    again = parse(make(file))
    assert again["subject"] == "one"
    assert again["to"] == "bob@example.test"


def test_stored_message_with_attachments_is_refused() -> None:
    file = stored(make("text\n", attachments=(("plan.pdf", "application/pdf", b"%PDF"),))).file
    with pytest.raises(MailError, match=r"stored message.*markpost export") as caught:
        make(file)
    assert caught.value.reason is Reason.BAD_CONTENT


@pytest.mark.parametrize("key", ["subjct", "bcc", "attachments", "date", "id", "x" * 1000])
def test_unknown_front_matter_key_is_refused(key: str) -> None:
    with pytest.raises(MailError) as caught:
        make(f"---\nsubject: s\n? {key}\n: x\n---\n\ntext\n")
    assert caught.value.reason is Reason.BAD_CONTENT
    assert caught.value.detail == (
        f"front matter: unknown key {key[:80]!r}; use one of from, to, cc, reply_to, subject, in_reply_to, references"
    )


def test_attachments_are_encoded_and_ingested_again() -> None:
    files = (
        ("plan.pdf", "application/pdf", bytes(range(256))),
        ("Grüße 1.txt", "text/plain", b"x"),
        ('../../e"vil\r\nX: y', "text/plain\r\nX-Evil: 1", b""),
        ("m.eml", "message/rfc822", b"Subject: x\r\n\r\n"),
    )
    octets = make("x", attachments=files)
    message = parse(octets)
    assert message.get_content_type() == "multipart/mixed"
    parts = [
        (part.get_filename(), part.get_content_type(), part.get_payload(decode=True))
        for part in message.iter_attachments()
    ]
    assert parts == [
        ("plan.pdf", "application/pdf", bytes(range(256))),
        ("Grüße 1.txt", "text/plain", b"x"),
        ("_.._e_vil_X_ y", "application/octet-stream", b""),
        ("m.eml", "application/octet-stream", b"Subject: x\r\n\r\n"),
    ]
    assert b"X-Evil" not in octets
    result = stored(octets)
    assert [a.name for a in result.attachments] == [name for name, _, _ in parts]
    assert result.recipe.exact


@pytest.mark.parametrize(
    "text",
    [
        "From here\n\nFrom there \nand =20 so\n",
        "trailing  \nblanks\t\n",
        "x" * 5000 + "\n",
        "Привет, мир\n" * 50,
        "日本語のテキスト\n",
        ".\n..\n--\n---\n",
        "\x1b[1m\x0c\n",
        "\n\n\n  text after blank lines\n\n\n",
        "emoji 🎉 and combining e\u0301\n",
        "    code\n",
    ],
)
def test_markdown_is_the_body_of_the_canonical_file(text: str) -> None:
    octets = make("---\nsubject: s\n---\n\n" + text)
    assert octets.isascii()
    assert max(map(len, octets.split(b"\r\n"))) < 998
    result = stored(octets)
    assert body(result) == text
    assert any(segment.kind == BODY for segment in result.recipe.segments)


@given(st.text(max_size=300))
def test_arbitrary_markdown_is_the_body_of_the_canonical_file(text: str) -> None:
    assume(text.strip(" \t\r\n\xa0\x00\x0b\x0c\ufeff"))
    text = text.encode("utf-8", "replace").decode()
    expected = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    assume(not expected.startswith("---\n"))
    octets = make(text)
    assert octets == make(text.encode())
    assert octets.isascii()
    assert body(stored(octets)) == (expected if expected.endswith("\n") else expected + "\n")


@given(st.text(max_size=120), st.text(max_size=60))
def test_no_value_can_inject_a_header(subject: str, name: str) -> None:
    subject, name = (value.encode("utf-8", "replace").decode() for value in (subject, name))
    head = orjson.dumps({"subject": subject, "to": [{"name": name, "address": "bob@example.test"}]}).decode()
    head = "".join(
        c if c.isprintable() and c not in "\x85\u2028\ufeff" else f"\\u{ord(c):04x}" for c in head if ord(c) < 0x10000
    )
    octets = make(f"---\n{head}\n---\n\nx\n")
    names = [
        line.split(b":")[0] for line in octets.split(b"\r\n\r\n")[0].split(b"\r\n") if line[:1] not in (b" ", b"\t")
    ]
    assert set(names) <= {b"From", b"To", b"Subject", b"Date", b"Message-ID", b"MIME-Version", b"Content-Type"}
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "subject", ["a\nBcc: evil@example.test", "a\r\n\r\nbody", "=?utf-8?q?x?=", "é" * 300, "w" * 300, "a  b"]
)
def test_subject_survives_encoding(subject: str) -> None:
    message = parse(make(f"---\nsubject: {json.dumps(subject)}\n---\n\nx\n"))
    assert message["subject"] == " ".join(subject.split("\r\n\r\n")).replace("\n", " ")
    assert message["bcc"] is None


@pytest.mark.parametrize(
    "address",
    [
        "",
        "no-at",
        "a@b\r\nBcc: c@d",
        "a b@c",
        "<a@b",
        "a@b>",
        "a@b, c@d",
        "@b",
        "a@",
        "a\x00@b",
        "x" * 400 + "@b",
        "a@b\n",
    ],
)
def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(MailError) as caught:
        make("x", sender=Mailbox("", address))
    assert caught.value.reason is Reason.BAD_ADDRESS


@pytest.mark.parametrize("address", ["a@b.test", '"a b"@c.test', "a@[192.0.2.1]", "user+tag@c.test", "ü@c.test"])
def test_unusual_valid_address_is_accepted(address: str) -> None:
    assert make("x", sender=address)


def test_domain_is_converted_to_ascii() -> None:
    assert b"bob@xn--bcher-kva.test" in make("x", recipients=("bob@bücher.test",))
    assert b"bob@xn--strae-oqa.test" in make("x", recipients=("bob@straße.test",))
    with pytest.raises(MailError) as caught:
        make("x", recipients=("bob@☃.test",))
    assert caught.value.reason is Reason.BAD_ADDRESS


@pytest.mark.parametrize("message_id", ["", "x", "<a b>", "<a>\r\nX: y", "<" + "a" * 300 + ">", "<ü>"])
def test_invalid_message_id_is_refused(message_id: str) -> None:
    with pytest.raises(MailError):
        make("x", message_id=message_id)


def test_invalid_front_matter_is_refused() -> None:
    for head in ("a: &x 1", "a: [", "- a"):
        with pytest.raises(MailError):
            make(f"---\n{head}\n---\n\nx\n")
    with pytest.raises(MailError):
        make(b"\xff\xfe")


def test_horizontal_rule_at_the_start_does_not_open_front_matter() -> None:
    assert body(stored(make("---\nno front matter\n"))) == "---\nno front matter\n"


def test_date_keeps_its_time_zone() -> None:
    zone = timezone(timedelta(hours=2))
    octets = compose("x", sender="a@b.test", recipients=(), now=datetime(2026, 7, 1, 12, tzinfo=zone), message_id=ID)
    assert b"Date: Wed, 01 Jul 2026 12:00:00 +0200\r\n" in octets
