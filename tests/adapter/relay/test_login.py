"""TLS and login to the smarthost: verified or no mail is sent; the password never leaks."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

from adapter.config.loader import Seconds
from adapter.config.schema import RelaySettings
from adapter.relay.smarthost import Smarthost, Unreachable
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.certificates import make_certificate, make_signed
from tests.support.messages import message
from tests.support.relays import DAVE, queue, relaying, send, settings, status_after_attempt
from tests.support.sink import Sink
from tests.support.waiting import until

PATIENT = {"first_retry": Seconds(600), "longest_retry": Seconds(600)}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost, with its key in the same file."""
    tls = make_certificate(tmp_path_factory.mktemp("tls"), "localhost", local=False)
    path = Path(tls.key).with_name("both.pem")
    path.write_bytes(Path(tls.key).read_bytes() + Path(tls.certificate).read_bytes())
    return path


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def encrypted(sink: Sink, **others: Any) -> RelaySettings:
    chosen = settings(sink, **{**PATIENT, **others})
    return RelaySettings(**{**{name: getattr(chosen, name) for name in chosen.__slots__}, "host": "localhost"})


@pytest.mark.setting("relay.tls", "relay.ca_file")
async def test_mail_is_sent_after_starttls(transport: Transport, certificate: Path) -> None:
    sink = Sink(starttls=server_context(certificate))
    async with sink, relaying(transport, encrypted(sink, tls="starttls", ca_file=str(certificate))):
        send(transport)
        [taken] = await sink.wait_for(1)
    assert taken.octets == message()
    assert sink.commands.index("STARTTLS") < next(i for i, each in enumerate(sink.commands) if each.startswith("MAIL"))
    assert sink.commands.count("EHLO markpost.test") == 2


async def test_mail_is_sent_over_implicit_tls(transport: Transport, certificate: Path) -> None:
    sink = Sink(implicit=server_context(certificate))
    async with sink, relaying(transport, encrypted(sink, tls="implicit", ca_file=str(certificate))):
        send(transport)
        await sink.wait_for(1)


@pytest.mark.setting("relay.certificate", "relay.key")
async def test_client_certificate_is_sent_on_request(transport: Transport, certificate: Path, tmp_path: Path) -> None:
    authority, ours = make_signed(tmp_path / "ours")
    context = server_context(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority)
    sink = Sink(starttls=context)
    async with sink:
        certificates = encrypted(sink, tls="starttls", ca_file=str(certificate), certificate=str(ours))
        async with relaying(transport, certificates):
            send(transport)
            await sink.wait_for(1)
        key = str(ours.with_name("signed.key"))
        apart = encrypted(sink, tls="starttls", ca_file=str(certificate), certificate=str(authority), key=key)
        assert "cannot connect" in await status_after_attempt(transport, apart)
        unknown = encrypted(sink, tls="starttls", ca_file=str(certificate))
        transport.run(op.FinishQueue([op.Finished(row.queue_id, "dropped", "") for row in queue(transport)]))
        assert "cannot connect" in await status_after_attempt(transport, unknown)
    assert len(sink.taken) == 1


async def test_requiretls_is_passed_on(transport: Transport, certificate: Path) -> None:
    sink = Sink(starttls=server_context(certificate), extensions=["REQUIRETLS", "SIZE 0"])
    async with sink, relaying(transport, encrypted(sink, tls="starttls", ca_file=str(certificate))):
        send(transport, envelope=op.RelayEnvelope(requiretls=True))
        [taken] = await sink.wait_for(1)
    assert taken.mail.endswith("REQUIRETLS")


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_untrusted_certificate_is_refused(transport: Transport, certificate: Path, tls: str) -> None:
    context = server_context(certificate)
    async with Sink(**{tls: context}) as sink:  # type: ignore[arg-type]
        status = await status_after_attempt(transport, encrypted(sink, tls=tls))
    assert status.startswith("451 4.4.1 cannot connect to localhost")
    assert "certificate verify failed" in status
    assert not any(command.startswith("MAIL") for command in sink.commands)


async def test_certificate_for_another_name_is_refused(transport: Transport, certificate: Path) -> None:
    async with Sink(starttls=server_context(certificate)) as sink:
        status = await status_after_attempt(
            transport, settings(sink, tls="starttls", ca_file=str(certificate), **PATIENT)
        )
    assert "127.0.0.1" in status
    assert sink.taken == []


async def test_no_mail_without_tls_if_it_is_required(transport: Transport) -> None:
    async with Sink() as sink:
        status = await status_after_attempt(transport, encrypted(sink, tls="starttls"))
    assert "STARTTLS" in status
    assert sink.taken == []


