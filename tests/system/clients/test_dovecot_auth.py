"""Users of a real Dovecot simply work: they log in through its auth socket, and mail for them finds them."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapter.accounts.dovecot.auth_socket import AuthSocket, UnavailableError, UserdbSocket
from adapter.config import loader
from adapter.config.schema import Domains, Dovecot, Settings
from adapter.transport import operations as op
from adapter.transport.transport import create_store
from tests.support.imapd import ImapClient
from tests.support.messages import message
from tests.support.paths import REPOSITORY
from tests.support.processes.dovecot_users import DovecotUsers, dovecot_users
from tests.support.smtpd import Running, serving

pytestmark = [
    pytest.mark.needs("dovecot"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Dovecot's master process wants to be root"),
]

CONF = REPOSITORY / "conf" / "dovecot-users"
USERS = """\
carol@there.test:{PLAIN}her secret:::::
dan@there.test:{SSHA256}3cr/n/7U6++JMrnh04AzOuzTyz29DIQZ6p0sb3j7ZE5zYWx0:::::
erin@there.test:{PLAIN}hers:::::
frank@there.test:{PLAIN}his:::::
"""


@pytest.fixture
async def dovecot(tmp_path: Path) -> AsyncIterator[DovecotUsers]:
    with dovecot_users(tmp_path / "d") as running:
        running.users.write_text(USERS)
        yield running


def settings(dovecot: DovecotUsers) -> Settings:
    """The sockets are where ``conf/dovecot-users`` says, but for the directory."""
    example = loader.load(Settings, str(CONF / "markpost.toml"), {}).dovecot
    assert [os.path.basename(example.auth_socket), os.path.basename(example.userdb_socket)] == [
        os.path.basename(dovecot.auth_socket), os.path.basename(dovecot.userdb_socket),
    ]  # fmt: skip
    return Settings(
        dovecot=Dovecot(auth_socket=dovecot.auth_socket, userdb_socket=dovecot.userdb_socket),
        domains=Domains(local=("there.test",), catch_all={"caught.test": "carol@there.test"}),
    )


@pytest.fixture
async def server(dovecot: DovecotUsers, tmp_path: Path) -> AsyncIterator[Running]:
    create_store(str(tmp_path / "store"))
    async with serving(tmp_path / "store", settings(dovecot), ["imap", "submission", "lmtp"]) as running:
        yield running


async def imap(server: Running) -> ImapClient:
    client = await ImapClient.connect(server.ports["imap"])
    assert (await client.line()).startswith(b"* OK")
    return client


async def imap_login(server: Running, user: str, password: str) -> bytes:
    client = await imap(server)
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (user, password)]
    return (await client.run(f'LOGIN "{quoted[0]}" "{quoted[1]}"'))[1]


@pytest.mark.setting("dovecot.auth_socket")
async def test_users_log_in_and_have_a_mailbox(server: Running) -> None:
    client = await imap(server)
    assert b"SCRAM" not in (await client.ok("CAPABILITY"))[0]
    await client.ok('LOGIN Carol@There.test "her secret"')
    assert len(await client.ok('LIST "" *')) >= 6
    assert (await client.append("INBOX", message())).startswith(b"OK")
    sender = await server.hello("submission")
    assert (await sender.login("carol@there.test", "her secret")).code == 235
    await sender.mail(b"From: carol@there.test\r\n\r\nHi\r\n", "carol@there.test", sender="carol@there.test")
    assert len(server.inbox("carol@there.test")) == 2
    assert (await imap_login(server, "carol@there.test", "wrong")).startswith(b"NO [AUTHENTICATIONFAILED]")
    assert (await imap_login(server, "nobody@there.test", "her secret")).startswith(b"NO [AUTHENTICATIONFAILED]")
    assert server.services.store is not None
    assert not server.services.store.authenticator._cache  # Dovecot is asked every time


@pytest.mark.setting("dovecot.userdb_socket")
async def test_mail_finds_users_before_they_first_log_in(server: Running) -> None:
    lmtp = await server.hello("lmtp")
    assert await lmtp.codes(
        "MAIL FROM:<x@y.test>", "RCPT TO:<dan+lists@there.test>", "RCPT TO:<nobody@there.test>",
        "RCPT TO:<x@elsewhere.test>", "RCPT TO:<any@caught.test>",
    ) == [250, 250, 550, 550, 550]  # fmt: skip
    assert await lmtp.codes("RCPT TO:<Carol@there.test>", "RCPT TO:<any@caught.test>") == [250, 250]
    await lmtp.codes("RSET")
    await lmtp.mail(message(), "dan@there.test")
    assert len(server.inbox("dan@there.test")) == 1


async def test_malformed_names_are_unknown_users(server: Running) -> None:
    authenticator = AuthSocket(server.services.settings.dovecot.auth_socket, 10)
    userdb = UserdbSocket(server.services.settings.dovecot.userdb_socket, 10)
    names = (
        "a\tb",
        "a\nUSER\t9\tcarol@there.test",
        "a\x01t",
        "carol@there.test\0",
        "",
        "\t",
        "x" * 10_000,
        "ü\r",
        "%u",
    )
    tried = [authenticator.login(name, "her secret", "192.0.2.1") for name in names]
    assert not any(await asyncio.gather(*tried, authenticator.login("carol@there.test", "her secret\0", "unix")))
    assert not any(await asyncio.gather(*(userdb.has_user(name) for name in names)))
    assert await authenticator.login("carol@there.test", "her secret", "2001:db8::1") == "carol@there.test"
    assert await userdb.has_user("carol@there.test") is True
    many = [authenticator.login(f"{name}@there.test", "hers", "") for name in ("erin", "frank", "nobody") * 30]
    assert await asyncio.gather(*many) == ["erin@there.test", None, None] * 30
    odd = ('a"b@there.test', "a\\@there.test", "carol@there.test\x7f", "(carol)@there.test")
    results = await asyncio.gather(*(imap_login(server, name, "her secret") for name in odd))
    assert all(answer.startswith(b"NO ") for answer in results), results
    plain = base64.b64encode(b"carol@there.test\0dan@there.test\0x").decode()
    submission = await server.hello("submission")
    assert (await submission.ask(f"AUTH PLAIN {plain}")).code == 535
    authenticator.close()
    userdb.close()


async def test_a_deactivated_account_stays_so(server: Running) -> None:
    assert (await imap_login(server, "erin@there.test", "hers")).startswith(b"OK")
    server.transport.run(op.Deregister("erin@there.test"))
    assert (await imap_login(server, "erin@there.test", "hers")).startswith(b"NO [AUTHENTICATIONFAILED]")
    lmtp = await server.hello("lmtp")
    assert await lmtp.codes("MAIL FROM:<x@y.test>") == [250]
    assert (await lmtp.ask("RCPT TO:<erin@there.test>")).enhanced == "5.2.1"


async def test_failure_of_dovecot_is_temporary(server: Running, dovecot: DovecotUsers) -> None:
    assert (await imap_login(server, "carol@there.test", "her secret")).startswith(b"OK")
    lmtp = await server.hello("lmtp")
    assert await lmtp.codes("MAIL FROM:<x@y.test>") == [250]

    await asyncio.to_thread(dovecot.stop)
    assert (await imap_login(server, "carol@there.test", "her secret")).startswith(b"NO [UNAVAILABLE]")
    submission = await server.hello("submission")
    assert (await submission.login("carol@there.test", "her secret")).code == 454
    assert (await lmtp.ask("RCPT TO:<dan@there.test>")).enhanced == "4.3.0"
    assert (await lmtp.ask("RCPT TO:<carol@there.test>")).code == 250  # in the cache: Dovecot is not asked

    await asyncio.to_thread(dovecot.start)
    assert (await imap_login(server, "carol@there.test", "her secret")).startswith(b"OK")
    assert (await lmtp.ask("RCPT TO:<dan@there.test>")).code == 250

    assert (await imap_login(server, "frank@broken.test", "his")).startswith(b"NO [UNAVAILABLE]")  # Dovecot's own


async def test_a_dovecot_without_plain_is_no_help(tmp_path: Path) -> None:
    with (
        dovecot_users(tmp_path / "d", "cram-md5") as dovecot,
        pytest.raises(UnavailableError, match="does not offer PLAIN"),
    ):
        await AuthSocket(dovecot.auth_socket, 10).login("carol@there.test", "x", "")
