"""curl: URLs of mailboxes and messages, search, upload."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from adapter.transport.transport import Transport
from tests.support.imapd import PASSWORD, make_store
from tests.support.mail.corpus import varied_message
from tests.support.processes.serving import Served, served
from tests.support.stores import ADA, append, rows
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.needs("curl")


def _curl(server: Served, path: str, *options: str, kind: str = "imap") -> bytes:
    url = f"{kind}://localhost:{server.ports[kind]}/{path}"
    security = ["--cacert", server.tls.certificate, "--ssl-reqd"]
    done = subprocess.run(
        ["curl", "-sS", *security, "--user", f"{ADA}:{PASSWORD}", *options, url], capture_output=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def test_curl(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root, ADA)
    octets = [varied_message(number) for number in range(1, 8)]
    with Transport.open(root) as transport:
        append(transport, "INBOX", *octets)
    with served(root, ["imap", "imaps"], tmp_path) as server:
        listed = _curl(server, "")
        assert b'* LIST (\\HasNoChildren) "/" INBOX\r\n' in listed
        assert b'* LIST (\\HasNoChildren \\Sent) "/" Sent\r\n' in listed
        for uid, text in enumerate(octets, 1):
            assert _curl(server, f"INBOX;UID={uid}") == text
            assert _curl(server, f"INBOX;MAILINDEX={uid}", kind="imaps") == text
        section = _curl(server, "INBOX;UID=2;SECTION=HEADER.FIELDS%20(SUBJECT)")
        assert section.startswith(b"Subject: ")
        matches = _curl(server, "INBOX?SUBJECT%20%223%22")
        assert matches.startswith(b"* SEARCH ")
        assert _curl(server, "INBOX", "-X", "STORE 1 +FLAGS.SILENT \\Deleted") == b""
        assert _curl(server, "INBOX", "-X", "EXPUNGE") == b"* 1 EXPUNGE\r\n"
        upload = tmp_path / "upload.eml"
        upload.write_bytes(varied_message(99))
        _curl(server, "Drafts", "--upload-file", str(upload))
        for mechanism in ("PLAIN", "LOGIN"):
            assert _curl(server, "Drafts;UID=1", "--login-options", f"AUTH={mechanism}") == varied_message(99)
        assert _curl(server, "INBOX", "-X", "FETCH 1:* (UID FLAGS)").count(b" FETCH (UID ") == 6
    with Transport.open(root) as transport:
        assert len(rows(transport)) == 6
        (draft,) = rows(transport, "Drafts")
        assert transport.content.octets(draft.message_id) == varied_message(99)
