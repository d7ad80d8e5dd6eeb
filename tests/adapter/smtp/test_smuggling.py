"""No input smuggles a second message; any input gets valid replies or a clean close."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from adapter.config.loader import Seconds
from adapter.config.schema import Limits, Settings, Smtp
from tests.support.certificates import make_certificate
from tests.support.smtpd import ConnectionEnded, Running, SmtpClient, make_store, serving, trusting
from tests.support.stores import ADA, BOB

_ENDS = [
    b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r", b"\r.\r\n", b"\r\n.\r", b"\n.\r", b"\r.\n", b"\r\n.\r\r\n",
    b"\r\n.\n\r\n",
    b"\r\n\x00.\r\n", b"\r\n.\x00\r\n", b"\n\r.\r\n", b"\r\r\n.\r\r\n", b"\n\n.\r\n", b"\r\n .\r\n", b"\r\n..\r\n",
    b"\x0a\x2e\x0d\x0a", b"\r\n.\x0b\r\n", b"\xe2\x80\xa8.\xe2\x80\xa8", b"\x85.\x85",
]  # fmt: skip
_SECOND = (
    b"MAIL FROM:<evil@other.test>\r\nRCPT TO:<bob@example.test>\r\nDATA\r\n"
    b"From: evil@other.test\r\nSubject: smuggled\r\n\r\nsmuggled\r\n.\r\n"
)


@pytest_asyncio.fixture(params=["reject", "normalise", "keep"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    make_store(tmp_path / "store")
    settings = dataclasses.replace(Settings(), smtp=Smtp(line_ends=request.param))
    async with serving(tmp_path / "store", settings, ["smtp", "submission", "lmtp"]) as running:
        yield running


async def test_only_crlf_dot_crlf_ends_a_message(server: Running) -> None:
    """At most one message is stored; octets that look like a second one are part of the first or dropped."""
    for number, end in enumerate(_ENDS):
        before = len(server.inbox())
        client = await server.hello()
        first = b"From: x@other.test\r\nSubject: outer %d\r\n\r\nhello" % number
        assert await client.codes("MAIL FROM:<x@other.test>", f"RCPT TO:<{ADA}>", "DATA") == [250, 250, 354]
        # The smuggled transaction follows in the same packet; only its own end is valid.
        client.send(first + end + _SECOND)
        reply = await client.reply()
        assert reply.code in (250, 550, 554), (end, reply)
        assert (await client.ask("NOOP")).code == 250
        client.close()
        assert len(server.inbox()) <= before + 1, end
        assert server.inbox(BOB) == [], end
        if reply.code == 250:
            assert b"Subject: outer %d" % number in server.inbox()[-1]


async def test_bare_line_ends_are_refused_at_the_mx_by_default(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store") as running:
        for octets in (b"A: b\r\n\r\nx\ny\r\n", b"A: b\r\n\r\nx\ry\r\n", b"A: b\n\nx\r\n"):
            client = await running.hello()
            reply = await client.mail(octets)
            assert (reply.code, reply.enhanced) == (550, "5.6.11")
            client.close()
        assert running.inbox() == []


@pytest.mark.setting("smtp.line_ends")
async def test_bare_line_ends_are_normalised_or_kept_as_configured(tmp_path: Path) -> None:
    for rule, expected in (("normalise", b"x\r\ny z\r\n"), ("keep", b"x\ny\rz\r\n")):
        make_store(tmp_path / rule)
        settings = dataclasses.replace(Settings(), smtp=Smtp(line_ends=rule))  # type: ignore[arg-type]
        async with serving(tmp_path / rule, settings) as running:
            client = await running.hello()
            assert (await client.mail(b"A: b\r\n\r\nx\ny\rz\r\n")).code == 250
            assert running.inbox()[0].endswith(b"\r\n\r\n" + expected)


async def test_plaintext_after_starttls_is_dropped(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    settings = dataclasses.replace(Settings(), tls=make_certificate(tmp_path))
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello()
        client.send(b"STARTTLS\r\nMAIL FROM:<evil@other.test>\r\n")
        assert (await client.reply()).code == 220
        await client.writer.start_tls(trusting())
        assert (await client.ask("RCPT TO:<ada@example.test>")).code == 503
        assert (await client.ask("EHLO again")).code == 250
        assert (await client.ask("RCPT TO:<ada@example.test>")).enhanced == "5.5.1"


# --- fuzz ------------------------------------------------------------------------------------------------------------

_WORDS = [
    b"EHLO a", b"HELO a", b"LHLO a", b"MAIL FROM:<x@y.test>", b"RCPT TO:<ada@example.test>", b"RCPT TO:<z@z.test>",
    b"DATA",
    b"BDAT 5\r\nab", b"BDAT 5 LAST\r\nabcde", b"BDAT 0 LAST", b"BDAT -1", b"RSET", b"NOOP", b"VRFY x", b"STARTTLS",
    b"AUTH PLAIN", b"AUTH PLAIN AAAA", b"AUTH LOGIN", b"*", b".", b"..", b"A: b", b"", b"\x00\xff\xfe", b"x" * 3000,
    b"XCLIENT ADDR=1.2.3.4", b"MAIL FROM:<>", b"RCPT TO:<>", b"MAIL FROM:<" + b"a" * 600 + b"@b.test>", b"EXPN",
    b"HELP",
    b"MAIL FROM:<x@y.test> SIZE=99999999999999999999999", b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1", b"\xc3\x28 \xa0\xa1",
]  # fmt: skip


def _noise(source: random.Random, words: Sequence[bytes] = _WORDS) -> bytes:
    pieces = []
    for _ in range(source.randint(1, 25)):
        word = source.choice(words)
        if source.random() < 0.2:
            octets = bytearray(word)
            for _ in range(source.randint(1, 3)):
                octets.insert(source.randint(0, len(octets)), source.randrange(256))
            word = bytes(octets)
        pieces.append(word + source.choice([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\n.\r\n", b""]))
    return b"".join(pieces)


async def _try(running: Running, kind: str, seed: int) -> None:
    source = random.Random(seed)
    client = await running.connect(kind)
    octets = _noise(source)
    try:
        await _send_in_pieces(client, octets, source)
        client.writer.write_eof()
        await _only_valid_replies(client, seed)
    except (ConnectionEnded, ConnectionError):
        pass
    finally:
        client.close()


async def _send_in_pieces(client: SmtpClient, octets: bytes, source: random.Random) -> None:
    position = 0
    while position < len(octets):
        step = source.choice([1, 7, 100, len(octets)])
        client.send(octets[position : position + step])
        position += step
        if source.random() < 0.1:
            await asyncio.sleep(0)


async def _only_valid_replies(client: SmtpClient, seed: int) -> None:
    """All replies until the connection ends."""
    while True:
        reply = await client.reply()
        assert 200 <= reply.code < 560, (seed, reply)
        assert reply.code not in (451, 452), (seed, reply)  # no internal error


@pytest.mark.parametrize("kind", ["smtp", "submission", "lmtp"])
async def test_noise_gets_valid_replies_and_a_clean_close(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store") as running:
        for start in range(0, 200, 20):
            await asyncio.gather(*(_try(running, kind, seed) for seed in range(start, start + 20)))
        assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]
        for octets in running.inbox():
            assert octets.startswith((b"Return-Path: <x@y.test>\r\nReceived: ", b"Return-Path: <>\r\nReceived: "))
        assert running.inbox(BOB) == []
        client = await running.hello(kind)
        assert (await client.ask("NOOP")).code == 250


_SUBMITTED = b"MAIL FROM:<%b>\r\nRCPT TO:<bob@example.test>\r\nDATA\r\nFrom: %b\r\n\r\nhello\r\n."
_SUBMISSION_WORDS = [
    *_WORDS,
    *[b"MAIL FROM:<ada@example.test> RET=HDRS ENVID=x", b"RCPT TO:<bob@example.test> NOTIFY=NEVER", b"DATA"] * 3,
    *[b"From: ada@example.test", b"From: bob@example.test", b"MAIL FROM:<bob@example.test>", b"\r\n."] * 2,
    _SUBMITTED % (b"ada@example.test", b"ada@example.test"),
    _SUBMITTED % (b"ada@example.test", b"bob@example.test"),
    _SUBMITTED % (b"bob@example.test", b"ada@example.test"),
    b"MAIL FROM:<ada@example.test> BODY=BINARYMIME REQUIRETLS",
]  # fmt: skip
#: Ends a message, a login or a transaction that the noise has begun; TLS knows no half-closed connections.
_END_OF_NOISE = b"\r\n.\r\n*\r\nQUIT\r\n"


async def _try_submission(running: Running, seed: int, *, login: bool) -> None:
    source = random.Random(seed)
    client = await running.hello("submission")
    await client.start_tls()
    assert (await client.ask("EHLO a")).code == 250
    if login:
        assert (await client.login()).code == 235
    try:
        await _send_in_pieces(client, _noise(source, _SUBMISSION_WORDS) + _END_OF_NOISE, source)
        await _only_valid_replies(client, seed)
    except (ConnectionEnded, ConnectionError, ssl.SSLError):
        pass
    finally:
        client.close()


@pytest.mark.parametrize("login", [False, True])
async def test_noise_within_tls_and_after_a_login(
    tmp_path: Path, login: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make_store(tmp_path / "store")
    limits = Limits(data_idle=Seconds(1.0))  # ends a chunk that is longer than the noise
    async with serving(
        tmp_path / "store", Settings(tls=make_certificate(tmp_path), limits=limits), ["submission"]
    ) as running:
        for start in range(0, 250, 25):
            batch = range(start, start + 25)
            await asyncio.gather(*(_try_submission(running, seed, login=login) for seed in batch))
        assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]
        delivered = [*running.inbox(BOB), *running.inbox(ADA), *running.inbox(ADA, "Sent")]
        assert bool(delivered) == login
        for octets in delivered:
            header = octets.partition(b"\r\n\r\n")[0] + b"\r\n"
            assert header.startswith((b"Return-Path: <ada@example.test>\r\n", b"Return-Path: <>\r\n"))
            assert re.search(rb" with (?:ESMTPSA|SMTP) id \S+\r\n\t\(using TLS", header)  # SMTP: after HELO
            assert re.findall(rb"^From:(.*)$", header, re.MULTILINE | re.IGNORECASE) == [b" ada@example.test\r"]
        assert running.inbox(BOB, "Sent") == []


async def test_replies_to_a_flood_of_pipelined_commands_are_in_order(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store") as running:
        client: SmtpClient = await running.hello()
        lines = [f"VRFY user{number}" if number % 3 else f"BAD{number}" for number in range(6000)]

        async def send() -> None:
            for start in range(0, len(lines), 500):
                client.send("".join(f"{line}\r\n" for line in lines[start : start + 500]))
                await client.writer.drain()

        sending = asyncio.create_task(send())
        codes = [(await client.reply()).code for _ in lines]
        await sending
        assert codes == [252 if number % 3 else 500 for number in range(6000)]
