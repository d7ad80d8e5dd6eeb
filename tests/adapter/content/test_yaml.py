"""Front matter is YAML that any loader parses to the same values as the strict reader."""

from __future__ import annotations

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from adapter.content import front_matter
from adapter.content.encodings.codings import Coding
from adapter.content.front_matter import AttachmentMeta, FrontMatter
from adapter.content.text_segments import segment_text
from adapter.content.wire import BLOB, BODY, TEXT
from adapter.content.wire_encoding import SegmentDraft
from adapter.content.yaml import block_scalar, flow_scalar, quote, unquote
from protocol.errors import MailError
from protocol.mime.addresses import Mailbox

try:
    from yaml import CSafeLoader as Loader
except ImportError:
    from yaml import SafeLoader as Loader  # type: ignore[assignment]

_HOSTILE = (
    "ab:#- ,[]{}'\"\\\n\r\t\x85\u2028\u2029\ufeff?!&*|>%@`~=<.0123456789eE+_\U0001f600é\xa0\x00\x1b\x7f\ud800\uffff"
)
_WORDS = [
    "null", "Null", "~", "yes", "No", "on", "OFF", "y", "N", "true", "2026-01-01", "1e3", "1.5e+3", ".5", ".inf",
    "0x1f", "017", "1:20", "1_000", "+1", "<<", "=", "---", "...", "- a", "? a", "a: b", "a:b", "a:", ":a", "a #b",
    "a#b", "#a", "<a@b>", "", " ", " a", "a ", "a\nb", "\ta", "[a]", "{a", "a]", "a,b",
    "@a", "`a", "%a", "!a", "&a", "*a",
    "|", ">", "'a'", '"a"', "\\", "digest: x", "\ufeffa", "e\u0301", "\x85", "a\u2028b",
]  # fmt: skip
strings = st.one_of(st.text(max_size=40), st.text(alphabet=_HOSTILE, max_size=12), st.sampled_from(_WORDS))


def written(text: str) -> str:
    """The text as written: lone surrogates are replaced."""
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)


@given(strings, strings, strings)
@example("a", "<<", "=")
def test_yaml_parses_scalars_back(one: str, two: str, three: str) -> None:
    document = (
        f"a: {block_scalar(one)}\nb: [{flow_scalar(two)}, {flow_scalar(three)}]\n"
        f"c: {{name: {flow_scalar(one)}, x: {flow_scalar(three)}}}\n"
    )
    one, two, three = map(written, (one, two, three))
    expected = {"a": one, "b": [two, three], "c": {"name": one, "x": three}}
    assert yaml.load(document.encode(), Loader=Loader) == expected
    assert unquote(quote(one)) == one


def test_reserved_words_are_quoted() -> None:
    for word in (*_WORDS, "a" * 5000, "word " * 2000 + "end", "é" * 5000 + "\n"):
        document = f"a: {block_scalar(word)}\nb: [{flow_scalar(word)}]\n"
        assert yaml.load(document.encode(), Loader=Loader) == {"a": word, "b": [word]}


def test_plain_text_is_not_quoted_or_escaped() -> None:
    for plain in (
        "Grüße aus der Engine",
        "Re: a",
        "<CA+x@example.test>",
        "ada@example.test",
        "日本語",
        "O'Brien",
        "🎉 x",
    ):
        expected = f'"{plain}"' if ": " in plain else plain
        assert block_scalar(plain) == expected
    assert quote("Grüße\n") == '"Grüße\\n"'


people = st.tuples(strings, strings).map(lambda pair: Mailbox(*map(written, pair)))
hashes = st.one_of(st.text("0123456789abcdef", min_size=64, max_size=64), st.text("01", min_size=64, max_size=64))
attachments = st.builds(AttachmentMeta, hashes, strings.map(written), strings.map(written), st.integers(0, 10**12))


@st.composite
def matters(draw: st.DrawFn) -> FrontMatter:
    text = strings.map(written)
    return FrontMatter(
        id=draw(text),
        date=draw(text),
        sender=draw(st.one_of(st.none(), people)),
        to=tuple(draw(st.lists(people, max_size=3))),
        cc=tuple(draw(st.lists(people, max_size=2))),
        reply_to=tuple(draw(st.lists(people, max_size=2))),
        subject=draw(text),
        message_id=draw(text),
        in_reply_to=draw(text),
        references=tuple(draw(st.lists(text, max_size=3))),
        thread=draw(text),
        attachments=tuple(draw(st.lists(attachments, max_size=3))),
    )


_numbers = st.lists(st.integers(0, 5000), min_size=1, max_size=5).map(tuple)


