"""The libraries programs use: imaplib, IMAPClient, aioimaplib."""

from __future__ import annotations

import asyncio
import imaplib
import importlib
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aioimaplib
import pytest

from adapter.transport.transport import Transport
from tests.support.imapd import PASSWORD, make_store
from tests.support.mail.corpus import varied_message
from tests.support.processes.serving import Served, served
from tests.support.stores import ADA, append
from tests.support.waiting import PATIENCE

COUNT = 30


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    root = tmp_path / "store"
    make_store(root, ADA)
    with Transport.open(root) as transport:
        append(transport, "INBOX", *map(varied_message, range(1, COUNT + 1)))
    with served(root, ["imap", "imaps"], tmp_path) as running:
        yield running


def _context(server: Served) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=server.tls.certificate)


def test_imaplib(server: Served) -> None:
    with imaplib.IMAP4("localhost", server.ports["imap"]) as client:
        assert client.starttls(_context(server))[0] == "OK"
        assert client.login(ADA, PASSWORD)[0] == "OK"
        assert client.enable("UTF8=ACCEPT")[0] == "OK"
        assert client.select("INBOX") == ("OK", [b"%d" % COUNT])
        for number in range(1, COUNT + 1):
            _, data = client.fetch(str(number), "(BODY.PEEK[])")
            assert isinstance(data[0], tuple)
            assert data[0][1] == varied_message(number)
        assert client.store("1:3", "+FLAGS", "(\\Seen $Work)")[1][0] == b"1 (UID 1 FLAGS (\\Recent \\Seen $Work))"
        assert client.search(None, "KEYWORD", "$Work") == ("OK", [b"1 2 3"])
        assert client.uid("SEARCH", "SUBJECT", '" 7"')[1][0] is not None
        when = imaplib.Time2Internaldate(datetime(2020, 1, 2, tzinfo=UTC))
        status, answer = client.append("INBOX", "\\Flagged", when, varied_message(77))
        assert status == "OK"
        assert b"APPENDUID" in answer[0]
        assert client.noop()[0] == "OK"
        _, data = client.fetch(str(COUNT + 1), "(INTERNALDATE FLAGS)")
        assert data == [b'%d (INTERNALDATE " 2-Jan-2020 00:00:00 +0000" FLAGS (\\Recent \\Flagged))' % (COUNT + 1)]
        assert client.create("Papers")[0] == "OK"
        assert client.copy("1:5", "Papers")[0] == "OK"
        assert client.uid("MOVE", "6:7", "Papers")[0] == "OK"
        assert client.status("Papers", "(MESSAGES)") == ("OK", [b"Papers (MESSAGES 7)"])
        assert client.response("EXPUNGE") == ("EXPUNGE", [b"7", b"6"])
        assert client.sort("(REVERSE SIZE)", "UTF-8", "1:3")[0] == "OK"
        assert client.thread("REFERENCES", "UTF-8", "ALL")[0] == "OK"
        assert client.namespace() == ("OK", [b'(("" "/")) NIL NIL'])
        client.store("1", "+FLAGS.SILENT", "\\Deleted")
        assert client.expunge() == ("OK", [b"1"])
        assert client.unselect()[0] == "OK"


def test_imapclient(server: Served) -> None:
    imapclient: Any = importlib.import_module("imapclient")  # an untyped library
    client = imapclient.IMAPClient("localhost", server.ports["imaps"], ssl_context=_context(server))
    with client:
        client.login(ADA, PASSWORD)
        client.id_({"name": "test"})
        client.enable("CONDSTORE")
        folders = {name: flags for flags, _, name in client.list_folders()}
        assert b"\\Sent" in folders["Sent"]
        assert client.find_special_folder(b"\\Drafts") == "Drafts"
        client.create_folder("Entwürfe & Ideen")
        assert client.folder_exists("Entwürfe & Ideen")
        selected = client.select_folder("INBOX")
        assert selected[b"EXISTS"] == COUNT
        uids = client.search(["SUBJECT", "engine"])
        fetched = client.fetch(uids, ["ENVELOPE", "BODYSTRUCTURE", "FLAGS", "BODY.PEEK[]", "INTERNALDATE", "MODSEQ"])
        for uid, items in fetched.items():
            assert items[b"BODY[]"] == varied_message(uid)
            assert b"engine" in items[b"ENVELOPE"].subject
        client.add_flags(uids[:2], [imapclient.FLAGGED])
        assert client.search("FLAGGED") == uids[:2]
        client.move(uids[:1], "Entwürfe & Ideen")
        assert client.folder_status("Entwürfe & Ideen", ["MESSAGES"]) == {b"MESSAGES": 1}
        client.idle()
        other = imaplib.IMAP4_SSL("localhost", server.ports["imaps"], ssl_context=_context(server))
        other.login(ADA, PASSWORD)
        other.append("INBOX", "", imaplib.Time2Internaldate(time.time()), varied_message(200))
        responses = client.idle_check(timeout=PATIENCE)
        assert [each for each in responses if each[1] != b"RECENT"] == [(COUNT, b"EXISTS")]
        client.idle_done()
        other.logout()
        assert client.sort(["SUBJECT"])
        assert client.thread()
        client.delete_folder("Entwürfe & Ideen")


async def test_aioimaplib(server: Served) -> None:
    client = aioimaplib.IMAP4_SSL("localhost", server.ports["imaps"], ssl_context=_context(server))
    await client.wait_hello_from_server()
    assert (await client.login(ADA, PASSWORD)).result == "OK"
    assert (await client.select("INBOX")).result == "OK"
    for number in (1, 2, 5, 6, 7):
        answer = await client.uid("fetch", str(number), "(BODY.PEEK[])")
        assert answer.result == "OK"
        assert bytes(answer.lines[1]) == varied_message(number)
    idle = await client.idle_start(timeout=PATIENCE)
    other = imaplib.IMAP4_SSL("localhost", server.ports["imaps"], ssl_context=_context(server))
    await asyncio.to_thread(other.login, ADA, PASSWORD)
    await asyncio.to_thread(other.append, "INBOX", "", "", varied_message(200))
    pushed = await client.wait_server_push(timeout=PATIENCE)
    assert b"%d EXISTS" % (COUNT + 1) in pushed
    client.idle_done()
    await asyncio.wait_for(idle, PATIENCE)
    await asyncio.to_thread(other.logout)
    assert (await client.move("1:2", "Trash")).result == "OK"
    assert (await client.logout()).result == "OK"
