"""The formats Maildir, mbox and .eml: exports are read back exactly, files of other programs are read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.exchange import eml, files, maildir, mbox
from adapter.exchange.import_ import find_source
from adapter.exchange.model import Item, Source, SourceError
from adapter.store import names
from adapter.store.flags import Flag
from adapter.store.queries.mailboxes import Folder, Row
from protocol.errors import MailError

ADA = "ada@example.test"


def folder_names() -> st.SearchStrategy[str]:
    level = st.text(
        st.one_of(st.sampled_from("./\\&~%+ aInbox2e"), st.characters(codec="utf-8")), min_size=1, max_size=90
    )

    def usable(name: str) -> bool:
        try:
            return names.normalise_folder(name) == name
        except MailError:
            return False

    return st.one_of(st.lists(level, min_size=1, max_size=4).map("/".join), st.just("INBOX")).filter(usable)


@given(folder_names())
def test_every_folder_has_a_maildir_directory(name: str) -> None:
    entry = maildir.folder_directory(name)
    assert "/" not in entry
    assert entry.isascii()
    assert maildir.folder_name(entry) == name if name != "INBOX" else entry == ""


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (".Sent", "Sent"),
        (".Work.Plans", "Work/Plans"),
        (".Entw&APw-rfe", "Entwürfe"),
        (".Entwürfe", "Entwürfe"),
        (".a\\2eb", "a.b"),
        (".a\\2fb", "a_b"),
        ("..odd.", "odd"),
        (".R&D", "R&D"),
        (".inbox.sub", "INBOX/sub"),
    ],
)
def test_maildir_directories_of_other_programs_are_read(entry: str, name: str) -> None:
    assert maildir.folder_name(entry) == name


@given(st.lists(folder_names(), max_size=6))
def test_exported_subscriptions_are_read_back(subscribed: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        files.write_subscriptions(directory, subscribed)
        assert files.read_subscriptions(directory, b".") == tuple(subscribed)


def test_subscriptions_in_the_first_format_are_read(tmp_path: Path) -> None:
    (tmp_path / "subscriptions").write_text("Sent\nWork.Plans\n")
    assert files.read_subscriptions(str(tmp_path), b".") == ("Sent", "Work/Plans")


# --- mbox ------------------------------------------------------------------------------------------------------------

_PIECES = [
    b"From ", b">From ", b">>From ", b"From x Thu Jan  1 00:00:00 1970", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r",
    b"Subject: x", b"Status: RO", b"X-Markpost-Octets: 3 raw", b"X-IMAP: 1", b">", b" ", b"\x00", b"text", b"",
]  # fmt: skip
_MESSAGES = st.lists(st.one_of(st.sampled_from(_PIECES), st.binary(max_size=20)), max_size=14).map(b"".join)
_CLIENT_FLAGS = int(Flag.READ | Flag.ANSWERED | Flag.STARRED | Flag.DELETED | Flag.DRAFT)


def row(uid: int, size: int, flags: int = 0, keywords: str = "", date: int = 0) -> Row:
    return Row(uid, f"msg-20260101T000000Z-{uid:020x}", flags, keywords, 1, date, 0, size, "thr-x")


def octets(item: Item) -> bytes:
    return b"".join(item.chunks())


def items(source: Source) -> list[Item]:
    return list(source.items())


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            _MESSAGES,
            st.integers(0, _CLIENT_FLAGS),
            st.sampled_from(["", "todo", "$Forwarded todo,now"]),
            st.integers(-(2**31), 2**35),
        ),
        max_size=5,
    )
)
def test_exported_mbox_is_read_back_exactly(messages: list[tuple[bytes, int, str, int]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        writer = mbox.FolderWriter(directory, Folder(1, "reg-x", "x", "INBOX", "", 1), {})
        for uid, (message, flags, keywords, date) in enumerate(messages, 1):
            writer.add(row(uid, len(message), flags, keywords, date), "a b@x", message)
        writer.finish()
        back = items(mbox.directory(directory))
        assert [(octets(item), item.flags, " ".join(item.keywords), item.date) for item in back] == messages


FOREIGN_MBOX = b"""
From ada@example.test Sun Nov 15 23:06:01 2026
Subject: one
Status: RO
X-Status: AF
X-Keywords: todo  $Label1
Content-Length: 99
Date: Sun, 15 Nov 2026 23:06:01 +0000

>From the start
From here on, not a separator
>>From quoted

