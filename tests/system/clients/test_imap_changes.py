"""IDLE announces every change: by SMTP, the command line, an agent, a session of another worker."""

from __future__ import annotations

import asyncio
import imaplib
import smtplib
import subprocess
import sys
from pathlib import Path

from adapter.api import Store
from tests.support.imapd import PASSWORD, ImapClient, make_store
from tests.support.messages import message
from tests.support.paths import REPOSITORY
from tests.support.processes.serve import served
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE

_REPOSITORY = REPOSITORY


async def _idling(port: int) -> ImapClient:
    client = await ImapClient.connect(port)
    await client.line()
    await client.ok(f"LOGIN {ADA} {PASSWORD}")
    await client.ok("SELECT INBOX")
    client.start("IDLE")
    assert (await client.line()).startswith(b"+ ")
    return client


def _send(port: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
        client.sendmail("x@y.test", [ADA], message("by SMTP"))


def _deliver(root: Path, scratch: Path) -> None:
    note = scratch / "note.md"
    note.write_text("---\nsubject: by the command line\n---\n\nHello\n", encoding="utf-8")
    command = [sys.executable, "-m", "adapter.cli", "deliver", "--root", str(root), "--from", ADA, "--to", ADA]
    subprocess.run([*command, str(note)], cwd=_REPOSITORY, check=True, capture_output=True, timeout=PATIENCE)


def _flag(root: Path) -> None:
    with Store.open(root) as store:
        mailbox = store.mailbox(ADA)
        first = min(mailbox.messages(), key=lambda each: each.uid)
        mailbox.set_flags(first, "read", "todo")


def _archive(root: Path) -> None:
    with Store.open(root) as store:
        mailbox = store.mailbox(ADA)
        (last,) = mailbox.messages()
        mailbox.archive(last)


def _expunge(port: int) -> None:
    with imaplib.IMAP4("127.0.0.1", port) as client:
        client.login(ADA, PASSWORD)
        client.select("INBOX")
        client.store("1", "+FLAGS.SILENT", "\\Deleted")
        client.expunge()


async def test_idle_hears_of_every_change(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await asyncio.to_thread(make_store, root, ADA)
    listeners = ("--workers", "2", "--imap", "127.0.0.1:0", "--smtp", "127.0.0.1:0")
    with served(root, *listeners, log=tmp_path / "log") as server:
        imap, smtp = server.ports["imap"], server.ports["smtp"]
        clients = [await _idling(imap) for _ in range(4)]  # connections are shared out among the workers

        async def next_line(client: ImapClient) -> bytes:
            """Return the next line, without what only the session learns to which a message is recent."""
            line = await client.line()
            while line.endswith(b" RECENT\r\n"):
                line = await client.line()
            return line.replace(b"\\Recent ", b"")

        async def expect(*expected: bytes) -> None:
            for client in clients:
                assert [await next_line(client) for _ in expected] == [line + b"\r\n" for line in expected]

        await asyncio.to_thread(_send, smtp)
        await expect(b"* 1 EXISTS")
        await asyncio.to_thread(_deliver, root, tmp_path)
        await expect(b"* 2 EXISTS")
        await asyncio.to_thread(_flag, root)
        flags = b"(\\Seen \\Answered \\Flagged \\Deleted \\Draft todo"
        await expect(
            b"* FLAGS " + flags + b")",
            b"* OK [PERMANENTFLAGS " + flags + b" \\*)] Flags permitted",
            b"* 1 FETCH (UID 1 FLAGS (\\Seen todo))",
        )
        await asyncio.to_thread(_expunge, imap)
        # The flag may or may not have been announced before the expunge.
        for client in clients:
            line = await next_line(client)
            if b" FETCH " in line:
                assert line == b"* 1 FETCH (UID 1 FLAGS (\\Seen \\Deleted todo))\r\n"
                line = await next_line(client)
            assert line == b"* 1 EXPUNGE\r\n"
        await asyncio.to_thread(_archive, root)
        await expect(b"* 1 EXPUNGE")
        for client in clients:
            client.send(b"DONE\r\n")
            assert b" OK " in await next_line(client)
            await client.close()
        assert server.stop() == 0
