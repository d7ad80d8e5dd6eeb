"""A connection to the smarthost: login, then one transaction after another.

Everything before MAIL is about the two hosts, not about a message: trouble there is always temporary. The data is
streamed. An answer is given for every recipient whatever happens; if the connection breaks after the end of the data
and before the answer, nobody knows whether the message was taken: it is tried again (RFC 5321 4.5.3.2.6).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Sequence
from contextlib import suppress

from aiosmtplib import SMTP, SMTPException, SMTPHeloError, SMTPResponseException, SMTPServerDisconnected
from aiosmtplib.protocol import SMTPProtocol
from aiosmtplib.response import SMTPResponse

from adapter.config.schema import RelaySettings
from adapter.relay import replies
from adapter.relay.message_source import DataEncoder, Nature, Outgoing
from adapter.relay.replies import Answer, Verdict
from adapter.store.queries.outbox import QueueRow
from protocol.errors import MailError
from protocol.idna import to_ascii
from protocol.smtp.commands import encode_xtext

_log = logging.getLogger(__name__)

_LOST = (SMTPException, OSError)  # timeouts included
_CLOSING = 421
_NO_EHLO = frozenset({500, 501, 502, 504})


class Unreachable(Exception):  # noqa: N818 - a state of the smarthost
    """There is no session to be had with the smarthost now; the text says why. Details are not for the sender."""

    def __init__(self, text: str, status: str = "4.4.1", details: str = "") -> None:
        super().__init__(f"{text}: {details}" if details else text)
        self.answer = replies.later(status, text)


class _Refused(Exception):  # noqa: N818 - a signal inside this module
    """The message cannot go through this smarthost."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.answer = replies.failed(status, text)


class _OutOfStep(SMTPException):
    """There are more replies than commands: nobody knows which belongs to which, in this transaction and after it."""


