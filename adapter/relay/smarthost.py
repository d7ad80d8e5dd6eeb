"""A connection to the smarthost: login, then one transaction after another.

Errors before MAIL concern the two hosts, not a message: they are always temporary. The data is streamed. Every
recipient gets a reply in any case. If the connection breaks between the end of the data and the reply, the message may
or may not have been accepted: it is retried (RFC 5321 4.5.3.2.6).
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
from adapter.relay.message_source import DataEncoder, MessageTraits, OutgoingMessage
from adapter.relay.replies import RecipientReply, Verdict
from adapter.store.queries.outbox import QueueRow
from protocol.errors import MailError
from protocol.idna import to_ascii
from protocol.smtp.commands import encode_xtext

_log = logging.getLogger(__name__)

_CONNECTION_ERRORS = (SMTPException, OSError)  # timeouts included
_CLOSING_CODE = 421
_NO_EHLO_CODES = frozenset({500, 501, 502, 504})


class Unreachable(Exception):  # noqa: N818 - a state of the smarthost
    """No session with the smarthost is possible now; the text says why. ``details`` are not shown to the sender."""

    def __init__(self, text: str, status: str = "4.4.1", details: str = "") -> None:
        super().__init__(f"{text}: {details}" if details else text)
        self.reply = replies.deferred(status, text)


class _Refused(Exception):  # noqa: N818 - a signal inside this module
    """This smarthost cannot carry the message."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.reply = replies.failed(status, text)


class _OutOfSync(SMTPException):
    """More replies than commands: they can no longer be matched, in this transaction and after it."""


