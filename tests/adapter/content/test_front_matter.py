"""Untrusted front matter: other forms of YAML are parsed, YAML bombs and tricks are refused."""

from __future__ import annotations

import time

import pytest

from adapter.content import front_matter
from adapter.content.front_matter import FrontMatter
from adapter.content.ingest import ingest
from adapter.content.wire import INLINE, Recipe, octets, rebuild
from adapter.content.yaml import MAX_FRONT_MATTER_BYTES
from protocol.errors import MailError, Reason
from protocol.mime.addresses import Mailbox

RAW = b"From: a@b.test\r\nSubject: x\r\n\r\nhello\r\n"


class NoBlobs:
    def read(self, sha256: str, offset: int, length: int) -> bytes:
        return b""


def stored(raw: bytes = RAW) -> bytes:
    return ingest(raw, id="msg-1", arrived="2026-11-15T23:06:01Z").file


def test_file_in_another_form_of_yaml_is_read() -> None:
    file = b"""---
date: 2026-11-15
subject:   'quoted'   # a comment
from: ada@example.test
to:
  - {address: bob@example.test, name: Bob}
  - eve@example.test
references: <r@example.test>
colour: blue
wire:
  size: 38
  segments:
  - "From: a@b.test\\nSubject: x\\n\\n"
  - {body: 7bit}
---

hello
"""
    file = file.replace(b"size: 38", b"size: %d" % len(RAW))
    matter = front_matter.read(file)
    assert matter.subject == "quoted"
    assert matter.date == "2026-11-15"
    assert matter.sender == Mailbox("", "ada@example.test")
    assert matter.to == (Mailbox("Bob", "bob@example.test"), Mailbox("", "eve@example.test"))
    assert matter.references == ("<r@example.test>",)
    assert matter.extra == {"colour": "blue"}
    assert matter.recipe is not None
    assert matter.recipe.segments[0].kind == INLINE
    assert rebuild(file, matter.recipe, NoBlobs()) == RAW
    assert Recipe.decode(matter.recipe.encode()) == matter.recipe
    assert b"".join(octets(file, matter.recipe, NoBlobs(), 5, 20)) == RAW[5:20]


def test_every_segment_kind_is_read_in_another_form_of_yaml() -> None:
    raw = (
        b"Subject: gr\xfc\xdfe\r\nX: \x00\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        b"gr=FC=DFe\r\n--b\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\nQUJD\r\n--b--\n"
    )
    file = stored(raw)
    other = file.replace(b"\nwire:\n", b"\nwire: # changed\n")

    class Blobs:
        def read(self, sha256: str, offset: int, length: int) -> bytes:
            return b"ABC"[offset:] if length < 0 else b"ABC"[offset : offset + length]

    assert front_matter.recipe_of(other) != front_matter.recipe_of(file)
    assert rebuild(other, front_matter.recipe_of(other), Blobs()) == raw
    assert rebuild(file, front_matter.recipe_of(file), Blobs()) == raw


@pytest.mark.parametrize(
    "head",
    [
        "a: &x 1\nb: *x",
        "a: &x [1]",
        "a: !!python/object/apply:os.system [id]",
        "a: !x 1",
        "a: 1\na: 2",
        "a: {b: 1, b: 2}",
        "<<: {a: 1}",
        "a: " + "[" * 100 + "]" * 100,
        "a: {b: " * 40 + "1" + "}" * 40,
        "a: b\n... \nb: c",
        "- a\n- b",
        "a: 2026-13-45",
        "a: [",
        "a: \x07",
        "1: 2",
        "? [a]\n: b",
        "wire: 1",
        "wire: {segments: [], size: -1}",
        "wire: {segments: [{body: rot13}], size: 1}",
        "wire: {segments: [{body: 7bit}, {body: 7bit}], size: 1}",
        "wire: {segments: [{blob: x}], size: 1}",
        "wire: {segments: [{text: x, charset: punycode}], size: 1}",
        "wire: {segments: [{raw: '='}], size: 1}",
        "wire: {segments: [3], size: 1}",
        "attachments: [x]",
    ],
)
def test_yaml_tricks_are_refused(head: str) -> None:
    with pytest.raises(MailError) as caught:
        front_matter.read(f"---\n{head}\n---\n\nx\n".encode())
    assert caught.value.reason is Reason.BAD_CONTENT