@st.composite
def codings(draw: st.DrawFn) -> Coding:
    encoding = draw(st.sampled_from(["identity", "7bit", "binary", "base64", "quoted-printable"]))
    if encoding == "base64":
        return Coding(encoding, line=draw(st.integers(1, 1000)), eol=draw(st.sampled_from(["crlf", "lf"])))
    if encoding != "quoted-printable":
        return Coding(encoding)
    return Coding(
        encoding,
        charset=draw(st.sampled_from(["", "iso-8859-1", "koi8-r"])),
        newline=draw(st.sampled_from(["crlf", "lf"])),
        escape=tuple(draw(st.lists(st.integers(9, 126), max_size=3))),
        blanks=draw(st.booleans()),
        extra=draw(_numbers),
        width=draw(st.integers(0, 998)),
        final=draw(st.integers(0, 998)),
        breaks=draw(_numbers),
        marks=draw(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12))),
    )


texts = st.one_of(st.text(alphabet=_HOSTILE, max_size=60), st.text(max_size=60)).map(
    lambda t: t.encode("utf-8", "replace")
)


@st.composite
def segment_drafts(draw: st.DrawFn) -> list[SegmentDraft]:
    drafts: list[SegmentDraft] = []
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            drafts += segment_text(draw(texts)) or []
        else:
            size = draw(st.integers(0, 10**9))
            drafts.append(SegmentDraft(BLOB, size, b"", draw(codings()), draw(hashes)))
    return drafts


def _same(one: FrontMatter, two: FrontMatter) -> bool:
    """Equal except for the recipe, where a YAML loader has inline texts."""
    return one._replace(recipe=None) == two._replace(recipe=None)


@given(matters(), segment_drafts(), hashes, st.binary(max_size=60))
def test_both_readers_parse_a_file_to_the_same_values(
    matter: FrontMatter, segments: list[SegmentDraft], sha256: str, body: bytes
) -> None:
    size = sum(draft.size for draft in segments)
    file, recipe, _ = front_matter.write(matter, sha256, size, segments, body)
    assert front_matter.digest_matches(file)
    assert front_matter.recipe_of(file) == recipe
    end, start = front_matter.split(file)
    assert file[start:] == body
    ours = front_matter._read_strict(file, end, start)
    theirs = front_matter._read_yaml(file, end, start)
    assert ours is not None
    assert ours.recipe == recipe
    assert _same(ours, theirs)
    for draft, segment in zip(segments, theirs.recipe.segments if theirs.recipe else (), strict=True):
        assert segment.size == draft.size
        if draft.kind == BLOB:
            assert (segment.coding, segment.ref) == (draft.coding, draft.ref)


@given(matters(), segment_drafts(), st.data())
def test_strict_reader_accepts_only_files_that_yaml_parses_the_same(
    matter: FrontMatter, segments: list[SegmentDraft], data: st.DataObject
) -> None:
    """For any change to a file, the strict reader either rejects it or agrees with the YAML loader."""
    file = front_matter.write(
        matter, "ab" * 32, 10**13, [*segments, SegmentDraft(BODY, 0, b"", Coding("7bit"))], b"x\n"
    ).file
    at = data.draw(st.integers(4, len(file) - 1))
    stop = data.draw(st.integers(at, min(at + 3, len(file))))
    middle = data.draw(
        st.one_of(st.binary(max_size=3), st.sampled_from([b"\n", b": ", b" #", b"'", b'"', b"- ", b"0"]))
    )
    changed = file[:at] + middle + file[stop:]
    try:
        end, start = front_matter.split(changed)
        ours = front_matter._read_strict(changed, end, start)
    except MailError:
        return
    if ours is None:
        return
    theirs = front_matter._read_yaml(changed, end, start)
    if ours.digest == theirs.digest:  # a digest of digits alone is a number to YAML
        assert _same(ours, theirs)
    assert ours.recipe is not None
    assert theirs.recipe is not None
    assert [s.size for s in ours.recipe.segments] == [s.size for s in theirs.recipe.segments]


@given(texts)
def test_yaml_parses_text_segments_back(raw: bytes) -> None:
    drafts = segment_text(raw)
    assert drafts is not None
    file = front_matter.write(FrontMatter("x"), "ab" * 32, len(raw), drafts, b"").file
    loaded, _ = front_matter.load(file)
    for draft, item in zip(drafts, loaded["wire"]["segments"], strict=True):
        if draft.kind == TEXT and draft.coding is None:
            assert item.encode().replace(b"\n", b"\r\n") == draft.content
        elif draft.kind == TEXT:
            assert item["text"].encode() == draft.content
