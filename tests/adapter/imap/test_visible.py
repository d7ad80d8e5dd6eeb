"""Acknowledged changes are visible at once, in every command, however late the change feed's thread is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.read_model import change_follower
from adapter.transport import operations as op
from adapter.transport.changes import ChangeFeed
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.imapd import ImapClient, Running, Start
from tests.support.mailboxes import open_folder, open_mailboxes
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver
from tests.support.waiting import until


class _Paused:
    """A change feed that returns nothing until it is released."""

    def __init__(self, feed: ChangeFeed) -> None:
        self._go_on = threading.Event()
        self._deliver = feed._deliver
        feed._deliver = self._wait  # type: ignore[method-assign]

    def _wait(self) -> None:
        self._go_on.wait()
        self._deliver()

    def go_on(self) -> None:
        self._go_on.set()


@contextlib.contextmanager
def paused(feed: ChangeFeed) -> Iterator[_Paused]:
    pause = _Paused(feed)
    try:
        yield pause
    finally:
        pause.go_on()


async def shown(client: ImapClient, command: str, pause: _Paused) -> bytes:
    """Return the response to a command, which must wait for the feed; the feed is released once the command is read."""
    tag = client.start(command)
    asyncio.get_running_loop().call_later(0.05, pause.go_on)
    untagged, status = await client.finish(tag)
    assert status.startswith(b"OK"), status
    return b"\n".join(untagged)


def deliver_elsewhere(running: Running) -> None:
    """Open the store as another process does: with its own locks, index and descriptors."""
    with Transport.open(running.transport.root) as beside:
        deliver(beside, ADA)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("NOOP", b"* 2 EXISTS"),
        ("CHECK", b"* 2 EXISTS"),
        ("STATUS INBOX (MESSAGES UIDNEXT)", b"MESSAGES 2 UIDNEXT 3"),
        ('LIST "" INBOX RETURN (STATUS (MESSAGES))', b"(MESSAGES 2)"),
        ("EXAMINE INBOX", b"* 2 EXISTS"),
        ("UID FETCH 1:* (UID)", b"* 2 EXISTS"),
        ("UID SEARCH ALL", b"* 2 EXISTS"),
    ],
)
async def test_command_shows_what_was_acknowledged_before_it_came(
    start: Start, command: str, answer: bytes, elsewhere: bool
) -> None:
    async with start() as running:
        append(running.transport, "INBOX", message())
        client = await running.login(ADA)
        await client.ok("SELECT INBOX")
        await client.ok("STATUS INBOX (MESSAGES)")
        with paused(running.transport.changes) as pause:
            if elsewhere:
                await asyncio.to_thread(deliver_elsewhere, running)
            else:
                await asyncio.to_thread(deliver, running.transport, ADA)
            assert answer in await shown(client, command, pause)


async def test_idle_begins_with_what_was_acknowledged(start: Start) -> None:
    async with start() as running:
        client = await running.login(ADA)
        await client.ok("SELECT INBOX")
        with paused(running.transport.changes) as pause:
            await asyncio.to_thread(deliver, running.transport, ADA)
            tag = client.start("IDLE")
            asyncio.get_running_loop().call_later(0.05, pause.go_on)
            assert (await client.line()).startswith(b"+")
            assert await client.line() == b"* 1 EXISTS\r\n"
            client.send(b"DONE\r\n")
            await client.finish(tag)


async def test_session_does_not_wait_for_the_feed_after_its_own_change(start: Start) -> None:
    async with start() as running:
        append(running.transport, "INBOX", message())
        client = await running.login(ADA)
        await client.ok("SELECT INBOX")
        with paused(running.transport.changes):
            for command in ("STORE 1 +FLAGS (\\Flagged)", "NOOP", "CREATE More", "COPY 1 More", "NOOP"):
                await client.ok(command)
            assert b"MESSAGES 1" in b"".join(await client.ok("STATUS More (MESSAGES)"))


async def test_sessions_that_send_nothing_ask_for_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start() as running:
        client = await running.login(ADA)
        await client.ok("SELECT INBOX")
        client.start("IDLE")
        assert (await client.line()).startswith(b"+")
        asked: list[object] = []
        monkeypatch.setattr(ChangeFeed, "when_caught_up", lambda *_: asked.append(1))
        monkeypatch.setattr(Transport, "published_seq", lambda *_: asked.append(1))
        await asyncio.to_thread(deliver, running.transport, ADA)
        assert await client.line() == b"* 1 EXISTS\r\n"
        assert not asked


@pytest.mark.parametrize("failure", ["late", "failing"])
async def test_caches_are_compared_with_the_index_if_the_feed_cannot_go_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: str
) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    async with start() as running:
        client = await running.login(ADA)
        await client.ok("SELECT INBOX")
        await client.ok("STATUS INBOX (MESSAGES)")
        monkeypatch.setattr(change_follower, "_FEED_TIMEOUT_SECONDS", 0.05)
        feed = running.transport.changes
        with paused(feed):
            if failure == "failing":
                feed._deliver, original = fail, feed._deliver  # type: ignore[method-assign]
            with caplog.at_level(logging.WARNING):
                for number in (1, 2, 3):
                    await asyncio.to_thread(deliver, running.transport, ADA)
                    assert b"* %d EXISTS" % number in b"".join(await client.ok("NOOP"))
                    assert b"MESSAGES %d" % number in b"".join(await client.ok("STATUS INBOX (MESSAGES)"))
            if failure == "failing":
                feed._deliver = original  # type: ignore[method-assign]
                warnings = [record for record in caplog.records if "cannot read on" in record.getMessage()]
                assert len(warnings) == 1  # not for every command
        await client.ok("NOOP")


async def test_command_fails_while_a_stale_folder_cannot_be_read(
    store: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable index does not make a folder appear deleted."""
    append(store, "INBOX", message())
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        deliver(store, ADA)
        await mailboxes.catch_up()
        mailboxes._folders.distrust()

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(mailboxes._folders, "_rows", fail)
            assert mailboxes.is_behind
            with pytest.raises(MailError) as raised:
                await mailboxes.catch_up()
            assert raised.value.reason is Reason.UNKNOWN
            assert mailboxes.is_behind
        await mailboxes.catch_up()
        assert not state.is_removed
        assert not mailboxes.is_behind
        assert list(state.uids) == [1, 2]