class Smarthost:
    def __init__(self, settings: RelaySettings, helo: str) -> None:
        self._settings = settings
        self._helo = helo
        self._client: SMTP | None = None
        self._extensions: dict[str, str] = {}  # of the last connection, even after it closed
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
        endpoint = f"{settings.host}:{settings.port}"
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
                await _greet(client)
                if settings.tls == "starttls":
                    await client.starttls()
                    await _greet(client)
                if settings.user:
                    await self._log_in(client, endpoint)
                _check_sync(client)
        except Unreachable:
            self.abort()
            raise
        except (*_CONNECTION_ERRORS, ValueError) as error:
            self.abort()
            raise Unreachable(f"cannot connect to {endpoint}: {_reason(error)}") from error
        self._extensions = dict(client.esmtp_extensions)
        self._transactions = 0

    async def _log_in(self, client: SMTP, endpoint: str) -> None:
        """Log in. Only the reply code is logged: some servers echo the password."""
        try:
            await client.login(self._settings.user, await self._password())
        except SMTPResponseException as refusal:
            code = f" ({refusal.code})" if refusal.code > 0 else ""
            advice = "check relay.user and relay.password_file"
            raise Unreachable(f"cannot log in to {endpoint}{code}", "4.7.0", advice) from None
        except (*_CONNECTION_ERRORS, ValueError) as error:
            raise Unreachable(f"cannot log in to {endpoint}", "4.7.0", _reason(error)) from error

    async def _password(self) -> str:
        settings = self._settings
        if settings.tls == "none" and not _is_loopback(settings.host):
            raise ValueError("the password would be sent in clear text; set relay.tls")
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
            with suppress(*_CONNECTION_ERRORS):
                await client.quit(timeout=5.0)
            client.close()

    def abort(self) -> None:
        """Close at once, even in the middle of the data: an unfinished message is not delivered."""
        client, self._client = self._client, None
        if client is not None:
            socket = client.transport
            client.close()
            if isinstance(socket, asyncio.WriteTransport):
                socket.abort()

    # --- one transaction -------------------------------------------------------------------------------------------

    async def send(
        self, rows: Sequence[QueueRow], message: OutgoingMessage, traits: MessageTraits
    ) -> list[RecipientReply]:
        """Send one message to these recipients (all of one queued message); return a reply for each of them."""
        client = self._client
        if client is None:
            raise Unreachable("not connected")
        self._transactions += 1
        try:
            options = self._mail_options(rows, traits)
            sender = self._path(rows[0].sender)
        except _Refused as refusal:
            return [refusal.reply] * len(rows)
        results: list[RecipientReply | None] = [None] * len(rows)
        step = "MAIL"
        try:
            reply = await _command(client, b"MAIL", b"FROM:" + sender, *options)
            if not _is_positive(reply):
                if reply.code == _CLOSING_CODE and self._transactions > 1:
                    raise Unreachable("the server closed the reused connection")
                return [self._parse(reply)] * len(rows)
            step = "RCPT"
            for index, row in enumerate(rows):
                results[index] = await self._send_rcpt(client, row)
            accepted = [index for index, result in enumerate(results) if result is None]
            if accepted:
                step = "the data"
                final_reply = await self._send_data(client, message, binary=b"BODY=BINARYMIME" in options)
                for index in accepted:
                    results[index] = final_reply
            if not accepted or (results[accepted[0]] or _NO_REPLY).verdict is not Verdict.RELAYED:
                await self._reset(client)
        except _CONNECTION_ERRORS as error:
            self.abort()
            if step == "MAIL" and self._transactions > 1:
                raise Unreachable(f"the connection broke: {_reason(error)}", "4.4.2") from error
            is_out_of_sync = isinstance(error, _OutOfSync)
            status = "4.5.0" if is_out_of_sync else "4.4.2"
            lost = replies.deferred(status, f"{self._settings.host}: {_reason(error)} while sending {step}")
            results = [lost if is_out_of_sync else result or lost for result in results]
        return _defer_without_progress([result or _NO_REPLY for result in results])

    def _mail_options(self, rows: Sequence[QueueRow], traits: MessageTraits) -> list[bytes]:
        row = rows[0]
        host = self._settings.host
        options = []
        if self._offers("size"):
            limit = _number(self._extensions["size"])
            if 0 < limit < traits.size:
                raise _Refused("5.3.4", f"the message has {traits.size} octets; {host} accepts {limit}")
            options.append(f"SIZE={traits.size}")
        # RFC 3030 section 3, RFC 6152 section 3: any conversion would break signatures.
        if row.body == "BINARYMIME" and traits.binary:
            if not (self._offers("binarymime") and self._offers("chunking")):
                raise _Refused("5.6.3", f"{host} does not accept binary content (BINARYMIME)")
            options.append("BODY=BINARYMIME")
        elif traits.eight_bit:
            if not self._offers("8bitmime"):
                raise _Refused("5.6.3", f"{host} does not accept 8-bit content (8BITMIME)")
            options.append("BODY=8BITMIME")
        if self._offers("smtputf8"):
            addresses = (row.sender, *(other.recipient for other in rows))
            # The header of a part may be international as well; parts are not parsed here.
            if (row.smtputf8 and traits.eight_bit) or not all(each.isascii() for each in addresses):
                options.append("SMTPUTF8")
        elif row.smtputf8 and traits.eight_bit_header:
            raise _Refused("5.6.7", f"{host} does not accept international headers (SMTPUTF8)")
        if row.requiretls:
            # RFC 8689 4.2.1
            if self._settings.tls == "none" or not self._offers("requiretls"):
                raise _Refused("5.7.30", f"{host} does not offer end-to-end TLS (REQUIRETLS)")
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
                raise _Refused("5.6.7", f"{self._settings.host} does not accept international addresses (SMTPUTF8)")
        return f"<{address}>".encode()

    async def _send_rcpt(self, client: SMTP, row: QueueRow) -> RecipientReply | None:
        """Send RCPT; None: accepted."""
        try:
            arguments = [b"TO:" + self._path(row.recipient)]
        except _Refused as refusal:
            return refusal.reply
        if self.offers_dsn:
            # RFC 3461 5.2.1: passed on unchanged.
            if row.notify:
                arguments.append(b"NOTIFY=" + row.notify.encode())
            if row.orcpt:
                arguments.append(b"ORCPT=" + row.orcpt.encode())
        reply = await _command(client, b"RCPT", *arguments)
        if _is_positive(reply):
            return None
        if reply.code == _CLOSING_CODE:
            raise SMTPServerDisconnected(f"{reply.code} {reply.message}")
        return replies.parse_rcpt_reply(reply.code, reply.message, self._settings.host)

    async def _send_data(self, client: SMTP, message: OutgoingMessage, *, binary: bool) -> RecipientReply:
        try:
            return await (self._send_chunks(client, message) if binary else self._send_dot_stuffed(client, message))
        except MailError as error:
            self.abort()
            return unreadable(error)

    async def _send_dot_stuffed(self, client: SMTP, message: OutgoingMessage) -> RecipientReply:
        """RFC 5321 4.1.1.4."""
        reply = await _command(client, b"DATA")
        if _is_positive(reply):
            raise _OutOfSync(f"the reply to DATA was {reply.code}")
        if reply.code != 354:
            return self._parse(reply)
        protocol = client.protocol
        if protocol is None:
            raise SMTPServerDisconnected("connection lost")
        # aiosmtplib drops unexpected replies; a server that refuses the data replies early and disconnects.
        protocol._response_pending = True
        encoder = DataEncoder()
        try:
            async for chunk in message.chunks():
                protocol.write(encoder.feed(chunk))
                async with asyncio.timeout(self._settings.command):
                    await protocol._drain_helper()
            if protocol.is_connected and _has_replied(protocol):
                raise _OutOfSync("a reply before the end of the data")
            protocol.write(encoder.finish())
        except ConnectionError:
            early = await protocol.read_response(timeout=1.0)
            return self._parse(early) if not _is_positive(early) else _NO_REPLY
        return self._final_reply(client, await protocol.read_response(timeout=self._settings.accept))

    async def _send_chunks(self, client: SMTP, message: OutgoingMessage) -> RecipientReply:
        """RFC 3030 section 2."""
        protocol = client.protocol
        async for chunk in message.chunks():
            if protocol is None:
                raise SMTPServerDisconnected("connection lost")
            protocol.write(b"BDAT %d\r\n%b" % (len(chunk), chunk))
            reply = await protocol.read_response(timeout=self._settings.command)
            _check_sync(client)
            if not _is_positive(reply):
                return self._parse(reply)
        return self._final_reply(
            client, await client.execute_command(b"BDAT", b"0 LAST", timeout=self._settings.accept)
        )

    def _final_reply(self, client: SMTP, reply: SMTPResponse) -> RecipientReply:
        """An accepted message is delivered even if the replies are out of sync: a retry would duplicate it."""
        try:
            _check_sync(client)
        except _OutOfSync:
            if not _is_positive(reply):
                raise
            self.abort()
        return self._parse(reply)

    def _parse(self, reply: SMTPResponse) -> RecipientReply:
        return replies.parse_reply(reply.code, reply.message, self._settings.host)

    async def _reset(self, client: SMTP) -> None:
        """End the transaction; the replies so far stay valid even if the connection breaks here."""
        try:
            if client.is_connected:
                await client.rset()
                _check_sync(client)
        except _CONNECTION_ERRORS:
            self.abort()


