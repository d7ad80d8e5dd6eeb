"""``markpost autoconfig``: what it prints is valid, and says what the server offers."""

from __future__ import annotations

import plistlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.cli import main
from tests.support.certificates import make_certificate

ADA = "ada@example.org"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["autoconfig", *arguments])


def servers(text: str, tag: str) -> list[tuple[str | None, ...]]:
    provider = ET.fromstring(text).find("emailProvider")
    assert provider is not None
    return [
        tuple(server.findtext(each) for each in ("hostname", "port", "socketType", "username", "authentication"))
        for server in provider.findall(tag)
    ]


@pytest.fixture
def config(tmp_path: Path) -> str:
    tls = make_certificate(tmp_path)
    file = tmp_path / "markpost.toml"
    file.write_text(
        f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n[server]\nhostname = "mail.example.org"\n'
        '[listen]\nimap = ["0.0.0.0:143", "[::]:143"]\nimaps = ["[::]:9993"]\nsubmission = ["0.0.0.0:587"]\n'
    )
    return str(file)


def test_thunderbird(config: str) -> None:
    text = run(ADA, "--format", "thunderbird", "--config", config).stdout
    root = ET.fromstring(text)
    assert (root.tag, root.get("version")) == ("clientConfig", "1.1")
    assert root.findtext("emailProvider/domain") == "example.org"
    user = ("%EMAILADDRESS%", "password-cleartext")
    assert servers(text, "incomingServer") == [
        ("mail.example.org", "9993", "SSL", *user),
        ("mail.example.org", "143", "STARTTLS", *user),
    ]
    assert servers(text, "outgoingServer") == [("mail.example.org", "587", "STARTTLS", *user)]


def test_apple(config: str) -> None:
    text = run(ADA, "--format", "apple", "--config", config).stdout
    profile = plistlib.loads(text.encode())
    [account] = profile["PayloadContent"]
    assert (profile["PayloadType"], account["PayloadType"]) == ("Configuration", "com.apple.mail.managed")
    assert (
        account["EmailAddress"] == account["IncomingMailServerUsername"] == account["OutgoingMailServerUsername"] == ADA
    )
    incoming = [account[f"IncomingMailServer{key}"] for key in ("HostName", "PortNumber", "UseSSL")]
    outgoing = [account[f"OutgoingMailServer{key}"] for key in ("HostName", "PortNumber", "UseSSL")]
    assert (incoming, outgoing) == (["mail.example.org", 9993, True], ["mail.example.org", 587, True])
    assert re.fullmatch(r"[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}", profile["PayloadUUID"])
    assert profile["PayloadUUID"] != account["PayloadUUID"]
    assert run(ADA, "--format", "apple", "--config", config).stdout == text
    assert run("bob@example.org", "--format", "apple", "--config", config).stdout != text


def test_records(config: str) -> None:
    lines = run(ADA, "--format", "srv", "--config", config).stdout.splitlines()
    assert lines == [
        "_imaps._tcp.example.org. 3600 IN SRV 0 1 9993 mail.example.org.",
        "_imap._tcp.example.org. 3600 IN SRV 10 1 143 mail.example.org.",
        "_submissions._tcp.example.org. 3600 IN SRV 0 0 0 .",
        "_submission._tcp.example.org. 3600 IN SRV 10 1 587 mail.example.org.",
        "_pop3._tcp.example.org. 3600 IN SRV 0 0 0 .",
        "_pop3s._tcp.example.org. 3600 IN SRV 0 0 0 .",
    ]


def test_all_formats_with_the_standard_ports() -> None:
    shown = run("Ada@Example.org", "--host", "mx.example.org").stdout
    assert "https://autoconfig.example.org/mail/config-v1.1.xml" in shown
    assert "_imaps._tcp.example.org. 3600 IN SRV 0 1 993 mx.example.org." in shown
    assert "_submissions._tcp.example.org. 3600 IN SRV 0 1 465 mx.example.org." in shown
    xml = shown[shown.index("<?xml") : shown.index("</clientConfig>")] + "</clientConfig>"
    assert servers(xml, "outgoingServer")[0][:3] == ("mx.example.org", "465", "SSL")
    plist = shown[shown.rindex("<?xml") : shown.index("</plist>")] + "</plist>"
    assert plistlib.loads(plist.encode())["PayloadContent"][0]["EmailAddress"] == ADA


def test_flags_set_the_ports_and_plain_connections_are_not_published() -> None:
    given = (ADA, "--host", "h.test", "--imap", "127.0.0.1:1143", "--submission", "127.0.0.1:0")
    xml = run(*given, "--format", "thunderbird").stdout
    assert [server[:3] for server in servers(xml, "incomingServer")] == [("h.test", "1143", "plain")]
    assert [server[:3] for server in servers(xml, "outgoingServer")] == [("h.test", "587", "plain")]
    assert "IN SRV 0 0 0 ." in run(*given, "--format", "srv").stdout
    assert "h.test" not in run(*given, "--format", "srv").stdout


def test_international_and_invalid_names() -> None:
    shown = run("jörg@bücher.example", "--host", "mail.bücher.example").stdout
    assert "_imaps._tcp.xn--bcher-kva.example. 3600 IN SRV 0 1 993 mail.xn--bcher-kva.example." in shown
    assert "<string>jörg@bücher.example</string>" in shown
    odd = run("<&>@example.org", "--format", "apple", "--host", "mail.example.org")
    assert plistlib.loads(odd.stdout.encode())["PayloadContent"][0]["EmailAddress"] == "<&>@example.org"
    for address, host in (("ada", "m.test"), (ADA, "m.test. 0 IN A 192.0.2.1"), (ADA, "<x>"), (ADA, "a\nb")):
        refused = run(address, "--host", host)
        assert refused.exit_code != 0
        assert refused.stdout == ""
        assert refused.stderr.count("\n") == 1
