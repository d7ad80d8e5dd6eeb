"""A private Dovecot with accounts to mirror, and a wire to it that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import imaplib
import os
import pwd
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from adapter.config.loader import Seconds
from adapter.config.schema import UpstreamSettings
from protocol.imap.wire import utf7
from tests.support.certificates import make_certificate
from tests.support.processes.fronts import free_port, open_directory, wait_for_port
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE

PASSWORD = 'quite "secret" \\ pass*'
_USERS = 50
_CONFIG = """
base_dir = {run}
state_dir = {run}
log_path = {run}/log
protocols = imap
listen = 127.0.0.1
ssl = yes
ssl_cert = <{certificate}
ssl_key = <{key}
disable_plaintext_auth = no
mail_location = maildir:{mail}/%n/Maildir:LAYOUT=fs
mail_max_keyword_length = 80
first_valid_uid = 1
mail_uid = {user}
mail_gid = {group}
default_login_user = nobody
default_internal_user = nobody
default_internal_group = nogroup
passdb {{
  driver = passwd-file
  args = scheme=PLAIN {run}/users
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={mail}/%n allow_all_users=yes
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = {imaps}
  }}
}}
auth_failure_delay = 0
service anvil {{
  chroot =
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service stats {{
  chroot =
}}
"""


class Dovecot:
    """Each test takes a user of its own."""

    def __init__(self, imap: int, imaps: int, mail: Path, certificate: str) -> None:
        self.imap = imap
        self.imaps = imaps
        self.mail = mail
        self.certificate = certificate
        self._count = 0

    def new_user(self) -> str:
        self._count += 1
        assert self._count <= _USERS
        return f"user{self._count}"

    def settings(self, user: str, **changes: Any) -> UpstreamSettings:
        values: dict[str, Any] = {
            "host": "localhost",
            "port": self.imap,
            "tls": "none",
            "user": user,
            "password": PASSWORD,
            "account": ADA,
            "poll": Seconds(1.0),
            "timeout": Seconds(20.0),
            "first_retry": Seconds(0.1),
            "longest_retry": Seconds(0.5),
        }
        return UpstreamSettings(**{**values, **changes})

    @contextlib.contextmanager
    def session(self, user: str) -> Iterator[imaplib.IMAP4]:
        """A mail client of that user."""
        imaplib._MAXLINE = 10_000_000  # type: ignore[attr-defined]
        client = imaplib.IMAP4("127.0.0.1", self.imap)
        client.login(user, PASSWORD)
        try:
            yield client
        finally:
            client.logout()


def spelt(folder: str) -> str:
    return f'"{utf7.encode(folder).decode()}"'


def put(client: imaplib.IMAP4, folder: str, octets: bytes, flags: Sequence[str] = (), date: int | None = None) -> None:
    when = imaplib.Time2Internaldate(date) if date is not None else ""
    status, answer = client.append(spelt(folder), f"({' '.join(flags)})", when, octets)
    assert status == "OK", answer


def contents(client: imaplib.IMAP4, folder: str) -> dict[int, bytes]:
    """The octets of all messages of a folder, by UID."""
    assert client.select(spelt(folder), readonly=True)[0] == "OK"
    _, fetched = client.uid("FETCH", "1:*", "(UID BODY.PEEK[])")
    return {int(part[0].split(b"UID ")[1].split()[0]): part[1] for part in fetched if isinstance(part, tuple)}


@contextlib.contextmanager
def running_dovecot() -> Iterator[Dovecot]:
    with open_directory() as home:
        run, mail = home / "run", home / "mail"
        run.mkdir()
        mail.mkdir()
        owner = pwd.getpwnam("nobody")
        os.chown(mail, owner.pw_uid, owner.pw_gid)
        tls = make_certificate(home)
        lines = [f"user{number}:{{PLAIN}}{PASSWORD}\n" for number in range(1, _USERS + 1)]
        (run / "users").write_text("".join(lines))
        imap, imaps = free_port(), free_port()
        config = home / "dovecot.conf"
        config.write_text(
            _CONFIG.format(
                run=run,
                mail=mail,
                user=owner.pw_uid,
                group=owner.pw_gid,
                imap=imap,
                imaps=imaps,
                certificate=tls.certificate,
                key=tls.key,
            )
        )
        server = subprocess.Popen(["dovecot", "-F", "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for_port(imap, run / "log")
            yield Dovecot(imap, imaps, mail, tls.certificate)
        finally:
            server.terminate()
            server.wait(PATIENCE)


class Wire:
    """A proxy on loopback that cuts each connection after so many octets from the server; None: never."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.cut_after: int | None = None
        self.connections = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        left = self.cut_after
        try:
            there, to = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to}

        async def up() -> None:
            while data := await reader.read(65536):
                to.write(data)
            to.transport.abort()

        uploading = asyncio.create_task(up())
        try:
            while data := await there.read(65536):
                if left is not None:
                    data, left = data[:left], left - len(data)
                writer.write(data)
                await writer.drain()
                if left is not None and left <= 0:
                    break
        except OSError:
            pass
        finally:
            uploading.cancel()
            for each in (writer, to):
                self._writers.discard(each)
                each.transport.abort()

    def cut(self) -> None:
        """All connections, now."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()


@contextlib.asynccontextmanager
async def wire(port: int) -> AsyncIterator[Wire]:
    made = Wire(port)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
