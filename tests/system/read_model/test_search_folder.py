"""The text index after a process that filled it died."""

from __future__ import annotations

import asyncio

from adapter.transport.transport import Transport
from tests.support.mail.text_search import (
    check_text_search,
    indexed_messages,
    sample_mail,
)
from tests.support.mailboxes import open_folder, open_mailboxes
from tests.support.processes import run_elsewhere
from tests.support.stores import append
from tests.support.waiting import until


def _fill_elsewhere(root: str) -> None:
    async def run(transport: Transport) -> None:
        async with open_mailboxes(transport):
            await until(lambda: len(indexed_messages(transport)) == 8)

    with Transport.open(root) as transport:
        asyncio.run(run(transport))


async def test_two_processes_fill_one_index(store: Transport) -> None:
    sent = sample_mail(8)
    append(store, "INBOX", *sent)
    async with open_mailboxes(store) as mailboxes:
        await asyncio.to_thread(run_elsewhere, _fill_elsewhere, store.root)
        assert len(indexed_messages(store)) == 8
        await check_text_search(mailboxes, await open_folder(mailboxes), sent)
