"""offlineimap: a Maildir kept equal to the account, in both directions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from adapter.store.flags import Flag
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.imapd import PASSWORD, make_store
from tests.support.mail.corpus import varied_message
from tests.support.processes.serving import Served, served
from tests.support.stores import ADA, append, folder, rows

pytestmark = pytest.mark.needs("offlineimap")

COUNT = 60


def _configure(place: Path, server: Served) -> Path:
    config = place / "offlineimaprc"
    config.write_text(
        f"""
[general]
accounts = ada
metadata = {place}/metadata
ui = quiet
fsync = no

[Account ada]
localrepository = near
remoterepository = far

[Repository near]
type = Maildir
localfolders = {place}/mail

[Repository far]
type = IMAP
remotehost = localhost
remoteport = {server.ports["imaps"]}
remoteuser = {ADA}
remotepass = {PASSWORD}
ssl = yes
sslcacertfile = {server.tls.certificate}
"""
    )
    return config


def _sync(config: Path, place: Path) -> None:
    done = subprocess.run(
        ["offlineimap", "-c", str(config), "-o"],
        capture_output=True,
        text=True,
        timeout=120,
        env={"HOME": str(place), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def _messages(place: Path, name: str) -> dict[Path, bytes]:
    messages = {}
    for part in ("cur", "new"):
        messages.update({path: path.read_bytes() for path in (place / "mail" / name / part).iterdir()})
    return messages


def test_synchronisation(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root, ADA)
    numbers = [number for number in range(1, COUNT + 1) if number % 7 not in (4, 6)]  # ASCII or UTF-8
    octets = {uid: varied_message(number) for uid, number in enumerate(numbers, 1)}
    with Transport.open(root) as transport:
        append(transport, "INBOX", *octets.values())
        transport.run(op.ChangeFlags(ADA, folder(transport).id, [1, 2], "add", Flag.READ))
    with served(root, ["imaps"], tmp_path) as server:
        config = _configure(tmp_path, server)
        _sync(config, tmp_path)
        near = _messages(tmp_path, "INBOX")
        assert sorted(near.values()) == sorted(text.replace(b"\r\n", b"\n") for text in octets.values())
        assert sum("S" in path.name.rpartition(",")[2] for path in near) == 2
        # Changes on both sides.
        (tmp_path / "mail/INBOX/new/1.fresh.host").write_bytes(varied_message(70).replace(b"\r\n", b"\n"))
        victim = next(path for path, text in near.items() if text == octets[3].replace(b"\r\n", b"\n"))
        victim.unlink()
        with Transport.open(root) as transport:
            transport.run(op.ChangeFlags(ADA, folder(transport).id, [5], "add", Flag.STARRED))
            transport.run(op.Move(ADA, folder(transport).id, [6], "Trash"))
        _sync(config, tmp_path)
        _sync(config, tmp_path)
        with Transport.open(root) as transport:
            far = {row.uid: transport.content.octets(row.message_id) for row in rows(transport)}
        assert set(far) == set(octets) - {3, 6} | {len(octets) + 1}
        assert all(far[uid] == octets[uid] for uid in far if uid in octets)
        near = _messages(tmp_path, "INBOX")
        assert len(near) == len(far)
        assert sum("F" in path.name.rpartition(",")[2] for path in near) == 1
        assert len(_messages(tmp_path, "Trash")) == 1
        assert server.refused_commands() == []
