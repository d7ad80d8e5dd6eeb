"""Twenty sessions, some with QRESYNC, some with UIDONLY, run random commands on three mailboxes while mail comes in;
every response is checked, and at the end all agree with the store. Where each session sets flags on its own messages,
no other session may change them."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from pathlib import Path

import pytest

from adapter.transport import operations as op
from tests.support.imap_view import CheckedClient, Mailbox
from tests.support.imapd import Running, make_store, serving
from tests.support.mail.corpus import varied_message
from tests.support.mail.real_mail import RealMail
from tests.support.mailboxes import notified
from tests.support.stores import ADA, rows

SESSIONS = 20
STEPS = int(os.environ.get("STRESS_STEPS", "30"))
MAILBOXES = ("INBOX", "Left", "Right")
_NAMES = {1: b"\\Seen", 2: b"\\Answered", 4: b"\\Flagged", 8: b"\\Deleted", 16: b"\\Draft"}

_MAIL = RealMail(1)


def _some_message(dice: random.Random) -> bytes:
    """Odd mail, or mail with threads, HTML and attachments."""
    return dice.choice([varied_message, _MAIL.octets])(dice.randint(1, 40))


class Walker:
    """One session that wanders about."""

    def __init__(
        self, server: Running, number: int, recent_to: dict[tuple[str, int], Mailbox], *, own_flags: bool
    ) -> None:
        self._server = server
        self._dice = random.Random(number)
        self._recent_to = recent_to
        self._own_flag = f"own{number}" if own_flags else ""
        self._own: dict[tuple[str, int], bool] = {}  # by mailbox and UID: whether the flag is set
        self._qresync = number % 2 == 1
        self._uid_only = number % 5 == 4
        self._number = number

    async def start(self) -> CheckedClient:
        client = CheckedClient(
            await self._server.login(ADA),
            qresync=self._qresync,
            uid_only=self._uid_only,
            recent_to=self._recent_to,
        )
        if self._qresync:
            await client.run("ENABLE QRESYNC")
        if self._uid_only:
            await client.run("ENABLE UIDONLY")
        return client

    async def walk(self) -> CheckedClient:
        client = await self.start()
        await client.select(self._dice.choice(MAILBOXES))
        for _ in range(STEPS):
            client = await self._step(client)
            self._check_own(client)
        return client

    def _check_own(self, client: CheckedClient) -> None:
        assert client.mailbox is not None
        for uid, flags in client.mailbox.flags.items():
            if (expected := self._own.get((client.mailbox.name, uid))) is not None:
                assert (self._own_flag.encode() in flags) == expected, (client.mailbox.name, uid, flags)

    async def _store_own(self, client: CheckedClient, uids: list[int]) -> None:
        on = self._dice.random() < 0.7
        chosen = ",".join(map(str, uids))
        _, status = await client.run(f"UID STORE {chosen} {'+' if on else '-'}FLAGS ({self._own_flag})")
        assert status.startswith(b"OK"), status
        assert client.mailbox is not None
        for uid in uids:
            if uid in client.mailbox.uids:
                self._own[client.mailbox.name, uid] = on
        if status.startswith(b"OK [EXPUNGEISSUED]"):
            # A message that another session removed keeps its flags until this session is sent the expunge.
            for uid in uids:
                if (self._own_flag.encode() in client.mailbox.flags.get(uid, ())) != on:
                    self._own.pop((client.mailbox.name, uid), None)

    async def _step(self, client: CheckedClient) -> CheckedClient:
        dice = self._dice
        assert client.mailbox is not None
        count = len(client.mailbox.uids)
        uids = [uid for uid in client.mailbox.uids if uid is not None]
        some = f"{dice.randint(1, count)}:{dice.randint(1, count)}" if count else "1:*"
        some_uids = ",".join(str(dice.choice(uids)) for _ in range(dice.randint(1, 5))) if uids else "1"
        uid, chosen = ("UID ", some_uids) if dice.random() < 0.5 or self._uid_only else ("", some)
        kind = dice.choices(
            ("select", "fetch", "body", "store", "copy", "move", "append", "expunge", "uidexpunge", "idle", "noop",
             "search", "reconnect"),
            (4, 12, 4, 16, 5, 6, 10, 4, 4, 6, 6, 6, 2),
        )[0]  # fmt: skip
        if not count and kind in ("fetch", "body", "store", "copy", "move") and not uid:
            kind = "append"
        other = dice.choice(MAILBOXES)
        match kind:
            case "select":
                await client.select(other)
            case "fetch":
                await self._fine(client, f"{uid}FETCH {chosen} (UID FLAGS RFC822.SIZE)")
            case "body":
                await self._fine(client, f"{uid}FETCH {chosen} (BODY[HEADER])")
            case "store" if self._own_flag and uids and dice.random() < 0.5:
                await self._store_own(client, sorted(set(dice.choices(uids, k=3))))
            case "store":
                flags = " ".join(dice.sample(["\\Seen", "\\Flagged", "\\Deleted", "$a", "$b"], dice.randint(1, 3)))
                how = dice.choice(["+FLAGS", "-FLAGS", "FLAGS", "+FLAGS.SILENT", "-FLAGS.SILENT"])
                if self._own_flag and how == "FLAGS":  # it would take away what is not its own
                    how = "+FLAGS"
                await self._store(client, uid, chosen, how, flags)
            case "copy" | "move":
                _, status = await client.run(f"{uid}{kind.upper()} {chosen} {other}")
                assert status.startswith((b"OK", b"NO [EXPUNGEISSUED]")), status
            case "append":
                text = _some_message(dice)
                _, status = await client.run(f"APPEND {other} {{{len(text)}+}}\r\n".encode() + text)
                assert status.startswith(b"OK [APPENDUID"), status
            case "expunge":
                await self._fine(client, "EXPUNGE")
            case "uidexpunge":
                await self._fine(client, f"UID EXPUNGE {some_uids}")
            case "idle":
                await self._idle(client)
            case "noop":
                await self._fine(client, "NOOP")
            case "search":
                await self._search(client, uid)
            case "reconnect":
                return await self._reconnect(client)
        return client

    async def _fine(self, client: CheckedClient, command: str) -> None:
        _, status = await client.run(command)
        assert status.startswith(b"OK"), (command, status)

    async def _store(self, client: CheckedClient, uid: str, chosen: str, how: str, flags: str) -> None:
        untagged, status = await client.run(f"{uid}STORE {chosen} {how} ({flags})")
        # RFC 2180 4.2.1: flags are reported, or it is said that messages are gone
        allowed = (b"OK",) if uid or how.endswith(".SILENT") else (b"OK", b"NO [EXPUNGEISSUED]")
        assert status.startswith(allowed), status
        if status.startswith(b"OK") and not uid and not how.endswith(".SILENT"):
            low, high = sorted(map(int, chosen.split(":")))
            reported = {int(line.split()[1]) for line in untagged if line.split()[2:3] == [b"FETCH"]}
            assert reported >= set(range(low, high + 1)), (chosen, untagged)
        if how.endswith(".SILENT") and client.mailbox is not None:
            # Without updates of flags the session has to fetch them: its own picture may be old.
            await client.learn()

    async def _idle(self, client: CheckedClient) -> None:
        tag = client.client.start("IDLE")
        while not (line := await client.client.line()).startswith(b"+ "):
            client.receive(line.rstrip(b"\r\n"), frozen=False)
        await asyncio.sleep(self._dice.random() * 0.1)
        client.client.send(b"DONE\r\n")
        while not (line := await client.client.response()).startswith(tag):
            client.receive(line.rstrip(b"\r\n"), frozen=False)
        assert b" OK " in line
        client.end_command()

    async def _search(self, client: CheckedClient, uid: str) -> None:
        untagged, status = await client.run(f"{uid}SEARCH {self._dice.choice(['ALL', 'UNSEEN', 'SUBJECT loom'])}")
        assert status.startswith(b"OK"), status
        assert client.mailbox is not None
        (answer,) = [line for line in untagged if line.startswith(b"* SEARCH")]
        matches = [int(number) for number in answer.split()[2:]]
        assert matches == sorted(matches)
        if not uid:
            assert all(1 <= number <= len(client.mailbox.uids) for number in matches)

    async def _reconnect(self, client: CheckedClient) -> CheckedClient:
        """The connection breaks; a session with QRESYNC takes up where it was."""
        before = client.mailbox
        await client.client.close()
        fresh = await self.start()
        assert before is not None
        if self._qresync and before.can_resume:
            await fresh.resume(before)
        else:
            await fresh.select(before.name)
        return fresh


async def _deliveries(server: Running, stop: asyncio.Event) -> None:
    dice = random.Random(0)
    while not stop.is_set():
        staged = await asyncio.to_thread(server.transport.stage, _some_message(dice))
        await server.transport.commit(op.Deliver(staged, "bob@example.test", [ADA]))
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("own_flags", [False, True], ids=["shared", "own"])
async def test_sessions_agree(tmp_path: Path, caplog: pytest.LogCaptureFixture, own_flags: bool) -> None:
    caplog.set_level(logging.WARNING)
    root = tmp_path / "store"
    await asyncio.to_thread(make_store, root, ADA)
    async with serving(root) as server:
        for name in MAILBOXES[1:]:
            await server.transport.commit(op.CreateFolder(ADA, name))
        stop = asyncio.Event()
        post = asyncio.create_task(_deliveries(server, stop))
        try:
            async with asyncio.timeout(max(150, STEPS)):
                recent_to: dict[tuple[str, int], Mailbox] = {}
                walkers = [Walker(server, number, recent_to, own_flags=own_flags) for number in range(SESSIONS)]
                clients = await asyncio.gather(*(walker.walk() for walker in walkers))
                assert recent_to
        finally:
            stop.set()
            await post
        await notified(server.transport, lambda: server.transport.run(op.Subscribe(ADA, MAILBOXES[1])))
        expected = {}
        for name in MAILBOXES:
            expected[name] = {
                row.uid: frozenset(
                    [*(text for bit, text in _NAMES.items() if row.flags & bit), *row.keywords.encode().split()]
                )
                for row in await asyncio.to_thread(rows, server.transport, name)
            }
        for client in clients:
            assert client.mailbox is not None
            _, status = await client.run("NOOP")
            assert status.startswith(b"OK")
            unknown = None in client.mailbox.uids
            flags = dict(client.mailbox.flags)
            await client.learn()
            assert client.mailbox.uids == list(expected[client.mailbox.name])
            assert client.mailbox.flags == expected[client.mailbox.name]
            if not unknown:
                # Everything was known before it was asked for.
                assert flags == expected[client.mailbox.name]
            await client.client.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text
