"""Sample mail for the demo: a thread, an HTML letter, an attachment, and a note an agent wrote in Markdown."""

from __future__ import annotations

from adapter.api import Mailbox, Person, Store
from adapter.transport import operations as op

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


def fill(store: Store, ada: Mailbox, bob: Mailbox) -> None:
    """Give two empty accounts something to read."""
    first = bob.send(
        "Dear Ada,\n\nthe drawings of the mill are attached.\n\n* Will it carry the **one**?\n* How fast?\n\nBob\n",
        to=Person("Ada Lovelace", ada.address),
        subject="Drawings of the mill",
        attachments=[("mill.svg", _ENGINE_SVG.encode())],
    )
    answer = ada.send(
        "It will, if you give it _time_:\n\n| digits | seconds |\n| ---: | ---: |\n| 10 | 3 |\n| 20 | 6 |\n\nAda\n",
        to=Person("Bob", bob.address),
        subject="Re: Drawings of the mill",
        reply_to=ada.read(first.id),
    )
    bob.send(
        "Then I shall order the brass.\n",
        to=Person("Ada Lovelace", ada.address),
        subject="Re: Drawings of the mill",
        reply_to=bob.read(answer.id),
    )
    staged = store.transport.stage(_NEWSLETTER)
    store.transport.run(op.Deliver(staged, "gazette@news.example", [ada.address]))
    bob.send(
        "# Nightly check\n\nAll **12** tables agree with the journal.\n\n"
        "```\nchecked   48,213 messages\nfindings  0\n```\n",
        to=ada.address,
        subject="Note from the agent",
    )
