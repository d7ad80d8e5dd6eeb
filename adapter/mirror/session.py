"""A session with the upstream server: connect as the settings say, and fetch in small batches.

Invariants: a response has a few hundred lines at most. The octets of a message come from literals, and match the size
that the server reports; if they do not, two downloads must be identical.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal

from adapter.config.schema import UpstreamSettings
from adapter.mirror import replies
from adapter.mirror.client import OVERHEAD_BYTES, Client, Refused, UpstreamError, run_blocking
from adapter.mirror.replies import FetchedMessage, MailboxState, RemoteMailbox
from adapter.store.flags import format_uids

_log = logging.getLogger(__name__)

_BATCH_MESSAGES = 200
_MAX_SECRET_BYTES = 4096
#: Messages of up to this size are fetched whole, several at once; larger ones in pieces.
SMALL_BYTES = 256 << 10
_PIECE_BYTES = 512 << 10
_FETCH_ITEMS = "(UID FLAGS INTERNALDATE RFC822.SIZE)"
_STATUS_ITEMS = "UIDVALIDITY UIDNEXT MESSAGES"
_NUMBERS = (*_STATUS_ITEMS.split(), "HIGHESTMODSEQ")  # in the order of MailboxState
_EVENTS = "(MessageNew MessageExpunge FlagChange)"

Write = Callable[[bytes], None]
#: Where a change was reported: nowhere, in the open mailbox, or in any mailbox.
News = Literal["", "here", "anywhere"]


class UpstreamSession:
    """A logged-in connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        #: RFC 7162: the server can list messages with changed flags.
        self.has_condstore = client.offers("CONDSTORE") or client.offers("QRESYNC")
        self.has_idle = client.offers("IDLE")
        #: RFC 5465: the server reports changes of mailboxes that are not open.
        self.has_notify = client.offers("NOTIFY")

    async def mailboxes(self) -> list[RemoteMailbox]:
        """Return all selectable mailboxes."""
        lines = await self._client.run("LIST", '""', '"*"', max_bytes=8 * OVERHEAD_BYTES)
        return list(dict.fromkeys(replies.parse_list(lines)))

    async def status(self, name: str) -> MailboxState:
        """Return the state of a mailbox without opening it."""
        items = f"({_STATUS_ITEMS} HIGHESTMODSEQ)" if self.has_condstore else f"({_STATUS_ITEMS})"
        values = replies.parse_status(await self._client.run("STATUS", _quoted(name), items))
        return MailboxState(*(values.get(name, 0) for name in _NUMBERS))

    async def examine(self, name: str) -> MailboxState:
        """Open a mailbox read-only, and return its state."""
        parameters = ("(CONDSTORE)",) if self.has_condstore else ()
        state = replies.parse_examine(await self._client.examine(name, *parameters))
        if not state.uidvalidity:
            raise UpstreamError("no UIDVALIDITY in the response to EXAMINE")
        return state

    async def all_messages(self, count: int) -> AsyncIterator[FetchedMessage]:
        """Yield UID, flags, date and size of the first ``count`` messages of the open mailbox.

        By message number: these do not change between FETCH commands (RFC 3501 7.4.1).
        """
        for first in range(1, count + 1, _BATCH_MESSAGES):
            window = f"{first}:{min(count, first + _BATCH_MESSAGES - 1)}"
            for each in replies.parse_fetch(await self._client.fetch(window, _FETCH_ITEMS, uid=False)):
                yield each

    async def changed_since(self, modseq: int, count: int) -> list[int]:
        """Return the UIDs of about ``count`` messages that are new or changed since then (RFC 7162 3.1.5)."""
        return sorted(await self._search(count, "MODSEQ", str(modseq + 1)))

    async def uids_from(self, first: int, count: int) -> set[int]:
        """Return the UIDs of the open mailbox from this one on."""
        uids = await self._search(count, "UID", f"{first}:*")
        return {uid for uid in uids if uid >= first}  # the last one always matches (RFC 3501 6.4.8)

    async def _search(self, count: int, *criteria: str) -> list[int]:
        return replies.parse_search(await self._client.search(*criteria, max_bytes=OVERHEAD_BYTES + 16 * count))

    async def messages(self, uids: Sequence[int]) -> AsyncIterator[FetchedMessage]:
        """Yield the same as :meth:`all_messages` for these UIDs, in batches."""
        for first in range(0, len(uids), _BATCH_MESSAGES):
            batch = format_uids(uids[first : first + _BATCH_MESSAGES])
            for each in replies.parse_fetch(await self._client.fetch(batch, _FETCH_ITEMS, uid=True)):
                yield each

    # --- contents ----------------------------------------------------------------------------------------------------

    async def small_bodies(self, sizes: dict[int, int]) -> dict[int, bytes]:
        """Return the octets of small messages (UID -> size), without those that are gone or incomplete."""
        max_bytes = OVERHEAD_BYTES + 2 * sum(sizes.values())
        lines = await self._client.fetch(format_uids(sorted(sizes)), "(UID BODY.PEEK[])", uid=True, max_bytes=max_bytes)
        return {
            each.uid: bytes(each.body)
            for each in replies.parse_fetch(lines)
            if each.body is not None and len(each.body) == sizes.get(each.uid)
        }

    async def large_body(self, uid: int, size: int, limit: int, write: Write) -> bool:
        """Write the octets of one message in pieces; False if it is gone. Raises :class:`UpstreamError`."""
        first = await self._download(uid, limit, write)
        if first is None:
            return False
        if first[0] != size:
            if first != await self._download(uid, limit, lambda _: None):
                raise UpstreamError(f"message {uid}: incomplete download, {first[0]} of {size} octets")
            _log.warning("message %d: reported size %d, actual size %d; keeping it", uid, size, first[0])
        return True

    async def _download(self, uid: int, limit: int, write: Write) -> tuple[int, bytes] | None:
        """Download a message; return its size and digest, or None if it is gone."""
        received, digest = 0, hashlib.sha256()
        while True:
            # A piece shorter than requested is the last one (RFC 3501 6.4.5).
            items = f"(UID BODY.PEEK[]<{received}.{_PIECE_BYTES}>)"
            lines = await self._client.fetch(str(uid), items, uid=True, max_bytes=OVERHEAD_BYTES + 2 * _PIECE_BYTES)
            body = next((each.body for each in replies.parse_fetch(lines) if each.uid == uid), None)
            if body is None:
                return None
            received += len(body)
            if received > limit:
                raise UpstreamError(f"message {uid}: larger than its reported size")
            digest.update(body)
            await run_blocking(write, bytes(body))
            if len(body) < _PIECE_BYTES:
                return received, digest.digest()

    async def idle(self, seconds: float, states: Mapping[str, MailboxState]) -> News:
        """Wait for a change in the open mailbox or, with NOTIFY, in another one.

        ``states`` has the state of each mailbox after its last synchronisation.
        """

        def news(lines: Sequence[bytes | bytearray]) -> News:
            reported = replies.parse_statuses(lines)
            if any(name in states and _has_changed(values, states[name]) for name, values in reported):
                return "anywhere"
            return "here" if replies.reports_change(lines) else ""

        where: News = ""
        if self.has_notify:
            try:
                where = news(await self._client.run("NOTIFY", f"SET STATUS (SELECTED {_EVENTS}) (PERSONAL {_EVENTS})"))
            except Refused:
                self.has_notify = False
        where = where or news(await self._client.idle(seconds, lambda lines: bool(news(lines))))
        if self.has_notify:
            # Else its notifications would be mixed into the responses to other commands.
            await self._client.run("NOTIFY", "NONE")
        return where


