"""SIGHUP and renewed certificates: no session is dropped, changes take effect, errors change nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import imaplib
import logging
import signal
import smtplib
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner

from adapter.cli import main
from adapter.config.loader import ConfigError, Seconds
from adapter.config.schema import Limits, Listen, Login, RelaySettings, Server, Settings, Submission, Tls
from adapter.server import reload
from adapter.server.reload import Reloader, restart_on_change
from adapter.server.settings import SettingsSource
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.processes.serve import Served, served
from tests.support.relays import DAVE
from tests.support.sink import Sink
from tests.support.smtpd import PASSWORD, SmtpClient, make_store, serving, trusting
from tests.support.stores import ADA, BOB
from tests.support.waiting import PATIENCE, until, wait_until

OURS = b"From: ada@example.test\r\nSubject: Ours\r\n\r\nHello\r\n"
KINDS = ("smtp", "submissions", "imap", "imaps")


class Configured:
    """A server with a configuration that can be rewritten."""

    def __init__(self, directory: Path, tls: Tls) -> None:
        self.tls = tls
        self.file = directory / "markpost.toml"
        self.log = directory / "log"
        self.write()

    def write(self, text: str = "") -> None:
        self.file.write_text(f'[tls]\ncertificate = "{self.tls.certificate}"\nkey = "{self.tls.key}"\n{text}')

    async def hup(self, server: Served, expected: str) -> str:
        """Send SIGHUP; return the last line of the log after the expected one."""
        before = self.log.read_text().count(expected)
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: self.log.read_text().count(expected) > before)
        return self.log.read_text().splitlines()[-1]


def presented(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=PATIENCE)


@pytest.mark.setting("imap.folders")
async def test_sighup_changes_settings_without_dropping_sessions(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root)
    configured = Configured(tmp_path, make_certificate(tmp_path))
    listeners = [option for kind in KINDS for option in (f"--{kind}", "127.0.0.1:0")]
    with served(root, "--config", str(configured.file), *listeners, log=configured.log) as server:
        ports = server.ports
        mx = smtplib.SMTP("127.0.0.1", ports["smtp"], timeout=PATIENCE)
        mx.ehlo()
        assert mx.mail("x@y.test")[0] == 250
        user = smtplib.SMTP_SSL("127.0.0.1", ports["submissions"], timeout=PATIENCE, context=trusting())
        user.login(ADA, PASSWORD)
        imap = imaplib.IMAP4_SSL("127.0.0.1", ports["imaps"], ssl_context=trusting(), timeout=PATIENCE)
        imap.login(ADA, PASSWORD)
        assert imap.select()[0] == "OK"
        before = presented(ports["imaps"])
        assert mx.rcpt("office@example.test")[0] == 550

        make_certificate(tmp_path)
        configured.write(
            '[limits]\nmessage_size = 12345\nrecipients = 1\n[aliases]\n"office@example.test" = ["ada@example.test"]\n'
            '[imap]\nfolders = 1\n[quota]\nmessages = 3\n[server]\nthreads = 9\nhostname = "new.test"\n'
            '[listen]\nbacklog = 7\n[login]\nmechanisms = ["PLAIN"]\n'
        )
        last = await configured.hup(server, "restart needed for")
        assert last.endswith("restart needed for server.threads, listen.backlog")
        text = configured.log.read_text()
        assert "settings and certificates reloaded: server.hostname, login.mechanisms, limits.message_size," in text
        # New connections see the new certificate and the new limits.
        assert presented(ports["imaps"]) != before
        assert presented(ports["submissions"]) == presented(ports["imaps"])
        with smtplib.SMTP("127.0.0.1", ports["smtp"], timeout=PATIENCE) as new:
            assert b"new.test" in new.ehlo()[1]
            assert new.esmtp_features["size"] == "12345"
            new.mail("x@y.test")
            assert [new.rcpt(ADA)[0], new.rcpt(BOB)[0]] == [250, 452]
        # Open sessions continue, and use the changed settings of accounts.
        assert mx.rcpt("office@example.test")[0] == 250
        assert mx.rcpt(BOB)[0] == 250
        assert mx.data(message())[0] == 250
        # Their next transaction has the new limits.
        assert [mx.mail("x@y.test")[0], mx.rcpt(ADA)[0], mx.rcpt(BOB)[0], mx.rset()[0]] == [250, 250, 452, 250]
        assert mx.mail("x@y.test", ["SIZE=12346"])[0] == 552
        assert user.sendmail(ADA, [BOB], OURS) == {}
        await until(lambda: imap.noop()[0] == "OK" and imap.search(None, "ALL")[1] == [b"1"])
        assert imap.create("another")[0] == "NO"
        assert imap._simple_command("GETQUOTAROOT", "INBOX")[0] == "OK"
        # A new password or registration takes effect at once, without SIGHUP.
        run = CliRunner().invoke
        eve = ["account", "add", "eve@example.test", "--root", str(root), "--password-stdin"]
        assert run(main, eve, input="hunter2\n").exit_code == 0
        with imaplib.IMAP4("127.0.0.1", ports["imap"], timeout=PATIENCE) as fresh:
            assert fresh.login("eve@example.test", "hunter2")[0] == "OK"

        now = presented(ports["imaps"])
        make_certificate(tmp_path)
        configured.write('[limits]\nmessage_size = 1\nidel = "5 min"\n')
        last = await configured.hup(server, "ERROR")
        assert last.endswith(
            f"settings: reload failed ({configured.file}:6: unknown setting 'limits.idel'; did you mean 'idle'?);"
            " keeping the current ones"
        )
        configured.write('[limits]\nmessage_size = 1\nexempt = ["here"]\n')
        assert f"{configured.file}:6: limits.exempt" in await configured.hup(server, "ERROR")
        (tmp_path / "key.pem").write_text("broken")
        configured.write("[limits]\nmessage_size = 1\n")
        assert "not a certificate with its key" in await configured.hup(server, "ERROR")
        assert presented(ports["imaps"]) == now
        with smtplib.SMTP("127.0.0.1", ports["smtp"], timeout=PATIENCE) as new:
            new.ehlo()
            assert new.esmtp_features["size"] == "12345"
        assert mx.noop()[0] == 250
        assert imap.noop()[0] == "OK"
        imap.shutdown()
        mx.close()
        user.close()
        assert server.stop() == 0
    assert "Traceback" not in configured.log.read_text()


async def test_renewed_certificates_are_reloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload, "_CERTIFICATE_CHECK_SECONDS", 0.05)
    tls = make_certificate(tmp_path)
    make_store(tmp_path / "store")
    settings = Settings(tls=tls)
    async with serving(tmp_path / "store", settings, ["submissions"]) as running:
        reloading = asyncio.create_task(Reloader(running.services, SettingsSource(lambda: settings)).run())
        before = await asyncio.to_thread(presented, running.ports["submissions"])
        client = await SmtpClient.open(running.ports["submissions"], trusting())
        assert (await client.reply()).code == 220
        key = (tmp_path / "key.pem").read_text()
        make_certificate(tmp_path)
        renewed = (tmp_path / "key.pem").read_text()
        # One file after the other: in between they do not match.
        (tmp_path / "key.pem").write_text(key)
        with caplog.at_level(logging.ERROR):
            await until(lambda: "certificates: reload failed" in caplog.text)
            await asyncio.sleep(0.3)
        assert caplog.text.count("certificates: reload failed") <= 2, caplog.text
        assert await asyncio.to_thread(presented, running.ports["submissions"]) == before
        (tmp_path / "key.pem").write_text(renewed)
        await asyncio.to_thread(wait_until, lambda: presented(running.ports["submissions"]) != before)
        assert (await client.ask("EHLO c")).code == 250
        assert (await client.login()).code == 235
        reloading.cancel()


@pytest.mark.setting("relay.host", "relay.port")
async def test_smarthost_can_change(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    async with Sink() as sink, serving(tmp_path / "store", Settings(), ["submission"]) as running:
        settings = running.services.settings
        client = await running.hello("submission")
        assert (await client.login()).code == 235
        assert await client.codes(f"MAIL FROM:<{ADA}>", f"RCPT TO:<{DAVE}>", "RSET") == [250, 550, 250]
        relay = RelaySettings(host="127.0.0.1", port=sink.port, tls="none")
        source = SettingsSource(
            lambda: dataclasses.replace(settings, relay=relay, submission=Submission(keep_sent=False))
        )
        await Reloader(running.services, source).reload()
        assert (await client.mail(OURS, DAVE, sender=ADA)).code == 250
        [taken] = await sink.wait_for(1)
        assert taken.addresses == [DAVE]
        assert running.inbox(folder="Sent") == []


async def test_replaced_smarthost_is_abandoned_soon(tmp_path: Path) -> None:
    silence = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silence.set()
        await reader.read()
        writer.close()

    make_store(tmp_path / "store")
    before = await asyncio.start_server(mute, "127.0.0.1", 0)
    settings = Settings(
        relay=RelaySettings(host="127.0.0.1", port=before.sockets[0].getsockname()[1], tls="none"),
        server=Server(drain=Seconds(0.2)),
    )
    async with Sink() as sink, serving(tmp_path / "store", settings, ["submission"]) as running:
        client = await running.hello("submission")
        assert (await client.login()).code == 235
        assert (await client.mail(OURS, DAVE, sender=ADA)).code == 250
        await silence.wait()
        relay = dataclasses.replace(settings.relay, port=sink.port)
        source = SettingsSource(lambda: dataclasses.replace(running.services.settings, relay=relay))
        await Reloader(running.services, source).reload()
        [taken] = await sink.wait_for(1)
        assert taken.addresses == [DAVE]
    before.close()


async def test_job_restarts_when_its_settings_change(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", kinds=()) as running:
        services, stop = running.services, asyncio.Event()
        runs: list[int] = []

        async def job(ended: asyncio.Event) -> None:
            runs.append(services.settings.limits.hops)
            await ended.wait()

        def hops(number: int) -> None:
            limits = dataclasses.replace(services.settings.limits, hops=number)
            reload.apply_settings(services, dataclasses.replace(services.settings, limits=limits), services.hostname)

        task = asyncio.create_task(restart_on_change(services, stop, lambda: services.settings.limits.hops, job))
        await asyncio.sleep(0)
        callbacks = len(services.after_reload)
        for number in (100, 7, 7, 8):
            hops(number)
            await until(lambda number=number: runs[-1] == number)  # type: ignore[misc]
            await asyncio.sleep(0.02)  # time for an unexpected additional run
        assert runs == [100, 7, 8]
        assert len(services.after_reload) == callbacks
        stop.set()
        await asyncio.wait_for(task, PATIENCE)
        assert len(services.after_reload) == callbacks - 1


def test_new_worker_uses_the_live_settings() -> None:
    now = Settings()
    mistake: ConfigError | None = None

    def reread() -> Settings:
        if mistake is not None:
            raise mistake
        return now

    source = SettingsSource(reread)
    now = Settings(
        server=Server(threads=9, drain=now.server.drain),
        listen=Listen(backlog=3),
        login=Login(threads=9, waiting=9),
        limits=Limits(hops=9),
        aliases={"a@b.test": (ADA,)},
    )
    latest = source.latest()
    assert latest == Settings(login=Login(waiting=9), limits=Limits(hops=9), aliases={"a@b.test": (ADA,)})
    mistake = ConfigError("a mistake")
    assert source.latest() == Settings()
