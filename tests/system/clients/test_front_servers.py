"""Postfix and Exim in front, exactly as ``conf/`` has them but for paths, ports and domains: mail goes both ways.

In: by SMTP to the mail server, which asks Markpost whether the recipient exists and hands over by LMTP. Out: from a
user by submission to Markpost, which sends on through the mail server to a server that stands for the world.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import smtplib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapter.store import layout
from tests.support.messages import message
from tests.support.processes.fronts import adapted, free_port, open_directory, wait_for_port
from tests.support.processes.outside import Outside, outside
from tests.support.processes.postfix import running_postfix
from tests.support.processes.serve import served
from tests.support.smtpd import PASSWORD, make_store
from tests.support.stores import ADA, BOB
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mail servers must be started by root")

_POSTFIX_MAIN = """
myhostname = front.test
smtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination
relayhost = [127.0.0.1]:{outside}
"""


@dataclass
class Place:
    """Ports and directories of the test's servers."""

    home: Path  # of the mail server in front
    lmtp: str  # where Markpost takes mail: a port, or the path of a unix socket
    world: int  # where the mail server takes mail from the world
    smarthost: int  # and where from Markpost
    outside: Outside

    @property
    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.home.glob("*log*")) if path.is_file())


@contextlib.contextmanager
def _postfix(place: Place) -> Iterator[None]:
    main = adapted("postfix/main.cf", {"example.org": "example.test", "inet:127.0.0.1:24": _postfix_target(place)})
    # Everybody in this test is on this machine: none may pass because of that.
    main = main.replace("permit_mynetworks, reject_unauth_destination,", "reject_unauth_destination,")
    master = adapted("postfix/master.cf", {"10025": str(place.smarthost)})
    main = _POSTFIX_MAIN.format(outside=place.outside.port) + main
    with running_postfix(place.home, main, master, place.world):
        yield


def _postfix_target(place: Place) -> str:
    return f"unix:{place.lmtp}" if place.lmtp.startswith("/") else f"inet:127.0.0.1:{place.lmtp}"


_EXIM_HERE = """
spool_directory = {home}/spool
log_file_path = {home}/log-%s
pid_file_path = {home}/pid
local_interfaces = 127.0.0.1
primary_hostname = front.test
deliver_drop_privilege = true
keep_environment =
"""


@contextlib.contextmanager
def _exim(place: Place) -> Iterator[None]:
    unix = place.lmtp.startswith("/")
    changes = {
        "example.org": "example.test",
        "25 : 10025": f"{place.world} : {place.smarthost}",
        "{10025}": f"{{{place.smarthost}}}",
        "port = 24\n": f"port = {0 if unix else place.lmtp}\n  allow_localhost\n",
        # The world has no DNS here: it is one server, on this machine.
        "  driver = dnslookup\n": "  driver = manualroute\n  route_list = * 127.0.0.1\n  self = send\n",
        "  ignore_target_hosts = 0.0.0.0 : 127.0.0.0/8 : ::1\n": "",
        "outside_smtp:\n  driver = smtp\n": f"outside_smtp:\n  driver = smtp\n  port = {place.outside.port}\n"
        "  allow_localhost\n",
    }
    if unix:
        changes |= {
            "/run/markpost/lmtp": place.lmtp,
            "driver = manualroute\n  domains = +markpost_domains\n  route_list = * 127.0.0.1\n  self = send\n": (
                "driver = accept\n  domains = +markpost_domains\n"
            ),
            "transport = markpost_lmtp\n": "transport = markpost_lmtp_socket\n",
            "/callout=30s,defer_ok": "",
        }
    (place.home / "spool").mkdir()
    for path in (place.home, place.home / "spool"):
        shutil.chown(path, "Debian-exim", "Debian-exim")
    config = place.home / "exim4.conf"
    config.write_text(_EXIM_HERE.format(home=place.home) + adapted("exim/exim4.conf", changes))
    checked = subprocess.run(["exim4", "-C", config, "-bV"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr + checked.stdout
    daemon = subprocess.Popen(["exim4", "-C", config, "-bdf", "-q1s"])
    try:
        wait_for_port(place.world, place.home / "log-main")
        yield
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE)


Front = Callable[[Place], AbstractContextManager[None]]


@contextlib.contextmanager
def _behind(front: Front, name: str, tmp_path: Path, *, unix: bool) -> Iterator[tuple[Place, dict[str, int], Path]]:
    root = tmp_path / "store"
    make_store(root)
    with open_directory() as home, outside() as world:
        sockets = home / "markpost"
        sockets.mkdir()
        # As conf/postfix/markpost.toml says: the directory hands the mail server's group on to the socket.
        shutil.chown(sockets, group="Debian-exim" if name == "exim" else "postfix")
        sockets.chmod(0o2750)
        lmtp, smarthost = str(sockets / "lmtp") if unix else str(free_port()), free_port()
        config = tmp_path / "markpost.toml"
        changes = {'["127.0.0.1:24"]': f'["{lmtp}"]' if unix else f'["127.0.0.1:{lmtp}"]', "10025": str(smarthost)}
        config.write_text(
            adapted(f"{name}/markpost.toml", changes).replace("[listen]\n", '[listen]\nsubmission = ["127.0.0.1:0"]\n')
        )
        place = Place(home, lmtp, free_port(), smarthost, world)
        with served(root, "--config", str(config), log=tmp_path / "log") as server, front(place):
            yield place, server.ports, root


def _mail_both_ways(place: Place, ports: dict[str, int], root: Path, *, verifies: bool) -> None:
    with smtplib.SMTP("127.0.0.1", place.world, timeout=PATIENCE) as client:
        assert client.sendmail("x@far.example", [ADA, BOB], message("In", "One for two.\r\n")) == {}
        with pytest.raises(smtplib.SMTPRecipientsRefused):
            client.sendmail("x@far.example", ["y@far.example"], message("Relayed?"))
        if verifies:
            with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
                client.sendmail("x@far.example", ["nobody@example.test"], message("To nobody"))
            assert refused.value.recipients["nobody@example.test"][0] == 550, place.log
    inbox = root.joinpath(*layout.folder_directory(ADA, "INBOX"))
    wait_until(lambda: len(list(inbox.glob("*.md"))) == 1, lambda: place.log[-4000:])
    (link,) = inbox.glob("*.md")
    bob = root.joinpath(*layout.folder_directory(BOB, "INBOX"))
    assert [each.resolve() for each in bob.glob("*.md")] == [link.resolve()]  # one transaction, one file
    assert "One for two." in link.read_text()
    with smtplib.SMTP("127.0.0.1", ports["submission"], timeout=PATIENCE) as client:
        client.login(ADA, PASSWORD)
        octets = message("Out", to="carol@far.example").replace(b"From: Bob <bob@", b"From: Ada <ada@")
        assert client.sendmail(ADA, ["carol@far.example"], octets) == {}
    sent = place.outside.wait_for(1)
    assert [(sender, recipients) for sender, recipients, _ in sent] == [(ADA, ["carol@far.example"])], place.log
    assert b"Subject: Out\r\n" in sent[0][2]


@pytest.mark.needs("postfix")
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_postfix_in_front(tmp_path: Path, unix: bool) -> None:
    with _behind(_postfix, "postfix", tmp_path, unix=unix) as (place, ports, root):
        _mail_both_ways(place, ports, root, verifies=True)


@pytest.mark.needs("exim4")
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_exim_in_front(tmp_path: Path, unix: bool) -> None:
    with _behind(_exim, "exim", tmp_path, unix=unix) as (place, ports, root):
        _mail_both_ways(place, ports, root, verifies=not unix)
