"""Mirroring accounts of a real Dovecot: everything comes, exactly, once, and stays the same."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import imaplib
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adapter.cli import main
from adapter.config import Seconds, Size
from adapter.quotas import Quotas
from adapter.settings import Quota, Settings
from adapter.store import bookmark_queries
from adapter.transport import operations as op
from adapter.transport.flags import Flag
from adapter.transport.transport import Transport
from adapter.upstream.mirror import folder_sync, follow, replies
from adapter.upstream.mirror.client import Client, Refused, UpstreamError
from adapter.upstream.mirror.folder_sync import Pulled
from adapter.upstream.mirror.room import Limits
from adapter.upstream.mirror.settings import UpstreamSettings
from tests.support.fronts import free_port
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.serve import served
from tests.support.stores import ADA, append, folder, folder_names, new_store, rows, subscriptions
from tests.support.upstream import PASSWORD, Dovecot, contents, put, running_dovecot, spelt, wire
from tests.support.waiting import PATIENCE, until, wait_until

pytestmark = [
    pytest.mark.needs("dovecot", "openssl"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Dovecot is started by root"),
]
REPOSITORY = Path(__file__).resolve().parents[2]
LIMITS = Limits(50 << 20, Quotas(Settings()))


@pytest.fixture(scope="module")
def dovecot() -> Iterator[Dovecot]:
    with running_dovecot() as running:
        yield running


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    with new_store(tmp_path / "store", ADA) as opened:
        yield opened
    assert_layers_agree(tmp_path / "store", tmp_path / "scratch")


async def pull(transport: Transport, settings: UpstreamSettings) -> Pulled:
    return await follow.pull(transport, "work", settings, LIMITS)


@contextlib.asynccontextmanager
async def following(transport: Transport, settings: UpstreamSettings) -> AsyncIterator[None]:
    stop = asyncio.Event()
    upstreams = {"work": dataclasses.replace(settings, follow=True), "home": settings}  # the second is left alone
    task = asyncio.create_task(follow.run(transport, upstreams, LIMITS, stop))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await task


def here(transport: Transport, name: str = "INBOX") -> Counter[bytes]:
    return Counter(transport.content.octets(row.message_id) for row in rows(transport, name))


def there(dovecot: Dovecot, user: str, name: str = "INBOX") -> Counter[bytes]:
    with dovecot.session(user) as client:
        return Counter(contents(client, name).values())


ODD = [
    b"Subject: 8-bit\r\n\r\n\xff\xfe caf\xe9 \x80\x01\x7f\r\n",
    b"Subject: stars\r\n\r\n* 1 FETCH (FLAGS ())\r\n* OK still here\r\n) BODY[] {7}\r\n* \r\n",
    b"Subject: tags\r\n\r\nABCD1 OK done\r\nA1 NO {3}\r\n+ go ahead\r\n((((\r\n",
    b"Subject: literal at the end\r\n\r\n{5}",
    b"Subject: no line end",
    b"\r\n",
    b"Subject: nothing\r\n\r\n",
    b'Subject: quotes "and\\ more\r\n\r\n"\\"\r\n.\r\n..\r\n',
]
LARGE = b"Subject: large\r\n\r\n" + random.Random(5).randbytes(5 << 20).replace(b"\0", b"0").replace(
    b"\r", b"x"
).replace(b"\n", b"\r\n")
FOLDERS = ["INBOX", "Lists", "Lists/Deep/Deeper", "Grüße & mehr", "日本/東京", 'quoted "name"', "a (b) [c]"]


async def test_everything_comes_as_it_is(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        for number, name in enumerate(FOLDERS):
            client.create(spelt(name).replace('quoted "name"', 'quoted \\"name\\"'))
            quoted = name.replace('"', '\\"')
            put(client, quoted, message(subject=name), ["\\Seen", "$Todo", "\\Flagged"], 1_000_000_000 + number)
            put(client, quoted, message(subject=f"{name} 2"), ["\\Answered", "\\Draft", "\\Deleted", "work"])
        for octets in (*ODD, LARGE, ODD[0]):
            put(client, "INBOX", octets)
        client.create(spelt("Many"))
        put_many(client, "Many", 700)  # more lines than a recursive parser bears
    done = await pull(transport, dovecot.settings(user))
    assert done.failed == []
    assert done.messages == 2 * len(FOLDERS) + len(ODD) + 2 + 700
    for number, name in enumerate(FOLDERS):
        assert name in folder_names(transport)
        first, second, *_ = rows(transport, name)
        assert (first.flags, first.keywords, first.internal_date) == (5, "$Todo", 1_000_000_000 + number)
        assert (second.flags, second.keywords) == (Flag.ANSWERED | Flag.DRAFT | Flag.DELETED, "work")
        assert here(transport, name) == there(dovecot, user, name.replace('"', '\\"'))
    assert here(transport, "INBOX")[ODD[0]] == 2
    assert here(transport, "INBOX")[LARGE] == 1
    assert here(transport, "Many") == there(dovecot, user, "Many")
    assert {"日本/東京", "Many"} <= set(subscriptions(transport))
    again = await pull(transport, dovecot.settings(user))
    assert (again.messages, again.claimed, again.flagged, again.removed) == (0, 0, 0, 0)


def put_many(client: imaplib.IMAP4, name: str, count: int) -> None:
    """As MULTIAPPEND is not imaplib's: copies, doubled."""
    put(client, name, message(subject="many"))
    client.select(spelt(name))
    made = 1
    while made < count:
        client.copy(f"1:{min(made, count - made)}", spelt(name))
        made += min(made, count - made)
    client.unselect()


