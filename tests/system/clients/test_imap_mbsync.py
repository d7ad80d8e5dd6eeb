"""mbsync: two-way synchronisation of a thousand messages, with flags and moves, over TLS."""

from __future__ import annotations

import re
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

pytestmark = pytest.mark.needs("mbsync")

COUNT = 1000
#: The header field by which mbsync finds its own upload.
_TUID = re.compile(rb"^X-TUID: .*\r?\n", re.MULTILINE)
_NAME = re.compile(r"(.+),U=(\d+)(?::2,([A-Z]*))?\Z")


def _configure(place: Path, server: Served) -> Path:
    config = place / "mbsyncrc"
    config.write_text(
        f"""
IMAPAccount far
Host localhost
Port {server.ports["imaps"]}
User {ADA}
Pass {PASSWORD}
SSLType IMAPS
CertificateFile {server.tls.certificate}

IMAPStore far
Account far

MaildirStore near
Path {place}/mail/
Inbox {place}/mail/INBOX
SubFolders Verbatim

Channel all
Far :far:
Near :near:
Patterns *
Create Both
Remove Both
Expunge Both
SyncState *
CopyArrivalDate yes
"""
    )
    (place / "mail").mkdir()
    return config


def _sync(config: Path) -> None:
    done = subprocess.run(["mbsync", "-q", "-c", str(config), "-a"], capture_output=True, text=True, timeout=170)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _files(place: Path, name: str) -> dict[int, tuple[Path, str]]:
    """UID -> file and flags."""
    messages = {}
    for path in [*(place / "mail" / name / "cur").iterdir(), *(place / "mail" / name / "new").iterdir()]:
        match = _NAME.match(path.name)
        assert match, path.name
        messages[int(match[2])] = (path, match[3] or "")
    return messages


def _maildir(place: Path, name: str) -> dict[int, tuple[bytes, str]]:
    """UID -> octets and flags."""
    return {uid: (_TUID.sub(b"", path.read_bytes()), flags) for uid, (path, flags) in _files(place, name).items()}


def _near(text: bytes) -> bytes:
    """The octets as a Maildir stores them: with LF line ends."""
    return text.replace(b"\r\n", b"\n")


def test_two_way_synchronisation(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root, ADA)
    octets = {number: varied_message(number) for number in range(1, COUNT + 1)}
    with Transport.open(root) as transport:
        append(transport, "INBOX", *(octets[number] for number in range(1, COUNT + 1)))
        inbox = folder(transport)
        transport.run(op.ChangeFlags(ADA, inbox.id, range(1, 101), "add", Flag.READ))
        transport.run(op.CreateFolder(ADA, "Work/Plans"))
    with served(root, ["imaps"], tmp_path) as server:
        config = _configure(tmp_path, server)
        _sync(config)
        near = _maildir(tmp_path, "INBOX")
        assert {uid: text for uid, (text, _) in near.items()} == {uid: _near(text) for uid, text in octets.items()}
        assert {uid for uid, (_, flags) in near.items() if "S" in flags} == set(range(1, 101))
        assert _maildir(tmp_path, "Work/Plans") == {}

        # The near side: flags, a move, a new message, a removal.
        files = {uid: path for uid, (path, _) in _files(tmp_path, "INBOX").items()}
        for uid in range(101, 151):
            files[uid].rename(tmp_path / f"mail/INBOX/cur/{files[uid].name.partition(':')[0]}:2,FS")
        for uid in range(151, 161):
            name = files[uid].name.partition(",")[0]
            files[uid].rename(tmp_path / f"mail/Archive/cur/{name}:2,")
        for uid in range(161, 171):
            files[uid].unlink()
        (tmp_path / "mail/INBOX/new/1.new.host").write_bytes(_near(varied_message(5001)))
        # Changes on the far side before the next sync: flags and a move.
        with Transport.open(root) as transport:
            transport.run(op.ChangeFlags(ADA, inbox.id, range(201, 251), "add", Flag.ANSWERED))
            transport.run(op.Move(ADA, inbox.id, range(251, 261), "Trash"))
        _sync(config)
        _sync(config)

        gone = set(range(151, 171)) | set(range(251, 261))
        with Transport.open(root) as transport:
            far = {row.uid: row for row in rows(transport)}
            assert set(far) == (set(octets) - gone) | {COUNT + 1}
            assert all(far[uid].flags == Flag.STARRED | Flag.READ for uid in range(101, 151))
            uploaded = transport.content.octets(far[COUNT + 1].message_id)
            assert _TUID.sub(b"", uploaded) == varied_message(5001)
            archived = rows(transport, "Archive")
            assert {_TUID.sub(b"", transport.content.octets(row.message_id)) for row in archived} == {
                octets[uid] for uid in range(151, 161)
            }
            assert all(row.flags & Flag.ARCHIVED for row in archived)
            assert all(
                transport.content.octets(row.message_id) == octets[uid] for uid, row in far.items() if uid in octets
            )
        near = _maildir(tmp_path, "INBOX")
        assert len(near) == COUNT + 1 - len(gone)
        assert sum("R" in flags for _, flags in near.values()) == 50
        assert len(_maildir(tmp_path, "Trash")) == 10
        assert len(_maildir(tmp_path, "Archive")) == 10
        assert server.refused_commands() == []

        # Nothing is left to do: a further run changes neither side.
        before = _maildir(tmp_path, "INBOX")
        _sync(config)
        assert _maildir(tmp_path, "INBOX") == before
