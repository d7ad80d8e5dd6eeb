"""TLS on the wire: server names, versions, and client certificates."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from adapter.config.schema import Certificate, Lmtp, Settings, Tls
from adapter.net import endpoints
from adapter.server.listeners import Acceptor, ConnectionFactory
from tests.support.certificates import make_certificate, make_signed
from tests.support.messages import message
from tests.support.smtpd import ConnectionEnded, SmtpClient, make_store, serving, trusting
from tests.support.stores import ADA


async def presented(port: int, name: str | None, context: ssl.SSLContext | None = None) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context or trusting(), server_hostname=name or "")
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return shown


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.setting("tls.names")
async def test_each_server_name_has_its_certificate(tmp_path: Path) -> None:
    made = []
    for number, name in enumerate(("mail.example.test", "mail.example.org", "*.example.net")):
        (tmp_path / str(number)).mkdir()
        made.append(make_certificate(tmp_path / str(number), name))
    default, org, net = made
    names = {
        "Mail.Example.org": Certificate(org.certificate, org.key),
        "*.example.net": Certificate(net.certificate, net.key),
    }
    make_store(tmp_path / "store")
    settings = Settings(tls=Tls(default.certificate, default.key, names))
    async with serving(tmp_path / "store", settings, ["imaps", "submissions"]) as running:
        for port in running.ports.values():
            shown = {
                name: await presented(port, name)
                for name in (
                    None,
                    "mail.example.test",
                    "else.test",
                    "mail.example.org",
                    "a.example.net",
                    "b.a.example.net",
                )
            }
            assert shown[None] == shown["mail.example.test"] == shown["else.test"] == shown["b.a.example.net"]
            assert len({shown[name] for name in (None, "mail.example.org", "a.example.net")}) == 3
        old = trusting()
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await presented(running.ports["imaps"], None, old)
        two = trusting()
        two.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await presented(running.ports["imaps"], None, two) == shown[None]


@pytest.mark.setting("tls.client_ca")
async def test_lmtp_peers_must_present_a_certificate(tmp_path: Path) -> None:
    authority, certificate = make_signed(tmp_path / "a")
    _, stranger = make_signed(tmp_path / "b")
    ours = make_certificate(tmp_path)
    make_store(tmp_path / "store")
    settings = Settings(
        tls=Tls(
            ours.certificate,
            ours.key,
            names={"other.test": Certificate(ours.certificate, ours.key)},
            client_ca=str(authority),
        ),
        lmtp=Lmtp(trusted=("127.0.0.0/8", "unix")),
    )

    async with serving(tmp_path / "store", settings, ["lmtp", "smtp"]) as running:

        async def secured(own: Path | None, name: str = "localhost") -> SmtpClient:
            client = await running.hello("lmtp")
            context = trusting()
            if own is not None:
                context.load_cert_chain(own)
            assert (await client.ask("STARTTLS")).code == 220
            await client.writer.start_tls(context, server_hostname=name)
            assert (await client.ask("LHLO client.test")).code == 250
            return client

        client = await running.hello("lmtp")
        assert (await client.ask("MAIL FROM:<x@y.test>")).lines == ["5.7.0 Must issue STARTTLS first"]
        assert (await client.ask("NOOP")).code == 250
        for name in ("localhost", "other.test"):
            proven = await secured(certificate, name)
            assert (await proven.mail(message(), ADA)).code == 250
            for own in (None, stranger):
                with pytest.raises((ConnectionEnded, ssl.SSLError, ConnectionError)):
                    await secured(own, name)
        assert len(running.inbox()) == 2
        # The MX port and Unix sockets require no client certificate.
        mx = await running.hello("smtp")
        await mx.start_tls()
        assert await mx.codes("EHLO c", "MAIL FROM:<x@y.test>") == [250, 250]
        listener = endpoints.listen(endpoints.parse("lmtp", str(tmp_path / "l")))
        with contextlib.closing(Acceptor(listener, ConnectionFactory(running.services).for_listener("lmtp"))):
            local = SmtpClient(*await asyncio.open_unix_connection(tmp_path / "l"))
            assert (await local.reply()).code == 220
            assert await local.codes("LHLO c", "MAIL FROM:<x@y.test>") == [250, 250]