From 1234@xxx Mon Jan 05 10:00:00 +0200 2026
Subject: two
X-Mozilla-Status: 1005
X-Mozilla-Status2: 00000000
X-Mozilla-Keys: $label2

body
From bob Mon Jan  5 10:00:00 2026
after no blank line
From MAILER-DAEMON Mon Jan  5 10:00:00 2026
Subject: internal
X-IMAP: 1 2

not mail

From gone Mon Jan  5 10:00:00 2026
X-Mozilla-Status: 0009

compacted away

From x Mon Jan 32 10:00:00 2026
Date: Mon, 5 Jan 2026 10:00:00 +0000

last, without end"""


def test_mbox_of_other_programs_is_read(tmp_path: Path) -> None:
    source = FOREIGN_MBOX.replace(b"after no blank line\n", b"after no blank line\n\n")
    (tmp_path / "Old Mail.mbox").write_bytes(source)
    one, two, last = items(mbox.directory(str(tmp_path)))
    assert one.folder == "Old Mail"
    assert octets(one) == (
        b"Subject: one\r\nDate: Sun, 15 Nov 2026 23:06:01 +0000\r\n\r\n"
        b"From the start\r\nFrom here on, not a separator\r\n>From quoted\r\n"
    )
    assert one.flags == Flag.READ | Flag.ANSWERED | Flag.STARRED
    assert one.keywords == ("todo", "$Label1")
    assert one.date == 1794783961
    assert octets(two) == b"Subject: two\r\n\r\nbody\r\nFrom bob Mon Jan  5 10:00:00 2026\r\nafter no blank line\r\n"
    assert (two.flags, two.keywords, two.date) == (Flag.READ | Flag.STARRED, ("$label2", "$Forwarded"), 1767600000)
    assert octets(last).endswith(b"last, without end")
    assert last.date == 1767607200


def test_mbox_with_crlf_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(FOREIGN_MBOX.lstrip().replace(b"\n", b"\r\n"))
    source = find_source(str(tmp_path / "x"), ADA)
    assert octets(items(source)[0]).endswith(b">From quoted\r\n")
    assert source.folders == ("INBOX",)
    (tmp_path / "link").symlink_to("x")
    assert len(items(find_source(str(tmp_path / "link"), ADA))) == len(items(source))


def test_too_large_message_of_an_mbox_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mbox, "MAX_MESSAGE_BYTES", 20)
    (tmp_path / "x").write_bytes(b"From a Mon Jan  5 10:00:00 2026\nSubject: a\n\n" + b"b" * 30)
    [item] = items(mbox.single(str(tmp_path / "x")))
    with pytest.raises(SourceError, match="a message of an mbox may have 20"):
        octets(item)


# --- Maildir ---------------------------------------------------------------------------------------------------------


def put(directory: Path, name: str, data: bytes, date: int = 1_700_000_000) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(data)
    os.utime(directory / name, (date, date))


def test_maildir_of_other_programs_is_read(tmp_path: Path) -> None:
    put(tmp_path / "cur", "1700000002.b.host,S=9:2,FSab", b"a: b\n\nc\n")
    put(tmp_path / "cur", "1700000001.a.host:2,RPTDz", b"1\r\n2\n3\r")
    put(tmp_path / "new", "1700000000.c.host", b"new", 1_600_000_000)
    put(tmp_path / "tmp", "1700000000.d.host", b"unfinished")
    put(tmp_path, "dovecot-keywords", b"0 todo\n1 $Label1\n2 bad keyword\n99 x\n")
    put(tmp_path / ".Work.Plans" / "cur", "1.x.host:2,", b"plan")
    put(tmp_path / ".Work" / "new", "1.x.host", b"work")
    (tmp_path / ".Empty" / "cur").mkdir(parents=True)
    (tmp_path / ".notmail").mkdir()
    (tmp_path / "cur" / "1700000003.e.host").symlink_to("/etc/hostname")
    source = find_source(str(tmp_path), ADA)
    assert source.folders == ("INBOX", "Empty", "Work", "Work/Plans")
    assert source.subscriptions is None
    new, first, second, link, work, plan = items(source)
    assert (octets(new), new.flags, new.date) == (b"new", 0, 1_600_000_000)
    assert octets(first) == b"1\r\n2\r\n3\r"
    assert first.flags == Flag.ANSWERED | Flag.DELETED | Flag.DRAFT
    assert first.keywords == ("$Forwarded",)
    assert octets(second) == b"a: b\r\n\r\nc\r\n"
    assert (second.flags, second.keywords) == (Flag.STARRED | Flag.READ, ("todo", "$Label1"))
    with pytest.raises(SourceError):
        octets(link)
    assert [(item.folder, octets(item)) for item in (work, plan)] == [("Work", b"work"), ("Work/Plans", b"plan")]


def test_uidlist_decides_the_order(tmp_path: Path) -> None:
    for name in ("3.a.host:2,S", "2.b.host,S=5:2,", "1.c.host:2,"):
        put(tmp_path / "cur", name, name.encode())
    put(tmp_path, "dovecot-uidlist", b"3 V1 N9 Gabc\n4 :3.a.host\n7 W9 :2.b.host,S=5\n")
    assert [octets(item)[:1] for item in items(maildir.source(str(tmp_path)))] == [b"3", b"2", b"1"]


@settings(max_examples=50)
@given(st.lists(st.tuples(_MESSAGES, st.integers(0, _CLIENT_FLAGS), st.integers(-(2**31), 2**35)), max_size=4))
def test_exported_maildir_is_read_back_exactly(messages: list[tuple[bytes, int, int]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        rows = [row(uid, len(octets), flags, "", date) for uid, (octets, flags, date) in enumerate(messages, 1)]
        writer = maildir.FolderWriter.create(directory, Folder(1, "reg-x", "x", "INBOX", "", 1), rows, {})
        for each, (message, _, _) in zip(rows, messages):
            writer.add(each, [message])
        writer.finish()
        back = items(maildir.source(directory))
        assert [(octets(item), item.flags, item.date) for item in back] == messages


def test_most_frequent_keywords_get_the_letters_of_a_maildir(tmp_path: Path) -> None:
    rows = [row(uid, 0, 0, f"often k{uid}") for uid in range(1, 30)]
    writer = maildir.FolderWriter.create(str(tmp_path), Folder(1, "reg-x", "x", "INBOX", "", 1), rows, {})
    for each in rows:
        writer.add(each, [])
    writer.finish()
    assert writer.lost_keywords == tuple(f"k{uid}" for uid in range(26, 30))
    keywords = [item.keywords for item in items(maildir.source(str(tmp_path)))]
    assert keywords[0] == ("often", "k1")
    assert keywords[-1] == ("often",)


# --- .eml ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([b"", b"\r", b"\n", b"a", b"\r\n", b"\n\n"]), max_size=12))
def test_line_ends_do_not_depend_on_chunks(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    expected = whole.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    assert b"".join(eml.with_crlf(chunks)) == b"".join(eml.with_crlf([whole])) == expected


def test_subdirectories_of_eml_files_are_folders(tmp_path: Path) -> None:
    put(tmp_path, "b.eml", b"Date: Sun, 15 Nov 2026 23:06:01 +0000\n\nb")
    put(tmp_path, "a.EML", b"Subject: none\n\na")
    put(tmp_path, "readme.txt", b"not mail")
    put(tmp_path / "Work" / "Plans", "c.eml", b"c")
    source = find_source(str(tmp_path), ADA)
    assert source.folders == ("INBOX", "Work/Plans")
    assert [(item.folder, octets(item), item.date) for item in items(source)] == [
        ("INBOX", b"Subject: none\r\n\r\na", 1_700_000_000),
        ("INBOX", b"Date: Sun, 15 Nov 2026 23:06:01 +0000\r\n\r\nb", 1794783961),
        ("Work/Plans", b"c", 1_700_000_000),
    ]


def test_path_without_mail_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not a Maildir"):
        find_source(str(tmp_path), ADA)
    with pytest.raises(SourceError, match="No such file"):
        find_source(str(tmp_path / "missing"), ADA)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="neither a file nor"):
        find_source(str(tmp_path / "pipe"), ADA)


def test_export_of_several_accounts_is_a_source_for_each(tmp_path: Path) -> None:
    put(tmp_path / ADA / "cur", "1.x.host:2,", b"x")
    put(tmp_path / "bob@example.test" / "cur", "1.y.host:2,", b"y")
    assert [octets(item) for item in items(find_source(str(tmp_path), ADA))] == [b"x"]


def test_long_folder_names_are_shortened_and_restored() -> None:
    shortened: dict[str, str] = {}
    name = "/".join(["ü" * 60] * 3)
    file = mbox.file_name(name, shortened)
    assert len(os.fsencode(file)) <= 255
    assert shortened == {file: name}
    assert len(os.fsencode(files.fit(maildir.folder_directory(name)))) <= 255