@pytest.mark.setting("upstream.prefix", "upstream.folders", "upstream.skip")
async def test_names_of_folders_can_be_chosen(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        for name in ("Sent Items", "Trash", "Trash/Old", "Lists/One"):
            client.create(spelt(name))
            put(client, name, message(subject=name))
        put(client, "INBOX", message(subject="INBOX"))
    settings = dovecot.settings(user, account=ADA, prefix="Work", folders={"Sent Items": "Sent"}, skip=("Trash",))
    done = await pull(transport, settings)
    assert done.messages == 3
    assert [len(rows(transport, name)) for name in ("Work", "Work/Lists/One", "Sent")] == [1, 1, 1]
    assert len(rows(transport, "INBOX")) == len(rows(transport, "Trash")) == 0
    transport.run(op.RenameFolder(ADA, "Work/Lists/One", "Elsewhere"))
    with dovecot.session(user) as client:
        put(client, "Lists/One", message(subject="another"))
    await pull(transport, settings)
    assert len(rows(transport, "Elsewhere")) == 2  # a folder is followed, whatever it is called here
    assert "Work/Lists/One" not in folder_names(transport)


@pytest.mark.parametrize("condstore", [True, False])
async def test_what_changes_there_changes_here(
    dovecot: Dovecot, transport: Transport, monkeypatch: pytest.MonkeyPatch, condstore: bool
) -> None:
    if not condstore:
        real = Client.offers
        monkeypatch.setattr(
            Client, "offers", lambda self, name: name not in ("CONDSTORE", "QRESYNC") and real(self, name)
        )
    user = dovecot.new_user()
    settings = dovecot.settings(user)
    with dovecot.session(user) as client:
        for number in range(6):
            put(client, "INBOX", message(subject=str(number)), ["\\Seen"] if number % 2 else [])
        await pull(transport, settings)
        inbox = folder(transport).id
        transport.run(op.ChangeFlags(ADA, inbox, [1], "add", int(Flag.STARRED), ("mine",)))
        transport.run(op.ChangeFlags(ADA, inbox, [5], "add", int(Flag.DELETED)))
        transport.run(op.Expunge(ADA, inbox, [5]))
        append(transport, "INBOX", message(subject="only here"))
        client.select("INBOX")
        client.uid("STORE", "1", "+FLAGS", "(\\Seen theirs)")
        client.uid("STORE", "2", "-FLAGS", "(\\Seen)")
        client.uid("STORE", "3,5", "+FLAGS", "(\\Deleted)")
        client.uid("EXPUNGE", "3")
        put(client, "INBOX", message(subject="6"))
        client.unselect()
        done = await pull(transport, settings)
    assert (done.messages, done.flagged, done.removed) == (1, 2, 1)
    found = {row.uid: (row.flags, row.keywords) for row in rows(transport)}
    assert found == {
        1: (Flag.READ | Flag.STARRED, "mine theirs"),  # what was changed here stays
        2: (0, ""),
        4: (Flag.READ, ""),
        6: (Flag.READ, ""),
        7: (0, ""),  # was never there, and is let be
        8: (0, ""),
    }
    assert (await pull(transport, settings)).messages == 0  # what was removed here does not come back


async def test_a_new_uidvalidity_brings_nothing_twice(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    settings = dovecot.settings(user)
    letters = [message(subject=str(number)) for number in range(8)] + [LARGE]
    with dovecot.session(user) as client:
        client.create("Lists")
        for octets in (*letters, letters[0]):
            put(client, "Lists", octets, ["\\Seen"])
        await pull(transport, settings)
        before = rows(transport, "Lists")
        transport.run(op.ChangeFlags(ADA, folder(transport, "Lists").id, [2], "add", int(Flag.STARRED)))
        client.delete("Lists")
        client.create("Lists")
        for octets in (message(subject="new"), *reversed(letters[1:]), letters[0]):
            put(client, "Lists", octets, ["\\Seen", "\\Answered"])
        done = await pull(transport, settings)
    assert (done.messages, done.claimed, done.removed) == (1, len(letters), 1)
    after = {row.uid: row for row in rows(transport, "Lists")}
    assert [row.message_id for row in before if row.uid in after] == [
        row.message_id for uid, row in after.items() if uid <= len(before)
    ]
    assert here(transport, "Lists") == there(dovecot, user, "Lists")
    assert after[2].flags == Flag.READ | Flag.STARRED | Flag.ANSWERED
    assert (await pull(transport, settings)).claimed == 0
    with transport.reading() as connection:
        (owner,) = [each for each in bookmark_queries.owners(connection, "pull work ") if each.endswith(" Lists")]
        assert len(bookmark_queries.of_owner(connection, owner)) == len(after) + 2  # none of before are left


async def test_mail_that_was_imported_before_is_taken_for_what_it_is(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    append(transport, "INBOX", message(subject="same"), message(subject="other"))
    with dovecot.session(user) as client:
        put(client, "INBOX", message(subject="same"), ["\\Flagged"])
        put(client, "INBOX", message(subject="same"))
    done = await pull(transport, dovecot.settings(user))
    assert (done.messages, done.claimed) == (1, 1)
    assert [row.flags for row in rows(transport)] == [Flag.STARRED, 0, 0]


async def test_a_folder_that_is_removed_there(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    settings = dovecot.settings(user)
    with dovecot.session(user) as client:
        for name in ("Gone", "Kept"):
            client.create(name)
            put(client, name, message(subject=name))
        await pull(transport, settings)
        append(transport, "Kept", message(subject="mine"))
        client.delete("Gone")
        client.delete("Kept")
        done = await pull(transport, settings)
    assert done.removed == 2
    assert "Gone" not in folder_names(transport)
    assert len(rows(transport, "Kept")) == 1


async def test_a_connection_that_is_cut_again_and_again(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    letters = [message(subject=str(number), attachments=[b"x" * (number * 7919 % 40_000)]) for number in range(60)]
    with dovecot.session(user) as client:
        for octets in (*letters[:30], LARGE, *letters[30:]):
            put(client, "INBOX", octets)
    chance = random.Random(20261116)
    failures = 0
    async with wire(dovecot.imap) as proxy:
        settings = dovecot.settings(user, port=proxy.port)
        for _ in range(25):
            proxy.cut_after = chance.randint(1, 1_500_000)
            try:
                await pull(transport, settings)
            except UpstreamError:
                failures += 1
            found = here(transport)
            assert max(found.values(), default=1) == 1
        proxy.cut_after = None
        await pull(transport, settings)
    assert failures >= 20
    assert here(transport) == Counter([*letters, LARGE])


def test_killed_again_and_again(dovecot: Dovecot, tmp_path: Path) -> None:
    """The process dies at any point; what is there afterwards is there once."""
    user = dovecot.new_user()
    chance = random.Random(7)
    letters = [
        message(subject=str(number), attachments=[chance.randbytes(number % 7 * 20_000)]) for number in range(80)
    ]
    with dovecot.session(user) as client:
        for octets in letters:
            put(client, "INBOX", octets, ["\\Seen"])
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    config = tmp_path / "markpost.toml"
    config.write_text(
        f'[upstream.work]\nhost = "localhost"\nport = {dovecot.imap}\ntls = "none"\nuser = "{user}"\n'
        f'password_file = "{tmp_path}/secret"\naccount = "{ADA}"\n'
    )
    command = [sys.executable, "-m", "adapter.cli", "pull", "--root", str(root), "--config", str(config)]
    journal = root / "journal"
    deaths = 0
    for _ in range(4):
        grown = _size(journal) + chance.randint(1, 1_500_000)
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while process.poll() is None and _size(journal) < grown:
                time.sleep(0.002)
            deaths += process.poll() is None
            process.send_signal(signal.SIGKILL)
    last = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    assert last.stdout.startswith("work: ")
    assert PASSWORD not in last.stdout + last.stderr
    assert deaths >= 2
    with Transport.open(root) as transport:
        assert here(transport) == Counter(letters)
        assert all(row.flags == Flag.READ for row in rows(transport))
    assert_layers_agree(root, tmp_path / "scratch")


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


@pytest.mark.setting("upstream.poll")
async def test_following(dovecot: Dovecot, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """INBOX and, if it can tell, other folders at once; through connections that break."""
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        client.create("Lists")
        put(client, "INBOX", message(subject="0"))
        async with wire(dovecot.imap) as proxy:
            async with following(transport, dovecot.settings(user, port=proxy.port, poll=Seconds(600.0))):
                await until(lambda: len(rows(transport)) == 1 and "Lists" in folder_names(transport))
                put(client, "INBOX", message(subject="1"))
                await until(lambda: len(rows(transport)) == 2)
                client.select("INBOX")
                client.uid("STORE", "1", "+FLAGS", "(\\Flagged)")
                await until(lambda: rows(transport)[0].flags == Flag.STARRED)
                client.uid("STORE", "1", "+FLAGS", "(\\Deleted)")
                client.expunge()
                await until(lambda: [row.uid for row in rows(transport)] == [2])
                put(client, "Lists", message(subject="heard of"))  # NOTIFY
                await until(lambda: len(rows(transport, "Lists")) == 1)
                proxy.cut()
                await until(lambda: proxy.connections == 2)
                put(client, "INBOX", message(subject="2"))
                await until(lambda: len(rows(transport)) == 2)
            real = Client.offers
            monkeypatch.setattr(Client, "offers", lambda self, name: name != "NOTIFY" and real(self, name))
            async with following(transport, dovecot.settings(user, port=proxy.port)):
                put(client, "Lists", message(subject="a list"))
                await until(lambda: len(rows(transport, "Lists")) == 2)
                client.create("New")
                put(client, "New", message(subject="new"))
                await until(lambda: "New" in folder_names(transport) and len(rows(transport, "New")) == 1)


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
@pytest.mark.setting("upstream.tls", "upstream.ca_file")
async def test_tls_is_verified(dovecot: Dovecot, transport: Transport, tls: str) -> None:
    user = dovecot.new_user()
    port = dovecot.imap if tls == "starttls" else dovecot.imaps
    with dovecot.session(user) as client:
        put(client, "INBOX", message())
    with pytest.raises(UpstreamError, match="ertificate"):
        await pull(transport, dovecot.settings(user, tls=tls, port=port))
    done = await pull(transport, dovecot.settings(user, tls=tls, port=port, ca_file=dovecot.certificate))
    assert done.messages == 1


@pytest.mark.setting("upstream.password", "upstream.password_command")
async def test_what_goes_wrong_is_told_without_the_password(
    dovecot: Dovecot, transport: Transport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    user = dovecot.new_user()
    with pytest.raises(Refused, match="refuses the user or the password"):
        await pull(transport, dovecot.settings(user, password=PASSWORD + "x"))
    with pytest.raises(UpstreamError, match="refused"):
        await pull(transport, dovecot.settings(user, port=free_port()))
    with pytest.raises(UpstreamError, match="readable on the way"):
        await pull(transport, dovecot.settings(user, host="192.0.2.1"))
    command = (sys.executable, "-c", f"print({PASSWORD!r})")
    assert (await pull(transport, dovecot.settings(user, password="", password_command=command))).failed == []
    with pytest.raises(UpstreamError, match="password command failed"):
        await pull(transport, dovecot.settings(user, password="", password_command=(sys.executable, "-c", "exit(1)")))
    with pytest.raises(UpstreamError, match="password cannot be had: No such file"):
        await pull(transport, dovecot.settings(user, password="", password_file=str(tmp_path / "none")))
    assert PASSWORD not in caplog.text
    assert PASSWORD not in repr(dovecot.settings(user))


async def test_octets_are_counted(dovecot: Dovecot, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that is wrong is borne if the octets come the same twice; octets that do not are refused."""
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        for octets in (message(subject="small"), LARGE):
            put(client, "INBOX", octets)
    real = replies.fetched

    def wrong(lines: Any) -> Any:
        for each in real(lines):
            yield dataclasses.replace(each, size=each.size and each.size + 3)

    monkeypatch.setattr(replies, "fetched", wrong)
    await pull(transport, dovecot.settings(user))
    assert here(transport) == Counter([message(subject="small"), LARGE])

    calls = 0

    def unsteady(lines: Any) -> Any:
        nonlocal calls
        for each in wrong(lines):
            calls += 1
            yield dataclasses.replace(each, body=each.body and each.body + b"x" * (calls + 9))

    with dovecot.session(user) as client:
        put(client, "INBOX", message(subject="third"))
    monkeypatch.setattr(replies, "fetched", unsteady)
    with pytest.raises(UpstreamError, match="does not come whole"):
        await pull(transport, dovecot.settings(user))
    assert len(rows(transport)) == 2


async def test_what_is_too_large_is_left_there(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        for octets in (LARGE, message()):
            put(client, "INBOX", octets)
    done = await follow.pull(transport, "work", dovecot.settings(user), LIMITS._replace(message_size=1 << 20))
    assert done.messages == 1
    assert "octets are more than limits.message_size" in done.failed[0]


async def test_what_there_is_no_room_for_comes_later(dovecot: Dovecot, transport: Transport) -> None:
    """What lies here already needs no room; nothing is lost, and nothing comes twice."""
    user = dovecot.new_user()
    letters = [message(subject=str(number)) for number in range(6)]
    append(transport, "INBOX", letters[5])
    with dovecot.session(user) as client:
        for octets in (letters[0], LARGE, *letters[1:]):
            put(client, "INBOX", octets)
    settings = dovecot.settings(user)
    narrow = LIMITS._replace(quotas=Quotas(Settings(quota=Quota(messages=4, storage=Size(1 << 20)))))
    done = await follow.pull(transport, "work", settings, narrow)
    assert (done.messages, done.claimed) == (3, 1)
    assert done.failed == [f"3 messages for INBOX: no room in {ADA}, tried again later"]
    assert (await follow.pull(transport, "work", settings, narrow)).messages == 0
    transport.run(op.ChangeFlags(ADA, folder(transport).id, [2], "add", int(Flag.DELETED)))
    transport.run(op.Expunge(ADA, folder(transport).id, [2]))
    assert (await follow.pull(transport, "work", settings, narrow)).messages == 1
    assert (await pull(transport, settings)).messages == 2
    assert here(transport) == Counter([LARGE, *letters[1:]])
    assert (await pull(transport, settings)).failed == []


@pytest.mark.setting("upstream.host", "upstream.port", "upstream.user", "upstream.account", "upstream.password_file")
def test_the_command(dovecot: Dovecot, tmp_path: Path) -> None:
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        put(client, "INBOX", message())
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    config = tmp_path / "markpost.toml"
    (tmp_path / "secret").write_text(PASSWORD + "\n")

    def run(text: str, *arguments: str) -> tuple[int, str]:
        config.write_text(text)
        done = CliRunner().invoke(main, ["pull", "--root", str(root), "--config", str(config), *arguments])
        assert PASSWORD not in done.output
        return done.exit_code, done.output

    section = (
        f'host = "localhost"\nport = {dovecot.imap}\ntls = "none"\nuser = "{user}"\naccount = "{ADA}"\n'
        f'password_file = "{tmp_path}/secret"\n'
    )
    assert run("") == (1, "markpost: there is no [upstream.NAME] in the configuration: see conf/markpost.toml\n")
    assert run(f"[upstream.work]\n{section}", "home")[0] == 1
    status, output = run('[upstream.work]\nhost = "localhost"\nport = 0\n')
    assert status == 1
    assert "upstream.work.user: is needed" in output
    assert run(f"[upstream.work]\n{section}") == (0, f"work: 1 message (162 B) in 1 folder of {ADA}\n")
    broken = section.replace(str(dovecot.imap), str(free_port()))
    status, output = run(f"[upstream.broken]\n{broken}\n[upstream.work]\n{section}")
    assert status == 75
    assert "markpost: broken: Connect call failed" in output or "markpost: broken: " in output
    assert f"work: 0 messages (0 B) in 1 folder of {ADA}\n" in output
    assert run(f"[upstream.work]\n{section}", "work")[0] == 0


@pytest.mark.setting("upstream.follow")
def test_the_server_follows(dovecot: Dovecot, tmp_path: Path) -> None:
    """With several workers, through maintenance, and it ends at once."""
    user = dovecot.new_user()
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    config = tmp_path / "markpost.toml"
    config.write_text(
        f'[upstream.work]\nhost = "localhost"\nport = {dovecot.imap}\ntls = "none"\nuser = "{user}"\n'
        f'password_file = "{tmp_path}/secret"\naccount = "{ADA}"\nfollow = true\nfirst_retry = "100 ms"\n'
    )
    inbox = root / "mailboxes" / ADA / "inbox"

    def wait_for(count: int) -> None:
        wait_until(lambda: len(list(inbox.glob("*.md"))) == count, lambda: (tmp_path / "log").read_text()[-3000:])

    with dovecot.session(user) as client:
        put(client, "INBOX", message(subject="0"))
        arguments = ("--config", str(config), "--lmtp", str(tmp_path / "l.sock"), "--workers", "2")
        with served(root, *arguments, log=tmp_path / "log") as server:
            wait_for(1)
            put(client, "INBOX", message(subject="1"))
            wait_for(2)
            runner = CliRunner()
            assert runner.invoke(main, ["maintenance", "on", "--root", str(root)]).exit_code == 0
            put(client, "INBOX", message(subject="2"))
            assert runner.invoke(main, ["maintenance", "off", "--root", str(root)]).exit_code == 0
            wait_for(3)
            assert server.stop() == 0
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert PASSWORD not in log
    assert_layers_agree(root, tmp_path / "scratch")


def test_portions() -> None:
    assert [len(each) for each in folder_sync._portions(list(range(1001)))] == [500, 500, 1]
