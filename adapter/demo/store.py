"""The demo's store, certificate and accounts, created at the first start and kept, and the sample mail in them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from adapter.accounts.credentials import Credentials
from adapter.api import Mailbox, Person, Store
from adapter.demo import certificate_authority
from adapter.transport import operations as op

HOSTNAME = "localhost"
ADA, BOB = "ada@example.test", "bob@example.test"
PASSWORD = "correct horse"  # noqa: S105 - printed on the screen, for loopback only

_ENGINE_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 80 40" fill="none" stroke="black" stroke-width="3">'
    '<circle cx="20" cy="20" r="14"/><circle cx="52" cy="20" r="10"/></svg>\n'
)
_NEWSLETTER = b"""\
From: The Gazette <gazette@news.example>\r
To: ada@example.test\r
Subject: The week in engines\r
Date: Sun, 15 Nov 2026 07:00:00 +0000\r
Message-ID: <week-46@news.example>\r
MIME-Version: 1.0\r
Content-Type: text/html; charset=utf-8\r
Content-Transfer-Encoding: 8bit\r
\r
<html><body><h1>The week in engines</h1>\r
<p>A <b>difference engine</b> was seen in <a href="https://news.example/london">London</a>.</p>\r
<ul><li>Brass is up</li><li>Steam is down</li></ul></body></html>\r
"""


@dataclass(frozen=True, slots=True)
class DemoStore:
    root: str
    authority: str
    certificate: str  # with its key


def prepare(directory: str) -> DemoStore:
    """Create what does not exist yet."""
    demo_store = DemoStore(f"{directory}/mail", f"{directory}/authority.pem", f"{directory}/localhost.pem")
    os.makedirs(directory, exist_ok=True)
    if not os.path.exists(demo_store.certificate):
        authority, certificate = certificate_authority.make(HOSTNAME)
        certificate_authority.write(demo_store.authority, authority)
        certificate_authority.write(demo_store.certificate, certificate)
    if not os.path.exists(demo_store.root):
        unfinished = f"{demo_store.root}.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        with Store.create(unfinished) as store:
            ada, bob = store.add_mailbox(ADA), store.add_mailbox(BOB)
            with Credentials.open(store.transport) as credentials:
                for address in (ADA, BOB):
                    credentials.set_password(address, PASSWORD)
            send_sample_mail(store, ada, bob)
        os.rename(unfinished, demo_store.root)
    return demo_store


def send_sample_mail(store: Store, ada: Mailbox, bob: Mailbox) -> None:
    """Fill two empty accounts with a thread, an HTML letter, an attachment, and a note by an agent in Markdown."""
    first = bob.send(
        "Dear Ada,\n\nthe drawings of the mill are attached.\n\n* Will it carry the **one**?\n* How fast?\n\nBob\n",
        to=Person("Ada Lovelace", ada.address),
        subject="Drawings of the mill",
        attachments=[("mill.svg", _ENGINE_SVG.encode())],
    )
    reply = ada.send(
        "It will, if you give it _time_:\n\n| digits | seconds |\n| ---: | ---: |\n| 10 | 3 |\n| 20 | 6 |\n\nAda\n",
        to=Person("Bob", bob.address),
        subject="Re: Drawings of the mill",
        reply_to=ada.read(first.id),
    )
    bob.send(
        "Then I shall order the brass.\n",
        to=Person("Ada Lovelace", ada.address),
        subject="Re: Drawings of the mill",
        reply_to=bob.read(reply.id),
    )
    staged = store.transport.stage(_NEWSLETTER)
    store.transport.run(op.Deliver(staged, "gazette@news.example", [ada.address]))
    bob.send(
        "# Nightly check\n\nAll **12** tables agree with the journal.\n\n"
        "```\nchecked   48,213 messages\nfindings  0\n```\n",
        to=ada.address,
        subject="Note from the agent",
    )
