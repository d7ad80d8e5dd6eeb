"""Following accounts of a real Dovecot, by the command and by the server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from adapter.cli import main
from adapter.config.loader import Seconds
from adapter.mirror.client import Client
from adapter.store.flags import Flag
from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.processes.fronts import free_port
from tests.support.processes.pulling import configure, following
from tests.support.processes.serve import served
from tests.support.processes.upstream import PASSWORD, Dovecot, put, wire
from tests.support.stores import ADA, folder_names, new_store, rows
from tests.support.waiting import until, wait_until

pytestmark = [
    pytest.mark.needs("dovecot"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Dovecot is started by root"),
]


@pytest.mark.setting("upstream.poll")
async def test_following(dovecot: Dovecot, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """INBOX is followed at once, other folders too where the server has NOTIFY; through broken connections."""
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        client.create("Lists")
        put(client, "INBOX", message(subject="0"))
        async with wire(dovecot.imap) as proxy:
            async with following(transport, dovecot.settings(user, port=proxy.port, poll=Seconds(600.0))):
                await until(lambda: len(rows(transport)) == 1 and "Lists" in folder_names(transport))
                put(client, "INBOX", message(subject="1"))
                await until(lambda: len(rows(transport)) == 2)
                client.select("INBOX")
                client.uid("STORE", "1", "+FLAGS", "(\\Flagged)")
                await until(lambda: rows(transport)[0].flags == Flag.STARRED)
                client.uid("STORE", "1", "+FLAGS", "(\\Deleted)")
                client.expunge()
                await until(lambda: [row.uid for row in rows(transport)] == [2])
                put(client, "Lists", message(subject="heard of"))  # NOTIFY
                await until(lambda: len(rows(transport, "Lists")) == 1)
                proxy.cut()
                await until(lambda: proxy.connections == 2)
                put(client, "INBOX", message(subject="2"))
                await until(lambda: len(rows(transport)) == 2)
            real = Client.offers
            monkeypatch.setattr(Client, "offers", lambda self, name: name != "NOTIFY" and real(self, name))
            async with following(transport, dovecot.settings(user, port=proxy.port)):
                put(client, "Lists", message(subject="a list"))
                await until(lambda: len(rows(transport, "Lists")) == 2)
                client.create("New")
                put(client, "New", message(subject="new"))
                await until(lambda: "New" in folder_names(transport) and len(rows(transport, "New")) == 1)


@pytest.mark.setting("upstream.follow")
def test_the_server_follows(dovecot: Dovecot, tmp_path: Path) -> None:
    """With several workers, through maintenance, and it ends at once."""
    user = dovecot.new_user()
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    config = tmp_path / "markpost.toml"
    more = 'follow = true\nfirst_retry = "100 ms"\n'
    config.write_text(f"[upstream.work]\n{configure(dovecot, user, tmp_path, more)}")
    inbox = root / "mailboxes" / ADA / "inbox"

    def wait_for(count: int) -> None:
        wait_until(lambda: len(list(inbox.glob("*.md"))) == count, lambda: (tmp_path / "log").read_text()[-3000:])

    with dovecot.session(user) as client:
        put(client, "INBOX", message(subject="0"))
        arguments = ("--config", str(config), "--lmtp", str(tmp_path / "l.sock"), "--workers", "2")
        with served(root, *arguments, log=tmp_path / "log") as server:
            wait_for(1)
            put(client, "INBOX", message(subject="1"))
            wait_for(2)
            runner = CliRunner()
            assert runner.invoke(main, ["maintenance", "on", "--root", str(root)]).exit_code == 0
            put(client, "INBOX", message(subject="2"))
            assert runner.invoke(main, ["maintenance", "off", "--root", str(root)]).exit_code == 0
            wait_for(3)
            assert server.stop() == 0
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert PASSWORD not in log
    assert_layers_agree(root, tmp_path / "scratch")


@pytest.mark.setting("upstream.host", "upstream.port", "upstream.user", "upstream.account", "upstream.password_file")
def test_the_command(dovecot: Dovecot, tmp_path: Path) -> None:
    user = dovecot.new_user()
    with dovecot.session(user) as client:
        put(client, "INBOX", message())
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    config = tmp_path / "markpost.toml"

    def run(text: str, *arguments: str) -> tuple[int, str]:
        config.write_text(text)
        done = CliRunner().invoke(main, ["pull", "--root", str(root), "--config", str(config), *arguments])
        assert PASSWORD not in done.output
        return done.exit_code, done.output

    (tmp_path / "secret").write_text(PASSWORD + "\n")
    section = (
        f'host = "localhost"\nport = {dovecot.imap}\ntls = "none"\nuser = "{user}"\naccount = "{ADA}"\n'
        f'password_file = "{tmp_path}/secret"\n'
    )
    assert run("") == (1, "markpost: no section [upstream.NAME] in the configuration: see conf/markpost.toml\n")
    assert run(f"[upstream.work]\n{section}", "home")[0] == 1
    status, output = run('[upstream.work]\nhost = "localhost"\nport = 0\n')
    assert status == 1
    assert "upstream.work.user: is needed" in output
    assert run(f"[upstream.work]\n{section}") == (0, f"work: 1 message (162 B) in 1 folder of {ADA}\n")
    broken = section.replace(str(dovecot.imap), str(free_port()))
    status, output = run(f"[upstream.broken]\n{broken}\n[upstream.work]\n{section}")
    assert status == 75
    assert "markpost: broken: Connect call failed" in output or "markpost: broken: " in output
    assert f"work: 0 messages (0 B) in 1 folder of {ADA}\n" in output
    assert run(f"[upstream.work]\n{section}", "work")[0] == 0
