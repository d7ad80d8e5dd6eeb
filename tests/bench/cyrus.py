"""Cyrus IMAP as a peer of the bench, with its own defaults."""

from __future__ import annotations

import itertools
import os
import pwd
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.bench.imap_client import RawClient
from tests.bench.peers import ADA, FIRST_DATE, PASSWORD, STEP_SECONDS, Peer, Syncs, let_other_users_pass

_PROGRAMS = "/usr/lib/cyrus/bin"
_USER = "cyrus"
_APPEND_BATCH = 100

_IMAPD_CONF = """\
configdirectory: {directory}/conf
proc_path: {directory}/conf/proc
mboxname_lockpath: {directory}/conf/lock
defaultpartition: default
partition-default: {directory}/spool
idlesocket: {directory}/conf/socket/idle
lmtpsocket: {directory}/conf/socket/lmtp
notifysocket: {directory}/conf/socket/notify
virtdomains: userid
defaultdomain: example.test
unixhierarchysep: yes
altnamespace: yes
hashimapspool: true
allowplaintext: yes
sasl_mech_list: PLAIN
sasl_pwcheck_method: alwaystrue
autocreate_quota: 0
autocreate_post: yes
autocreate_users: anyone
"""
_CYRUS_CONF = """\
START {{
  recover cmd="{programs}/ctl_cyrusdb -C {directory}/imapd.conf -r"
}}
SERVICES {{
  imap cmd="imapd -C {directory}/imapd.conf -U 30" listen="127.0.0.1:{imap}" prefork=0 maxchild=5000
  lmtp cmd="lmtpd -C {directory}/imapd.conf -a" listen="127.0.0.1:{lmtp}" prefork=0 maxchild=2000
}}
DAEMON {{
  idled cmd="{programs}/idled -C {directory}/imapd.conf"
}}
"""


class Cyrus(Peer):
    """Debian's Cyrus; mailboxes are created at the first login or delivery."""

    name = "cyrus"

    def __init__(self, directory: str, syncs: Syncs | None = None) -> None:
        super().__init__(directory, syncs)
        self._imapd_conf = f"{directory}/imapd.conf"
        self._cyrus_conf = f"{directory}/cyrus.conf"

    @staticmethod
    def missing() -> str | None:
        """Return why it cannot run here."""
        if not os.path.exists(f"{_PROGRAMS}/master"):
            return "cyrus-imapd is not installed"
        try:
            pwd.getpwnam(_USER)
        except KeyError:
            return f"there is no user {_USER}"
        return None if os.geteuid() == 0 else "needs root"

    def create(self) -> None:
        owner = pwd.getpwnam(_USER)
        state = ("db", "proc", "lock", "log", "msg", "socket", "user", "quota")
        for path in ("conf", "spool", *(f"conf/{name}" for name in state)):
            os.mkdir(f"{self.directory}/{path}")
            os.chown(f"{self.directory}/{path}", owner.pw_uid, owner.pw_gid)
        let_other_users_pass(self.directory)

    def add_accounts(self, addresses: Sequence[str]) -> None:
        """Log in once for each address, which creates its mailbox: concurrent first deliveries would collide."""
        for address in addresses:
            RawClient(self.imap, address, PASSWORD).close()

    def fill(self, messages: Iterable[bytes]) -> None:
        self.start()
        client = RawClient(self.imap, ADA, PASSWORD)
        try:
            numbered = enumerate(messages)
            while batch := list(itertools.islice(numbered, _APPEND_BATCH)):
                client.run(b"APPEND INBOX" + b"".join(_append_item(number, octets) for number, octets in batch))
        finally:
            client.close()
        self.stop()

    def drop_caches(self, *, text: bool) -> None:
        """``cyrus.cache`` is written at delivery and belongs to the mailbox: there is nothing to drop."""

    def restore_caches(self) -> None:
        """Cyrus has no index of texts unless Xapian is configured."""

    def _command(self) -> list[str]:
        values = {"directory": self.directory, "programs": _PROGRAMS, "imap": self.imap, "lmtp": self.lmtp}
        Path(self._imapd_conf).write_text(_IMAPD_CONF.format(**values))
        Path(self._cyrus_conf).write_text(_CYRUS_CONF.format(**values))
        pid_file = f"{self.directory}/conf/master.pid"
        return [f"{_PROGRAMS}/master", "-C", self._imapd_conf, "-M", self._cyrus_conf, "-p", pid_file]


def _append_item(number: int, octets: bytes) -> bytes:
    """One message of a MULTIAPPEND, with a non-synchronising literal."""
    date = time.strftime("%d-%b-%Y %H:%M:%S +0000", time.gmtime(FIRST_DATE + number * STEP_SECONDS))
    return b' "%s" {%d+}\r\n%s' % (date.encode(), len(octets), octets)
