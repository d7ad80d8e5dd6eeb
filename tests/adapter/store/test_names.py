"""Addresses and folder names, and the file names derived from them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import assume, example, given, reject
from hypothesis import strategies as st

from adapter.store import layout, names
from protocol.errors import MailError, Reason

_TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
_ODD = st.text(
    st.sampled_from("aZ.~%/+_ \x00\x7f\t\nß\u0130\u0131\u212a\u0307é\U0001f600%2E73"), min_size=1, max_size=12
)
_LOCAL = st.one_of(
    st.text(st.sampled_from("abcXYZ019.!#$%&'*+/=?^_`{|}~-"), min_size=1, max_size=20),
    _ODD,
    _TEXT,
    _TEXT.map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'),
)
_DOMAIN = st.one_of(
    st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?(\.[a-zA-Z0-9]{1,9}){0,3}\.?", fullmatch=True),
    st.sampled_from(["[127.0.0.1]", "[IPv6:2001:DB8::1]", "Grüße.example", "例え.テスト", "a" * 63 + ".test"]),
    _ODD,
)
addresses = st.builds("{}@{}".format, _LOCAL, _DOMAIN)
folder_names = st.one_of(
    st.lists(st.one_of(_ODD, _TEXT), min_size=1, max_size=5).map("/".join),
    st.sampled_from(
        [*names.STANDARD_FOLDERS, "sent", "SENT", "inbox", "Inbox", "trash", "%73ent", "sent~x", "INBOX/a"]
    ),
    st.text(min_size=200, max_size=400),
)


def _normal_address(text: str) -> str:
    try:
        return names.normalise_address(text)
    except MailError:
        reject()


def _normal_folder(text: str) -> str:
    try:
        return names.normalise_folder(text)
    except MailError:
        reject()


@given(st.one_of(addresses, st.text()), st.one_of(folder_names, st.text()))
def test_invalid_names_are_refused_with_a_mail_error(address: str, folder: str) -> None:
    for normalise, text in ((names.normalise_address, address), (names.normalise_folder, folder)):
        try:
            normalise(text)
        except MailError as error:
            refusal = error.reason
        else:
            continue
        assert refusal in (Reason.BAD_ADDRESS, Reason.BAD_FOLDER_NAME)


def _is_entry(entry: str) -> bool:
    return (
        0 < len(entry.encode()) <= 255
        and entry not in (".", "..")
        and not set(entry) & {"/", "\0"}
        and not any(unicodedata.category(character)[0] == "C" for character in entry)
    )


# --- addresses -------------------------------------------------------------------------------------------------------


@given(addresses)
@example('" a"@example.test')
@example('"\\"quoted\\""@example.test')
@example("İ@example.test")
def test_address_has_one_normal_form(text: str) -> None:
    address = _normal_address(text)
    assert names.normalise_address(address) == address
    assert not address.isascii() or names.normalise_address(address.upper()) == address


@given(addresses)
def test_address_is_restored_from_its_entry(text: str) -> None:
    address = _normal_address(text)
    entry = names.address_entry(address)
    assert names.address_of_entry(entry) == address
    assert _is_entry(entry)
    assert _is_entry(layout.address_lock(address))
    assert _is_entry(names.stash_entry(address, "reg-" + "0" * 16))


@given(addresses, addresses)
def test_two_addresses_never_share_an_entry(one: str, two: str) -> None:
    first, second = _normal_address(one), _normal_address(two)
    entries = {names.address_entry(first), names.address_entry(second)}
    assert len(entries) == len({first, second})
    assert names.stash_entry(first, "reg-1") not in entries


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Ada@Example.TEST", "ada@example.test"),
        ("  ada@example.test ", "ada@example.test"),
        ("ada@example.test.", "ada@example.test"),
        ('"ada"@example.test', "ada@example.test"),
        ('"a\\da"@example.test', "ada@example.test"),
        ("Jose\u0301@example.test", "jos\u00e9@example.test"),
        ("a/b@example.test", "a/b@example.test"),
        ('"a@b"@example.test', "a@b@example.test"),
        ("ada@[192.0.2.1]", "ada@[192.0.2.1]"),
        ("ada+list@example.test", "ada+list@example.test"),
    ],
)
def test_address_is_normalised(text: str, address: str) -> None:
    assert names.normalise_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "@", "ada", "ada@", "@example.test", "ada@ex ample.test", "ada@-example.test", "ada@example-.test",
        "ada@exa..mple.test", "ada@example/../../etc", "a\x00b@example.test", "a\nb@example.test", "ada@\ud800",
        "\ud800@example.test", "a" * 65 + "@example.test", "ada@" + "a" * 64 + ".test", "ada@" + "a." * 130 + "test",
        "ü" * 33 + "@example.test", '""@example.test',
    ],
)  # fmt: skip
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(MailError) as caught:
        names.normalise_address(text)
    assert caught.value.reason is Reason.BAD_ADDRESS


def test_address_entries_are_readable() -> None:
    assert names.address_entry("ada.lovelace+x@example.test") == "ada.lovelace+x@example.test"
    assert names.address_entry("josé@example.test") == "josé@example.test"
    assert names.address_entry("a/b@example.test") == "a%2Fb@example.test"
    assert names.address_entry("50%@example.test") == "50%25@example.test"
    assert names.address_entry(".ada@example.test") == "%2Eada@example.test"


# --- folders ---------------------------------------------------------------------------------------------------------


@given(folder_names)
def test_folder_name_has_one_normal_form(text: str) -> None:
    name = _normal_folder(text)
    assert names.normalise_folder(name) == name
    assert names.normalise_folder(name + "/") == name


@given(folder_names)
def test_folder_name_is_restored_from_its_entry(text: str) -> None:
    name = _normal_folder(text)
    entry = names.folder_entry(name)
    assert _is_entry(entry)
    assert not entry.startswith(".")  # .mailbox and .name are reserved
    if not names.is_shortened(entry):
        assert names.folder_of_entry(entry) == name


@given(st.lists(folder_names, min_size=2, max_size=6))
def test_two_folders_never_share_an_entry(texts: list[str]) -> None:
    normalised = set()
    for text in texts:
        try:
            normalised.add(names.normalise_folder(text))
        except MailError:
            continue
    assert len({names.folder_entry(name) for name in normalised}) == len(normalised)


@given(st.text(st.sampled_from("a%/~.é"), min_size=0, max_size=3), st.integers(1, 900))
def test_long_names_have_different_entries(tail: str, length: int) -> None:
    one, two = _normal_folder("é" * (length // 2) + tail + "1"), _normal_folder("é" * (length // 2) + tail + "2")
    first, second = names.folder_entry(one), names.folder_entry(two)
    assert first != second
    assert _is_entry(first)
    assert names.is_shortened(first) == names.is_shortened(second)
    assert names.is_shortened(first) or names.folder_of_entry(first) == one


@given(st.text(st.sampled_from("\x00\x01%"), min_size=80, max_size=300))
def test_a_shortened_name_is_not_cut_inside_an_escape(text: str) -> None:
    entry = names.folder_entry(_normal_folder(text))
    head, mark, _ = entry.partition("%+")
    assume(mark)
    assert len(head) % 3 == 0  # every character here is one escape of three


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("inbox", "INBOX"),
        ("InBox", "INBOX"),
        ("inbox/", "INBOX"),
        ("inbox/Sub", "INBOX/Sub"),
        ("Work/inbox", "Work/inbox"),
        ("inboxes", "inboxes"),
        ("ınbox", "ınbox"),  # INBOX is case-insensitive in ASCII only
        ("sent", "sent"),
        ("Sent", "Sent"),
        ("a/b/c/", "a/b/c"),
    ],
)
def test_folder_name_is_normalised(text: str, name: str) -> None:
    assert names.normalise_folder(text) == name


@pytest.mark.parametrize(
    "text", ["", "/", "//", "/a", "a//b", "a//", "\ud800", "x" * 1001, "/".join("a" * 65), "é" * 501]
)
def test_invalid_folder_name_is_refused(text: str) -> None:
    with pytest.raises(MailError) as caught:
        names.normalise_folder(text)
    assert caught.value.reason is Reason.BAD_FOLDER_NAME


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("INBOX", "inbox"),
        ("Sent", "sent"),
        ("sent", "%73ent"),
        ("SENT", "SENT"),
        ("junk", "%6Aunk"),
        ("Work/2026", "Work~2026"),
        ("INBOX/x", "INBOX~x"),
        ("a~b", "a%7Eb"),
        (".hidden", "%2Ehidden"),
        (".", "%2E"),
        ("..", "%2E."),
        ("a/..", "a~%2E."),
        ("50%", "50%25"),
        ("Grüße", "Grüße"),
        ("Grüße.2026", "Grüße.2026"),
        ("nul\x00", "nul%00"),
        ("a\u2028b", "a%E2%80%A8b"),
    ],
)
def test_folder_entries_are_readable(name: str, entry: str) -> None:
    assert names.folder_entry(name) == entry
    assert names.folder_of_entry(entry) == name


def test_parents_lists_all_ancestors() -> None:
    assert names.parents("a") == []
    assert names.parents("a/b/c") == ["a", "a/b"]


@given(folder_names, st.integers(1, 0xFFFFFFFF))
def test_a_projection_always_has_the_same_depth(text: str, uid: int) -> None:
    name = _normal_folder(text)
    message_id = "msg-20261115T230601Z-" + "0" * 20
    assert len(layout.folder_directory("ada@example.test", name)) == 3
    assert layout.projection_target(message_id) == f"../../../messages/2026-11-15/{message_id}.md"
    match = layout.PROJECTION.match(layout.projection_name(uid, message_id))
    assert match is not None
    assert match.groups() == (str(uid), message_id)


@pytest.mark.parametrize(
    "message_id", ["", "msg-1", "../x", "msg-20261115T230601Z-" + "0" * 19, "msg-20261115T230601Z-" + "0" * 20 + "\n"]
)
def test_invalid_message_id_is_not_turned_into_a_path(message_id: str) -> None:
    with pytest.raises(ValueError, match="not a message id"):
        layout.message_directory(message_id)


@pytest.mark.parametrize("sha256", ["", "..", "0" * 63, "0" * 65, "G" * 64, "0" * 64 + "\n"])
def test_invalid_digest_is_not_turned_into_a_path(sha256: str) -> None:
    with pytest.raises(ValueError, match="not a SHA-256"):
        layout.blob_directory(sha256)
