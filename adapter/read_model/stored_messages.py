"""Reads of the store without a cache: accounts of any status, and messages as they are stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from adapter.read_model.interface import Account
from adapter.read_model.thread_pool import ThreadPool
from adapter.store.queries import mailboxes, messages
from adapter.store.queries.mailboxes import Registration, Row
from adapter.store.queries.messages import ListedMessage, MessageHeader
from adapter.transport.transport import Transport

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class StoredMessages:
    """The part of :class:`~adapter.read_model.interface.MailboxReader` that programs, hooks and export use."""

    def __init__(self, transport: Transport, threads: ThreadPool) -> None:
        self._transport = transport
        self._threads = threads

    async def _ask(
        self,
        question: Callable[Concatenate[sqlite3.Connection, Arguments], Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Run a query on a thread."""
        return await self._threads.run(lambda: self._transport.index.ask(question, *arguments, **options))

    async def registrations(self) -> Sequence[Registration]:
        return await self._ask(mailboxes.registrations)

    async def account_of(self, registration: Registration) -> Account:
        return await self._threads.run(self._read_account, registration)

    def _read_account(self, registration: Registration) -> Account:
        with self._transport.reading() as connection:
            return read_account(connection, registration)

    async def rows(
        self, folder_id: int, first_uid: int = 1, *, saved_since: int = 0, limit: int | None = None
    ) -> Sequence[Row]:
        return await self._ask(mailboxes.rows_since, folder_id, first_uid, saved_since, limit)

    async def exist(self, folder_id: int, uids: Sequence[int]) -> bool:
        """Return True if the folder has any of these messages."""
        return bool(await self._ask(mailboxes.rows_of, folder_id, uids))

    async def listing(
        self, folder_id: int, *, uid: int | None = None, unread: bool = False, limit: int | None = None
    ) -> Sequence[ListedMessage]:
        if uid is not None:
            return await self._ask(messages.listed, folder_id, uid)
        return await self._ask(messages.latest, folder_id, unread=unread, limit=limit)

    async def find(self, registration: str, message_id: str) -> Sequence[ListedMessage]:
        return await self._ask(messages.places, registration, message_id)

    async def header(self, message_id: str) -> MessageHeader | None:
        return await self._ask(messages.header, message_id)

    async def markdown(self, message_id: str) -> bytes:
        return await self._threads.run(self._transport.content.file, message_id)

    async def octets(self, message_id: str) -> bytes:
        return await self._threads.run(self._transport.content.octets, message_id)

    async def attachment(self, sha256: str) -> bytes:
        return await self._threads.run(self._transport.content.read, sha256, 0, -1)


def read_account(connection: sqlite3.Connection, registration: Registration) -> Account:
    folders = {folder.name: folder for folder in mailboxes.folders(connection, registration.id)}
    subscriptions = frozenset(mailboxes.subscriptions(connection, registration.id))
    return Account(registration.address, registration.id, folders, subscriptions)