@pytest.mark.parametrize("file", [b"", b"hello", b"---\n", b"---\na: b\n", b"---\na: b\n--- \n", b"\n---\na: b\n---\n"])
def test_file_without_front_matter_is_refused(file: bytes) -> None:
    with pytest.raises(MailError):
        front_matter.read(file)
    with pytest.raises(MailError):
        front_matter.recipe_of(file)
    assert not front_matter.digest_matches(file)


def test_front_matter_in_another_charset_is_refused() -> None:
    with pytest.raises(MailError):
        front_matter.read(b"---\na: \xff\n---\n\n")


@pytest.mark.parametrize(
    "head",
    [
        "a: " + "x" * (MAX_FRONT_MATTER_BYTES + 10),
        "a: [" + "1," * 300_000 + "1]",
        "a: " + "1:" * 200_000 + "1",
        "a: " + "9" * 100_000,
        "a: " + "1" * 50_000 + ".0",
        "a: " + '"\\u00e4' * 50_000,
        "\n".join(f"k{n}: {{a: [b]}}" for n in range(100_000)),
    ],
    ids=["long", "list", "sexagesimal", "number", "float", "escapes", "keys"],
)
def test_yaml_bomb_is_refused_quickly(head: str) -> None:
    start = time.process_time()
    try:
        front_matter.load(f"---\n{head}\n---\n\nx\n".encode())
    except MailError:
        pass
    assert time.process_time() - start < 20


def test_digest_detects_every_change() -> None:
    file = stored()
    assert front_matter.digest_matches(file)
    for at in range(0, len(file), 7):
        assert not front_matter.digest_matches(file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :])
    assert not front_matter.digest_matches(file + b"x")
    assert not front_matter.digest_matches(file[:-1])
    without = b"".join(line for line in file.splitlines(keepends=True) if not line.startswith(b"digest"))
    assert not front_matter.digest_matches(without)


def test_digest_line_in_the_body_is_ignored() -> None:
    file = stored(b"Subject: x\r\n\r\ndigest: " + b"0" * 64 + b"\r\n---\r\n")
    assert front_matter.digest_matches(file)
    assert front_matter.read(file).digest != "0" * 64


def test_mismatched_file_recipe_and_blobs_are_detected() -> None:
    file = stored()
    recipe = front_matter.recipe_of(file)
    with pytest.raises(MailError):
        rebuild(file[:-2], recipe, NoBlobs())
    with pytest.raises(MailError):
        list(octets(file[:-2], recipe, NoBlobs(), 0, 1000))
    blob = stored(b"Content-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\n" + b"QUJD" * 19 + b"\r\n")
    with pytest.raises(MailError):
        rebuild(blob, front_matter.recipe_of(blob), NoBlobs())
    with pytest.raises(MailError):
        list(octets(blob, front_matter.recipe_of(blob), NoBlobs(), 0, 1000))


@pytest.mark.parametrize(
    "encoded", [b"", b"[]", b"{}", b'[2,0,"",[]]', b'[1,0,"",[[0,0,0,0,0,0,{"x":1}]]]', b'[1,0,"",[1]]']
)
def test_malformed_recipe_is_refused(encoded: bytes) -> None:
    with pytest.raises(MailError):
        Recipe.decode(encoded)


def test_empty_message_is_rebuilt() -> None:
    file = stored(b"")
    recipe = front_matter.recipe_of(file)
    assert recipe == Recipe(0, recipe.wire_sha256, [])
    assert rebuild(file, recipe, NoBlobs()) == b""
    assert recipe.blobs == ()
    assert front_matter.read(file) == FrontMatter(
        id="msg-1",
        date="2026-11-15T23:06:01Z",
        thread=front_matter.read(file).thread,
        recipe=recipe,
        digest=front_matter.read(file).digest,
        body_start=len(file),
    )