class Smarthost:
    def __init__(self, settings: RelaySettings, helo: str) -> None:
        self._settings = settings
        self._helo = helo
        self._client: SMTP | None = None
        self._extensions: dict[str, str] = {}  # as of the last connection, also when it is gone
        self._transactions = 0
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def offers_dsn(self) -> bool:
        return self._offers("dsn")

    def _offers(self, extension: str) -> bool:
        return extension in self._extensions

    async def open(self) -> None:
        """Connect, encrypt, log in. Raises :class:`Unreachable`."""
        settings = self._settings
        where = f"{settings.host}:{settings.port}"
        try:
            self._client = client = SMTP(
                hostname=settings.host,
                port=settings.port,
                local_hostname=self._helo if self._helo.isascii() else to_ascii(self._helo),
                timeout=settings.command,
                use_tls=settings.tls == "implicit",
                start_tls=False,
                cert_bundle=settings.ca_file or None,
                client_cert=settings.certificate or None,
                client_key=settings.key or None,
            )
            async with asyncio.timeout(settings.command):
                await client.connect(timeout=settings.connect)
                await _say_hello(client)
                if settings.tls == "starttls":
                    await client.starttls()
                    await _say_hello(client)
                if settings.user:
                    await self._log_in(client, where)
                _check_step(client)
        except Unreachable:
            self.abort()
            raise
        except (*_LOST, ValueError) as error:
            self.abort()
            raise Unreachable(f"cannot connect to {where}: {_reason(error)}") from error
        self._extensions = dict(client.esmtp_extensions)
        self._transactions = 0

    async def _log_in(self, client: SMTP, where: str) -> None:
        """What the server says meanwhile is told nobody but for its code: some repeat the password."""
        try:
            await client.login(self._settings.user, await self._password())
        except SMTPResponseException as refusal:
            code = f" ({refusal.code})" if refusal.code > 0 else ""
            raise Unreachable(f"cannot log in to {where}{code}", "4.7.0") from None
        except (*_LOST, ValueError) as error:
            raise Unreachable(f"cannot log in to {where}", "4.7.0", _reason(error)) from error

    async def _password(self) -> str:
        settings = self._settings
        if settings.tls == "none" and not _is_loopback(settings.host):
            raise ValueError("the password would be readable on the way; set relay.tls")
        if not settings.password_file:
            return ""
        try:
            text = await asyncio.to_thread(_read_text, settings.password_file)
        except UnicodeError:
            raise ValueError(f"{settings.password_file} is not in UTF-8") from None
        return text.partition("\n")[0].rstrip("\r")

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and client.is_connected:
            with suppress(*_LOST):
                await client.quit(timeout=5.0)
            client.close()

    def abort(self) -> None:
        """Let go at once, in the middle of the data if need be: what was not ended was not sent."""
        client, self._client = self._client, None
        if client is not None:
            transport = client.transport
            client.close()
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()

    # --- one transaction -------------------------------------------------------------------------------------------

    async def send(self, rows: Sequence[QueueRow], message: Outgoing, nature: Nature) -> list[Answer]:
        """Pass one message on to these recipients (all of one enqueued message); an answer for each of them."""
        client = self._client
        if client is None:
            raise Unreachable("not connected")
        self._transactions += 1
        try:
            options = self._mail_options(rows, nature)
            sender = self._path(rows[0].sender)
        except _Refused as refusal:
            return [refusal.answer] * len(rows)
        told: list[Answer | None] = [None] * len(rows)
        doing = "MAIL"
        try:
            reply = await _command(client, b"MAIL", b"FROM:" + sender, *options)
            if not _is_positive(reply):
                if reply.code == _CLOSING and self._transactions > 1:
                    raise Unreachable("the connection was used up")
                return [self._read(reply)] * len(rows)
            doing = "RCPT"
            for place, row in enumerate(rows):
                told[place] = await self._recipient(client, row)
            accepted = [place for place, answer in enumerate(told) if answer is None]
            if accepted:
                doing = "the data"
                outcome = await self._data(client, message, binary=b"BODY=BINARYMIME" in options)
                for place in accepted:
                    told[place] = outcome
            if not accepted or (told[accepted[0]] or _NO_ANSWER).verdict is not Verdict.RELAYED:
                await self._reset(client)
        except _LOST as error:
            self.abort()
            if doing == "MAIL" and self._transactions > 1:
                raise Unreachable(f"the connection broke: {_reason(error)}", "4.4.2") from error
            doubtful = isinstance(error, _OutOfStep)
            status = "4.5.0" if doubtful else "4.4.2"
            lost = replies.later(status, f"{self._settings.host}: {_reason(error)} while sending {doing}")
            told = [lost if doubtful else answer or lost for answer in told]
        return _without_circles([answer or _NO_ANSWER for answer in told])

    def _mail_options(self, rows: Sequence[QueueRow], nature: Nature) -> list[bytes]:
        row = rows[0]
        host = self._settings.host
        options = []
        if self._offers("size"):
            limit = _number(self._extensions["size"])
            if 0 < limit < nature.size:
                raise _Refused("5.3.4", f"the message has {nature.size} octets, {host} takes {limit}")
            options.append(f"SIZE={nature.size}")
        # RFC 3030 section 3, RFC 6152 section 3: there is no conversion that would leave signatures valid.
        if row.body == "BINARYMIME" and nature.binary:
            if not (self._offers("binarymime") and self._offers("chunking")):
                raise _Refused("5.6.3", f"{host} takes no binary content (BINARYMIME)")
            options.append("BODY=BINARYMIME")
        elif nature.eight_bit:
            if not self._offers("8bitmime"):
                raise _Refused("5.6.3", f"{host} takes no 8-bit content (8BITMIME)")
            options.append("BODY=8BITMIME")
        if self._offers("smtputf8"):
            addresses = (row.sender, *(other.recipient for other in rows))
            # The header of a part may be international, too; here the parts are not looked into.
            if (row.smtputf8 and nature.eight_bit) or not all(each.isascii() for each in addresses):
                options.append("SMTPUTF8")
        elif row.smtputf8 and nature.eight_bit_header:
            raise _Refused("5.6.7", f"{host} takes no international header (SMTPUTF8)")
        if row.requiretls:
            # RFC 8689 4.2.1
            if self._settings.tls == "none" or not self._offers("requiretls"):
                raise _Refused("5.7.30", f"{host} does not promise encryption on the whole way (REQUIRETLS)")
            options.append("REQUIRETLS")
        if self.offers_dsn:
            if row.ret:
                options.append(f"RET={row.ret}")
            if row.envid:
                options.append(f"ENVID={encode_xtext(row.envid.encode())}")
        return [option.encode() for option in options]

    def _path(self, address: str) -> bytes:
        """RFC 6531 3.2: an international address needs SMTPUTF8, but its domain has an ASCII form."""
        if not address.isascii() and not self._offers("smtputf8"):
            local, _, domain = address.rpartition("@")
            try:
                address = f"{local}@{to_ascii(domain)}"
            except UnicodeError:
                pass
            if not address.isascii():
                raise _Refused("5.6.7", f"{self._settings.host} takes no international address (SMTPUTF8)")
        return f"<{address}>".encode()

    async def _recipient(self, client: SMTP, row: QueueRow) -> Answer | None:
        """None: accepted so far."""
        try:
            arguments = [b"TO:" + self._path(row.recipient)]
        except _Refused as refusal:
            return refusal.answer
        if self.offers_dsn:
            # RFC 3461 5.2.1: passed on as they came.
            if row.notify:
                arguments.append(b"NOTIFY=" + row.notify.encode())
            if row.orcpt:
                arguments.append(b"ORCPT=" + row.orcpt.encode())
        reply = await _command(client, b"RCPT", *arguments)
        if _is_positive(reply):
            return None
        if reply.code == _CLOSING:
            raise SMTPServerDisconnected(f"{reply.code} {reply.message}")
        return replies.read_recipient(reply.code, reply.message, self._settings.host)

    async def _data(self, client: SMTP, message: Outgoing, *, binary: bool) -> Answer:
        try:
            return await (self._chunked(client, message) if binary else self._dotted(client, message))
        except MailError as error:
            self.abort()
            return unreadable(error)

    async def _dotted(self, client: SMTP, message: Outgoing) -> Answer:
        """RFC 5321 4.1.1.4."""
        reply = await _command(client, b"DATA")
        if _is_positive(reply):
            raise _OutOfStep(f"the answer to DATA was {reply.code}")
        if reply.code != 354:
            return self._read(reply)
        protocol = client.protocol
        if protocol is None:
            raise SMTPServerDisconnected("connection lost")
        # Where no answer is expected it is dropped, and a server that has had enough answers early and hangs up.
        protocol._response_pending = True
        encoder = DataEncoder()
        try:
            async for chunk in message.chunks():
                protocol.write(encoder.feed(chunk))
                async with asyncio.timeout(self._settings.command):
                    await protocol._drain_helper()
            if protocol.is_connected and _has_answered(protocol):
                raise _OutOfStep("an answer before the end of the data")
            protocol.write(encoder.finish())
        except ConnectionError:
            early = await protocol.read_response(timeout=1.0)
            return self._read(early) if not _is_positive(early) else _NO_ANSWER
        return self._outcome(client, await protocol.read_response(timeout=self._settings.accept))

    async def _chunked(self, client: SMTP, message: Outgoing) -> Answer:
        """RFC 3030 section 2."""
        protocol = client.protocol
        async for chunk in message.chunks():
            if protocol is None:
                raise SMTPServerDisconnected("connection lost")
            protocol.write(b"BDAT %d\r\n%b" % (len(chunk), chunk))
            reply = await protocol.read_response(timeout=self._settings.command)
            _check_step(client)
            if not _is_positive(reply):
                return self._read(reply)
        return self._outcome(client, await client.execute_command(b"BDAT", b"0 LAST", timeout=self._settings.accept))

    def _outcome(self, client: SMTP, reply: SMTPResponse) -> Answer:
        """Who has taken the message has it, whatever else was said: another attempt would be a second copy."""
        try:
            _check_step(client)
        except _OutOfStep:
            if not _is_positive(reply):
                raise
            self.abort()
        return self._read(reply)

    def _read(self, reply: SMTPResponse) -> Answer:
        return replies.read(reply.code, reply.message, self._settings.host)

    async def _reset(self, client: SMTP) -> None:
        """What was said stays said, also if the connection does not survive this."""
        try:
            if client.is_connected:
                await client.rset()
                _check_step(client)
        except _LOST:
            self.abort()