_NO_REPLY = replies.deferred("4.5.0", "no reply")


def unreadable(error: Exception) -> RecipientReply:
    """The reply for a message that cannot be read; file names are logged, never shown to the sender."""
    _log.error("relay: cannot read a stored message (%s); retrying later", error)
    return replies.deferred("4.3.0", "the stored message cannot be read")


async def _greet(client: SMTP) -> None:
    """RFC 5321 3.2: fall back to HELO only for a server without EHLO; a busy one would lose its extensions.

    aiosmtplib falls back in more cases, so this must run before any method that greets by itself.
    """
    try:
        await client.ehlo()
    except SMTPHeloError as refusal:
        if refusal.code not in _NO_EHLO_CODES:
            raise
        await client.helo()


async def _command(client: SMTP, *words: bytes) -> SMTPResponse:
    reply = await client.execute_command(*words)
    _check_sync(client)
    return reply


def _check_sync(client: SMTP) -> None:
    """Call after each reply: surplus octets would be taken for the reply to the next command."""
    if client.protocol is not None and client.protocol._buffer:
        raise _OutOfSync("more replies than commands")


def _has_replied(protocol: SMTPProtocol) -> bool:
    waiter = protocol._response_waiter
    return bool(protocol._buffer) or (waiter is not None and waiter.done())


def _is_positive(reply: SMTPResponse) -> bool:
    return 200 <= reply.code < 300


def _defer_without_progress(results: list[RecipientReply]) -> list[RecipientReply]:
    """Surplus recipients are retried at once only after a transaction that made progress; otherwise defer them."""
    if any(reply.verdict is Verdict.RELAYED for reply in results):
        return results
    return [
        RecipientReply(Verdict.DEFERRED, reply.text, reply.remote) if reply.verdict is Verdict.RETRY_NOW else reply
        for reply in results
    ]


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no reply in time"
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