@contextlib.asynccontextmanager
async def connected(settings: UpstreamSettings) -> AsyncIterator[UpstreamSession]:
    """Connect, start TLS, and log in. Raises :class:`UpstreamError`."""
    context = None
    if settings.tls != "none":
        try:
            context = ssl.create_default_context(cafile=settings.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise UpstreamError(f"{settings.ca_file}: {error.strerror or 'not a file of CA certificates'}") from None
    elif not _is_loopback(settings.host):
        raise UpstreamError("the password would be sent unencrypted; set tls")
    password = await _password(settings)
    implicit = context if settings.tls == "implicit" else None
    client = Client(settings.host, settings.port, settings.timeout, implicit)
    try:
        await client.greeting()
        if settings.tls == "starttls" and context is not None:
            await client.start_tls(context)
        await client.login(settings.user, password)
        yield UpstreamSession(client)
    finally:
        client.close()


async def _password(settings: UpstreamSettings) -> str:
    try:
        if settings.password_command:
            return _first_line(await _output(settings.password_command, settings.timeout))
        if settings.password_file:
            return _first_line(await asyncio.to_thread(_read, settings.password_file))
    except (OSError, TimeoutError) as error:
        raise UpstreamError(f"cannot get the password: {getattr(error, 'strerror', '') or 'timeout'}") from None
    return settings.password


async def _output(command: Sequence[str], seconds: float) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, limit=_MAX_SECRET_BYTES
    )
    try:
        async with asyncio.timeout(seconds):
            if process.stdout is None:
                return b""
            output = b""  # may arrive in pieces
            while len(output) < _MAX_SECRET_BYTES and (
                piece := await process.stdout.read(_MAX_SECRET_BYTES - len(output))
            ):
                output += piece
            if await process.wait() != 0:
                raise UpstreamError("password command failed")
            return output
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MAX_SECRET_BYTES)


def _first_line(text: bytes) -> str:
    try:
        return text.partition(b"\n")[0].rstrip(b"\r").decode()
    except UnicodeDecodeError:
        raise UpstreamError("the password is not UTF-8") from None


def _has_changed(values: Mapping[str, int], state: MailboxState) -> bool:
    """Return whether reported values differ from the last state of a mailbox."""
    before = {name: value for name, value in zip(_NUMBERS, state) if value or name == "MESSAGES"}
    return any(before.get(name, value) != value for name, value in values.items())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


__all__ = ["SMALL_BYTES", "News", "Refused", "UpstreamError", "UpstreamSession", "connected"]