_NO_ANSWER = replies.later("4.5.0", "there was no answer")


def unreadable(error: Exception) -> Answer:
    """Names of files are not for the sender."""
    _log.error("a stored message cannot be read: %s", error)
    return replies.later("4.3.0", "the stored message cannot be read")


async def _say_hello(client: SMTP) -> None:
    """RFC 5321 3.2: HELO is for a server that does not know EHLO; one that is only busy would lose its extensions.

    The library is more generous: nothing of it may come first that says hello by itself.
    """
    try:
        await client.ehlo()
    except SMTPHeloError as refusal:
        if refusal.code not in _NO_EHLO:
            raise
        await client.helo()


async def _command(client: SMTP, *words: bytes) -> SMTPResponse:
    reply = await client.execute_command(*words)
    _check_step(client)
    return reply


def _check_step(client: SMTP) -> None:
    """To be called after each reply: what came with it would be taken for the answer to the next command."""
    if client.protocol is not None and client.protocol._buffer:
        raise _OutOfStep("more answers than commands")


def _has_answered(protocol: SMTPProtocol) -> bool:
    waiter = protocol._response_waiter
    return bool(protocol._buffer) or (waiter is not None and waiter.done())


def _is_positive(reply: SMTPResponse) -> bool:
    return 200 <= reply.code < 300


def _without_circles(told: list[Answer]) -> list[Answer]:
    """Recipients beyond what fits into one transaction go at once, but only after one that made progress."""
    if any(answer.verdict is Verdict.RELAYED for answer in told):
        return told
    return [
        Answer(Verdict.LATER, answer.text, answer.remote) if answer.verdict is Verdict.AGAIN else answer
        for answer in told
    ]


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return replies.one_line(str(error)) or type(error).__name__


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _number(text: str) -> int:
    return int(text) if len(text) <= 20 and text.isascii() and text.isdigit() else 0


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
