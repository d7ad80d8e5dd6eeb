"""Mirroring accounts of a real Dovecot: everything comes, exactly, once, and stays the same."""

from __future__ import annotations

import imaplib
import os
from collections import Counter

import pytest

from adapter.config.loader import Size
from adapter.config.schema import Quota, Settings
from adapter.mirror import client as fence
from adapter.mirror import folder_sync, follow
from adapter.mirror.client import Client
from adapter.store.effects import Actor
from adapter.store.flags import Flag
from adapter.store.queries import bookmarks
from adapter.store.quotas import Quotas
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.processes.pulling import LARGE, LIMITS, here, pull, there
from tests.support.processes.upstream import Dovecot, put, spelt
from tests.support.store.journals import actors
from tests.support.stores import ADA, append, folder, folder_names, rows, subscriptions

pytestmark = [
    pytest.mark.needs("dovecot"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Dovecot is started by root"),
]


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
    assert set(actors(transport.root, "mirror")) == {Actor("", "mirror")}
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
    flags = {row.uid: (row.flags, row.keywords) for row in rows(transport)}
    assert flags == {
        1: (Flag.READ | Flag.STARRED, "mine theirs"),  # a flag changed here stays
        2: (0, ""),
        4: (Flag.READ, ""),
        6: (Flag.READ, ""),
        7: (0, ""),  # never existed upstream: left alone
        8: (0, ""),
    }
    assert (await pull(transport, settings)).messages == 0  # a message removed here does not come back


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
        (owner,) = [each for each in bookmarks.owners(connection, "pull work ") if each.endswith(" Lists")]
        assert len(bookmarks.of_owner(connection, owner)) == len(after) + 2  # none of before are left


async def test_mail_that_was_imported_before_is_taken_for_what_it_is(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    append(transport, "INBOX", message(subject="same"), message(subject="other"))
    with dovecot.session(user) as client:
        put(client, "INBOX", message(subject="same"), ["\\Flagged"])
        put(client, "INBOX", message(subject="same"))
    done = await pull(transport, dovecot.settings(user))
    assert (done.messages, done.claimed) == (1, 1)
    assert [row.flags for row in rows(transport)] == [Flag.STARRED, 0, 0]


async def test_a_folder_that_is_removed_there(
    dovecot: Dovecot, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        with monkeypatch.context() as failing:
            failing.setattr(fence, "_is_permanent", lambda _: False)
            done = await pull(transport, settings)
        assert done.removed == 0  # a failure of the server removes no mail
        assert len(done.failed) == 2
        done = await pull(transport, settings)
    assert done.removed == 2
    assert "Gone" not in folder_names(transport)
    assert len(rows(transport, "Kept")) == 1


async def test_what_is_too_large_is_left_there(dovecot: Dovecot, transport: Transport) -> None:
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        for octets in (LARGE, message()):
            put(client, "INBOX", octets)
    done = await follow.pull(transport, "work", dovecot.settings(user), LIMITS._replace(message_size=1 << 20))
    assert done.messages == 1
    assert "octets exceed limits.message_size" in done.failed[0]


async def test_what_there_is_no_room_for_comes_later(dovecot: Dovecot, transport: Transport) -> None:
    """Mail that is here already needs no quota; nothing is lost, and nothing comes twice."""
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


def test_batches() -> None:
    assert [len(each) for each in folder_sync._batches(list(range(1001)))] == [500, 500, 1]
