"""``markpost demo``: a complete mail server on loopback with sample mail."""

from __future__ import annotations

import shlex
import sys

import click

from adapter.cli.failures import CommandError
from adapter.config.loader import ConfigError, Seconds
from adapter.config.schema import Server, Settings, Tls
from adapter.demo import store
from adapter.net import endpoints
from adapter.net.tls import TlsError
from adapter.observability import logging
from adapter.server import serve
from adapter.server.settings import SettingsSource

_PORTS = {"imap": 1143, "imaps": 1993, "smtp": 1025, "submission": 1587, "submissions": 1465, "lmtp": 1024}
_DRAIN = Seconds(1.0)  # short, so that Ctrl-C ends the demo at once
_SCREEN = """\

  Markpost is serving mail on this machine. Ctrl-C stops it; the mail stays in {directory}.

  In a mail client (Thunderbird: New account, Configure manually)
      your name, address    Ada, {ada}      password  {password}
      incoming   IMAP       {host}  port {imaps}  SSL/TLS       (or {imap}, no encryption)
      outgoing   SMTP       {host}  port {submissions}  SSL/TLS       (or {submission}, STARTTLS)
      its certificate       trust {authority}, or accept the exception
      the other account     {bob}, same password

  Your inbox on disk (all of these in another terminal, in this directory)
      ls {root}/mailboxes/{ada}/inbox
      cat {root}/mailboxes/{ada}/inbox/1-*.md

  Send yourself mail
      echo "Hello from the shell" | {program} deliver --root {root} --from {bob} --to {ada} -
      printf 'From: me@far.example\\nSubject: By SMTP\\n' | \\
          curl -s --crlf smtp://127.0.0.1:{smtp} --mail-from me@far.example --mail-rcpt {ada} -T -

  Damage the store, check it, repair it (mail is offline during the repair; needs Java 17)
      rm {root}/mailboxes/{ada}/inbox/1-*.md
      {program} check --root {root}
      {program} repair --root {root} --i-know-what-im-doing ALL-SERVICES-ARE-OFFLINE
"""


@click.command(short_help="Try Markpost on loopback with sample mail.")
@click.option("--dir", "directory", metavar="DIR", default="var", show_default=True, help="Directory of the store.")
@click.option("--free-ports", is_flag=True, help="Use free ports instead of the usual ones.")
def demo(directory: str, free_ports: bool) -> None:
    """Serve two sample accounts on loopback and print the settings for a mail client."""
    demo_store = store.prepare(directory)
    settings = Settings(
        server=Server(hostname=store.HOSTNAME, log_level="warning", drain=_DRAIN),
        tls=Tls(certificate=demo_store.certificate),
    )
    logging.to_stderr(settings.server.log_level, settings.server.log_format)
    listeners = [endpoints.parse(kind, f"127.0.0.1:{0 if free_ports else port}") for kind, port in _PORTS.items()]
    screen = _Screen(directory, demo_store)
    try:
        serve.run(demo_store.root, SettingsSource(lambda: settings), listeners, screen.announce)
    except TlsError as error:
        raise CommandError(str(error)) from None
    except ConfigError as error:
        raise CommandError(f"{error}; stop the other demo, or use {_program()} demo --free-ports") from None


def _program() -> str:
    """Return the name under which the program was called."""
    return sys.argv[0] if sys.argv[0].endswith("markpost") else "markpost"


class _Screen:
    """Collects the ports of the listeners and prints the instructions when all are ready."""

    def __init__(self, directory: str, demo_store: store.DemoStore) -> None:
        self._values: dict[str, str] = {
            "directory": directory,
            "ada": store.ADA,
            "bob": store.BOB,
            "password": store.PASSWORD,
            "host": store.HOSTNAME,
            "program": _program(),
            "root": shlex.quote(demo_store.root),
            "authority": demo_store.authority,
        }

    def announce(self, line: str) -> None:
        if line == "ready":
            click.echo(_SCREEN.format(**self._values))
        kind, _, where = line.partition(" ")
        self._values[kind] = where.rpartition(":")[2]
        click.echo(line)