# --- the published sequence number -----------------------------------------------------------------------------------


def test_number_is_published_before_the_change_is_acknowledged(store: Transport) -> None:
    with Transport.open(store.root) as beside:
        for number in range(3):
            store.run(op.Subscribe(ADA, f"Folder {number}"))
            assert beside.published_seq() == store.index.applied_seq()
        for future in beside.commit_all([op.Subscribe(BOB, "One"), op.Subscribe(BOB, "Two")]):
            future.result()
        assert store.published_seq() == beside.index.applied_seq()


def _write_number(store: Transport, content: bytes) -> None:
    Path(store.root, "locks", "published").write_bytes(content)


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"\xff" * 8, b"\0" * 8])
def test_opening_the_store_puts_the_published_number_right(store: Transport, content: bytes) -> None:
    deliver(store, ADA)
    seq = store.index.applied_seq()
    _write_number(store, content)
    with Transport.open(store.root) as again:
        assert again.published_seq() == store.published_seq() == seq


async def test_removed_file_of_the_published_number_is_made_again(store: Transport) -> None:
    append(store, "INBOX", message())
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        with Transport.open(store.root) as beside:
            os.unlink(os.path.join(store.root, "locks", "published"))
            deliver(beside, ADA)
            await until(lambda: store.published_seq() == beside.published_seq())
            deliver(beside, ADA)
            await mailboxes.catch_up()
            assert list(state.uids) == [1, 2, 3]


async def test_wrong_published_number_costs_a_pass_and_no_more(
    store: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        _write_number(store, b"\xff" * 7 + b"\x7f")
        assert mailboxes.is_behind
        monkeypatch.setattr(mailboxes._folders, "distrust", None)  # the feed responds in time
        await mailboxes.catch_up()
        deliver(store, ADA)
        await mailboxes.catch_up()
        assert list(state.uids) == [1]
        assert not mailboxes.is_behind
