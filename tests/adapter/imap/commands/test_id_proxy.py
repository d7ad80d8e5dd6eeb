"""The client address that a proxy sends in ID: from trusted peers only, for limits and logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from adapter.config.schema import ImapSettings, Limits, Settings
from tests.support.imapd import PASSWORD, Running, make_store, serving
from tests.support.stores import ADA

LOOPBACK = ("127.0.0.0/8",)
CLIENT = "192.0.2.7"


def _address(server: Running) -> str:
    return server.session.peer.address


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store", ADA)
    return tmp_path / "store"


async def test_trusted_proxy_sets_the_client_address_once_before_login(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(root, Settings(imap=ImapSettings(id_from=LOOPBACK))) as server:
        client = await server.connect()
        await client.line()
        await client.ok(f'ID ("x-session-id" "abc" "X-Originating-IP" "::ffff:{CLIENT}" "x-originating-port" "1")')
        assert _address(server) == CLIENT
        await client.ok('ID ("x-originating-ip" "192.0.2.8")')
        assert _address(server) == CLIENT
        await client.ok(f"LOGIN {ADA} {PASSWORD}")  # the connection itself is from loopback, so TLS is not required
        await client.ok('ID ("x-originating-ip" "192.0.2.9")')
        assert _address(server) == CLIENT
    assert f" {CLIENT} logged in as {ADA}" in caplog.text


@pytest.mark.parametrize("address", ['"nonsense"', '""', "NIL", '"192.0.2.7 192.0.2.8"'])
async def test_invalid_address_is_ignored(root: Path, address: str) -> None:
    async with serving(root, Settings(imap=ImapSettings(id_from=LOOPBACK))) as server:
        client = await server.connect()
        await client.line()
        await client.ok(f'ID ("x-originating-ip" {address})')
        assert _address(server) == "127.0.0.1"
        await client.ok(f"LOGIN {ADA} {PASSWORD}")


@pytest.mark.parametrize("proxies", [(), ("192.0.2.0/24", "unix")])
async def test_address_from_an_untrusted_peer_is_ignored(root: Path, proxies: tuple[str, ...]) -> None:
    async with serving(root, Settings(imap=ImapSettings(id_from=proxies))) as server:
        client = await server.connect()
        await client.line()
        await client.ok(f'ID ("x-originating-ip" "{CLIENT}")')
        assert _address(server) == "127.0.0.1"


async def test_connections_are_counted_for_the_client(root: Path) -> None:
    settings = Settings(imap=ImapSettings(id_from=LOOPBACK), limits=Limits(connections_per_ip=1))
    async with serving(root, settings) as server:
        clients = [await server.connect() for _ in range(3)]
        for client in clients:
            await client.line()
        await clients[0].ok(f'ID ("x-originating-ip" "{CLIENT}")')
        clients[1].start(f'ID ("x-originating-ip" "{CLIENT}")')
        assert (await clients[1].line()).startswith(b"* BYE [UNAVAILABLE]")
        await clients[2].ok('ID ("x-originating-ip" "192.0.2.8")')
        await clients[0].close()
        while server.services.admission.total > 1:
            await clients[2].ok("NOOP")
        another = await server.connect()
        await another.line()
        await another.ok(f'ID ("x-originating-ip" "{CLIENT}")')
