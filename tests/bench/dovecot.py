"""A private Dovecot (Maildir, its own defaults) to compare with."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.fronts import free_port, wait_for_port

PASSWORD = "bench"  # of everybody

_CONFIG = """
base_dir = {run}
state_dir = {run}
log_path = {run}/log
protocols = lmtp imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
mail_location = maildir:{mail}/%n/Maildir
first_valid_uid = 1
mail_uid = {user}
mail_gid = {group}
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={mail}/%n allow_all_users=yes
}}
default_process_limit = 400
default_client_limit = 4000
service lmtp {{
  inet_listener lmtp {{
    address = 127.0.0.1
    port = {lmtp}
  }}
}}
service imap-login {{
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
"""


def available() -> bool:
    return os.geteuid() == 0 and shutil.which("dovecot") is not None and os.path.exists("/usr/lib/dovecot/lmtp")


@contextlib.contextmanager
def running(directory: str) -> Iterator[tuple[int, int, str]]:
    """Yields the ports of LMTP and IMAP, and the directory with one folder for each user."""
    run, mail = f"{directory}/dovecot-run", f"{directory}/dovecot-mail"
    os.makedirs(run, exist_ok=True)
    os.makedirs(mail, exist_ok=True)
    owner = pwd.getpwnam("nobody")
    os.chown(mail, owner.pw_uid, owner.pw_gid)
    parent = directory
    while parent != "/":
        mode = os.stat(parent).st_mode
        if not mode & 0o001:  # scratch directories let nobody else pass
            os.chmod(parent, mode | 0o011)
        parent = os.path.dirname(parent)
    lmtp, imap = free_port(), free_port()
    config = f"{directory}/dovecot-bench.conf"
    with open(config, "w", encoding="utf-8") as file:
        ports = {"lmtp": lmtp, "imap": imap}
        user = {"user": owner.pw_uid, "group": owner.pw_gid, "password": PASSWORD}
        file.write(_CONFIG.format(run=run, mail=mail, **user, **ports))
    server = subprocess.Popen(["dovecot", "-F", "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for port in (lmtp, imap):
            wait_for_port(port, Path(run, "log"))
        yield lmtp, imap, mail
    finally:
        server.terminate()
        server.wait(20)
