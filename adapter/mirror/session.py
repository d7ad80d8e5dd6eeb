"""A session with the upstream server: opened as the settings say, and asked in small portions.

Invariants: an answer has a few hundred lines at most. A message's octets are those of literals, and as many as the
server says they are; where it cannot count, they must come the same twice.
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
from adapter.mirror.blocking import to_end
from adapter.mirror.client import ROOM, Client, Refused, UpstreamError
from adapter.mirror.replies import Examined, Fetched, Listed
from adapter.store.flags import format_uids

_log = logging.getLogger(__name__)

_LISTED_AT_ONCE = 200
_LONGEST_SECRET = 4096
#: Messages of up to this size are fetched whole, several at once; larger ones in pieces.
SMALL = 256 << 10
_PIECE = 512 << 10
_ALL = "(UID FLAGS INTERNALDATE RFC822.SIZE)"
_STATE = "UIDVALIDITY UIDNEXT MESSAGES"
_NUMBERS = (*_STATE.split(), "HIGHESTMODSEQ")  # as in Examined
_EVENTS = "(MessageNew MessageExpunge FlagChange)"

Write = Callable[[bytes], None]
#: Where something happened: nowhere, in the open mailbox, or who knows where.
News = Literal["", "here", "anywhere"]


class Session:
    def __init__(self, client: Client) -> None:
        self._client = client
        #: RFC 7162: flags that changed can be asked for.
        self.has_condstore = client.offers("CONDSTORE") or client.offers("QRESYNC")
        self.has_idle = client.offers("IDLE")
        #: RFC 5465: news of mailboxes that are not open.
        self.has_notify = client.offers("NOTIFY")

    async def mailboxes(self) -> list[Listed]:
        """All mailboxes that can be opened."""
        return list(dict.fromkeys(replies.listed(await self._client.run("LIST", '""', '"*"', room=8 * ROOM))))

    async def status(self, spelling: str) -> Examined:
        """What a mailbox is like, without opening it."""
        wanted = f"({_STATE} HIGHESTMODSEQ)" if self.has_condstore else f"({_STATE})"
        told = replies.status(await self._client.run("STATUS", _quoted(spelling), wanted))
        return Examined(*(told.get(name, 0) for name in _NUMBERS))

    async def examine(self, spelling: str) -> Examined:
        """Open a mailbox, for reading only."""
        parameters = ("(CONDSTORE)",) if self.has_condstore else ()
        found = replies.examined(await self._client.examine(spelling, *parameters))
        if not found.uidvalidity:
            raise UpstreamError("it does not tell the UIDVALIDITY of a mailbox")
        return found

    async def all_messages(self, count: int) -> AsyncIterator[Fetched]:
        """UID, flags, date and size of the first ``count`` messages of the open mailbox.

        By message numbers: while nothing but FETCH is asked these do not change (RFC 3501 7.4.1).
        """
        for first in range(1, count + 1, _LISTED_AT_ONCE):
            window = f"{first}:{min(count, first + _LISTED_AT_ONCE - 1)}"
            for each in replies.fetched(await self._client.fetch(window, _ALL, uid=False)):
                yield each

    async def changed_since(self, modseq: int, count: int) -> list[int]:
        """UIDs of messages that are new or have other flags since (RFC 7162 3.1.5), out of about so many."""
        return sorted(await self._search(count, "MODSEQ", str(modseq + 1)))

    async def uids_from(self, first: int, count: int) -> set[int]:
        """The UIDs of the open mailbox from this one on."""
        found = await self._search(count, "UID", f"{first}:*")
        return {uid for uid in found if uid >= first}  # RFC 3501 6.4.8: the last one is always among them

    async def _search(self, count: int, *criteria: str) -> list[int]:
        return replies.found(await self._client.search(*criteria, room=ROOM + 16 * count))

    async def messages(self, uids: Sequence[int]) -> AsyncIterator[Fetched]:
        """The same as :meth:`all_messages`, for some; in portions."""
        for first in range(0, len(uids), _LISTED_AT_ONCE):
            portion = format_uids(uids[first : first + _LISTED_AT_ONCE])
            for each in replies.fetched(await self._client.fetch(portion, _ALL, uid=True)):
                yield each

    # --- contents ----------------------------------------------------------------------------------------------------

    async def small_bodies(self, wanted: dict[int, int]) -> dict[int, bytes]:
        """The octets of small messages (UID -> size); one that is gone, or was not whole, is not among them."""
        room = ROOM + 2 * sum(wanted.values())
        lines = await self._client.fetch(format_uids(sorted(wanted)), "(UID BODY.PEEK[])", uid=True, room=room)
        return {
            each.uid: bytes(each.body)
            for each in replies.fetched(lines)
            if each.body is not None and len(each.body) == wanted.get(each.uid)
        }

    async def large_body(self, uid: int, size: int, limit: int, write: Write) -> bool:
        """Write the octets of one message, piece by piece; False if it is gone. Raises :class:`UpstreamError`."""
        first = await self._pieces(uid, limit, write)
        if first is None:
            return False
        if first[0] != size:
            if first != await self._pieces(uid, limit, lambda _: None):
                raise UpstreamError(f"message {uid} does not come whole: {first[0]} of {size} octets")
            _log.warning("message %d is said to have %d octets and has %d", uid, size, first[0])
        return True

    async def _pieces(self, uid: int, limit: int, write: Write) -> tuple[int, bytes] | None:
        """How many octets, and their digest; None if the message is gone."""
        done, digest = 0, hashlib.sha256()
        while True:
            # RFC 3501 6.4.5: less than was asked for is the end of the message.
            items = f"(UID BODY.PEEK[]<{done}.{_PIECE}>)"
            lines = await self._client.fetch(str(uid), items, uid=True, room=ROOM + 2 * _PIECE)
            body = next((each.body for each in replies.fetched(lines) if each.uid == uid), None)
            if body is None:
                return None
            done += len(body)
            if done > limit:
                raise UpstreamError(f"message {uid} has more octets than it is said to have")
            digest.update(body)
            await to_end(write, bytes(body))
            if len(body) < _PIECE:
                return done, digest.digest()

    async def idle(self, seconds: float, known: Mapping[str, Examined]) -> News:
        """Until something happens in the open mailbox or, where the server can tell, in another.

        ``known`` is what mailboxes were like when they were last looked at.
        """

        def news(lines: Sequence[bytes | bytearray]) -> News:
            told = replies.statuses(lines)
            if any(spelling in known and _is_other(numbers, known[spelling]) for spelling, numbers in told):
                return "anywhere"
            return "here" if replies.tells_change(lines) else ""

        heard: News = ""
        if self.has_notify:
            try:
                heard = news(await self._client.run("NOTIFY", f"SET STATUS (SELECTED {_EVENTS}) (PERSONAL {_EVENTS})"))
            except Refused:
                self.has_notify = False
        heard = heard or news(await self._client.idle(seconds, lambda lines: bool(news(lines))))
        if self.has_notify:
            # What it tells would stand among the answers to other commands.
            await self._client.run("NOTIFY", "NONE")
        return heard


@contextlib.asynccontextmanager
async def connected(settings: UpstreamSettings) -> AsyncIterator[Session]:
    """Connect, encrypt, log in. Raises :class:`UpstreamError`."""
    context = None
    if settings.tls != "none":
        try:
            context = ssl.create_default_context(cafile=settings.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise UpstreamError(f"{settings.ca_file}: {error.strerror or 'no certificates'}") from None
    elif not _is_loopback(settings.host):
        raise UpstreamError("the password would be readable on the way; set tls")
    password = await _password(settings)
    implicit = context if settings.tls == "implicit" else None
    client = Client(settings.host, settings.port, settings.timeout, implicit)
    try:
        await client.greeting()
        if settings.tls == "starttls" and context is not None:
            await client.start_tls(context)
        await client.login(settings.user, password)
        yield Session(client)
    finally:
        client.close()


async def _password(settings: UpstreamSettings) -> str:
    try:
        if settings.password_command:
            return _first_line(await _output(settings.password_command, settings.timeout))
        if settings.password_file:
            return _first_line(await asyncio.to_thread(_read, settings.password_file))
    except (OSError, TimeoutError) as error:
        raise UpstreamError(f"the password cannot be had: {getattr(error, 'strerror', '') or 'no answer'}") from None
    return settings.password


async def _output(command: Sequence[str], seconds: float) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, limit=_LONGEST_SECRET
    )
    try:
        async with asyncio.timeout(seconds):
            if process.stdout is None:
                return b""
            text = b""  # it may be written piece by piece
            while len(text) < _LONGEST_SECRET and (piece := await process.stdout.read(_LONGEST_SECRET - len(text))):
                text += piece
            if await process.wait() != 0:
                raise UpstreamError("the password command failed")
            return text
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_LONGEST_SECRET)


def _first_line(text: bytes) -> str:
    try:
        return text.partition(b"\n")[0].rstrip(b"\r").decode()
    except UnicodeDecodeError:
        raise UpstreamError("the password is not UTF-8") from None


def _is_other(told: Mapping[str, int], seen: Examined) -> bool:
    """Whether a mailbox is no longer as it was seen, by what is told of it now."""
    before = {name: value for name, value in zip(_NUMBERS, seen) if value or name == "MESSAGES"}
    return any(before.get(name, value) != value for name, value in told.items())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _quoted(spelling: str) -> str:
    escaped = spelling.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


__all__ = ["SMALL", "News", "Refused", "Session", "UpstreamError", "connected"]