async def test_refused_ehlo_within_tls_is_temporary(transport: Transport, certificate: Path) -> None:
    ehlo_replies = iter([None, "451 4.3.0 busy"])

    def script(verb: str, command: str) -> str | None:
        return next(ehlo_replies, None) if verb == "EHLO" else None

    sink = Sink(script, starttls=server_context(certificate))
    async with sink:
        status = await status_after_attempt(transport, encrypted(sink, tls="starttls", ca_file=str(certificate)))
    assert status.startswith("451 4.4.1 cannot connect")
    assert not any(command.startswith("HELO") for command in sink.commands)


# --- login, against an independent server -----------------------------------------------------------------------------


class Keeper:
    def __init__(self) -> None:
        self.octets: list[bytes] = []

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:
        self.octets.append(envelope.content)
        return "250 2.0.0 kept"


@asynccontextmanager
async def strict_server(certificate: Path) -> AsyncIterator[tuple[Keeper, int]]:
    """aiosmtpd that accepts mail from ada with the right password, over TLS only."""
    keeper = Keeper()

    def authenticate(server: object, session: object, envelope: object, mechanism: str, data: object) -> AuthResult:
        certificates = isinstance(data, LoginPassword) and (data.login, data.password) == (b"ada", "päss word".encode())
        return AuthResult(success=certificates, handled=False)

    def serve() -> SMTP:
        context = server_context(certificate)
        return SMTP(keeper, tls_context=context, require_starttls=True, authenticator=authenticate, auth_required=True)

    server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0)
    try:
        yield keeper, server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.setting("relay.user", "relay.password_file", "relay.helo")
async def test_mail_is_sent_after_login(transport: Transport, certificate: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("päss word\nanything else\n")
    async with strict_server(certificate) as (keeper, port):
        chosen = RelaySettings(
            host="localhost", port=port, ca_file=str(certificate), user="ada", password_file=str(secret), helo="x.test"
        )
        async with relaying(transport, chosen):
            send(transport)
            await until(lambda: len(keeper.octets) == 1)
            await until(lambda: not queue(transport))
    assert keeper.octets == [message()]


@pytest.mark.parametrize("content", ["wrong\n", None])
async def test_failed_login_bounces_nothing(
    transport: Transport, certificate: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_text(content)
    async with strict_server(certificate) as (keeper, port):
        chosen = RelaySettings(
            host="localhost", port=port, ca_file=str(certificate), user="ada", password_file=str(secret), helo="x.test"
        )
        status = await status_after_attempt(transport, chosen)
    assert status == f"451 4.7.0 cannot log in to localhost:{port}" + (" (535)" if content else "")
    assert keeper.octets == []
    assert content or str(secret) in caplog.text


async def test_echoed_password_is_not_logged_or_stored(
    transport: Transport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    repeated = base64.b64encode(b"secret").decode()

    def script(verb: str, command: str) -> str | None:
        if verb == "AUTH":
            return "334 VXNlcm5hbWU6"
        return f"500 5.5.1 unknown command: {command}" if command in (repeated, "YWRh") else None

    async with Sink(script, ["AUTH LOGIN"]) as sink:
        status = await status_after_attempt(transport, settings(sink, user="ada", password_file=str(secret), **PATIENT))
    assert sink.commands[-1] == repeated
    assert status == f"451 4.7.0 cannot log in to 127.0.0.1:{sink.port} (500)"
    assert repeated not in caplog.text


async def test_required_login_bounces_nothing(transport: Transport, certificate: Path) -> None:
    async with strict_server(certificate) as (_, port):
        chosen = RelaySettings(host="localhost", port=port, ca_file=str(certificate), helo="x.test")
        status = await status_after_attempt(transport, chosen)
    assert status.startswith("530 5.7.0")
    assert [row.recipient for row in queue(transport)] == [DAVE]


async def test_password_is_not_sent_in_clear_text_to_a_remote_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host name is remote, but the connection goes to the sink."""
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    async with Sink(extensions=["AUTH PLAIN LOGIN"]) as sink:
        loop = asyncio.get_running_loop()
        real = loop.create_connection

        async def to_the_sink(factory: Any, host: str, port: int, **others: Any) -> Any:
            return await real(factory, "127.0.0.1", port, **others)

        monkeypatch.setattr(loop, "create_connection", to_the_sink)
        for host, refused in (("mail.far.test", True), ("localhost", False), ("127.0.0.1", False)):
            chosen = RelaySettings(host=host, port=sink.port, tls="none", user="ada", password_file=str(secret))
            session = Smarthost(chosen, "x.test")
            if refused:
                with pytest.raises(Unreachable, match="clear text"):
                    await session.open()
                assert not any("AUTH" in command for command in sink.commands)
            else:
                with pytest.raises(Unreachable, match="log in"):  # the sink replies 250 instead of 235
                    await session.open()
                assert any("AUTH" in command for command in sink.commands)
