"""Draw the picture in the README: one message of the demo as a file and in a mail client.

    python -m adapter.demo.readme_image > adapter/demo/readme_image.svg

The left side shows the canonical file, the right side what a client displays of the octets. Both are generated from
the demo's store.
"""

from __future__ import annotations

import email
import email.policy
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from html import escape
from html.parser import HTMLParser

from adapter.api import Mailbox, Store, Summary
from adapter.demo import store as demo

_SUBJECT = "Drawings of the mill"
_WIDTH, _HEIGHT, _GAP = 1180, 486, 20
_FILE_WIDTH = 620
_TERMINAL_COLUMNS = 82
_MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
_SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_SHA256 = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
_MESSAGE_ID = re.compile(r"(msg-\d{8})T\d{6}Z-[0-9a-f]{20}")


def draw(mailbox: Mailbox) -> str:
    """Return the picture as SVG."""
    shown = next(message for message in mailbox.messages() if message.subject == _SUBJECT)
    mail = mailbox.read(shown)
    octets = email.message_from_bytes(mail.octets(), policy=email.policy.default)
    assert isinstance(octets, EmailMessage)  # noqa: S101 - what the policy makes
    elements = [
        *_frame(0, _FILE_WIDTH, "#1e2430", "a file"),
        *_terminal(shown, mail.file().decode()),
        *_frame(_FILE_WIDTH + _GAP, _WIDTH - _FILE_WIDTH - _GAP, "#ffffff", "the same message in a mail client"),
        *_client(mailbox, shown, octets),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="A message as a Markdown file and in a mail client">\n{"".join(elements)}</svg>\n'
    )


def _frame(x: int, width: int, colour: str, title: str) -> Iterator[str]:
    yield f'<text x="{x + 2}" y="18" font-family="{_SANS}" font-size="14" fill="#7a8190">{escape(title)}</text>\n'
    yield f'<rect x="{x + 0.5}" y="28.5" width="{width - 1}" height="{_HEIGHT - 30}" rx="8" fill="{colour}"'
    yield ' stroke="#b8bfcc"/>\n'


def _text(x: int, y: int, text: str, *, size: int = 13, fill: str = "#1e2430", weight: str = "normal") -> str:
    """Return a line of text; ``text`` is SVG markup."""
    return (
        f'<text x="{x}" y="{y}" font-family="{_SANS}" font-size="{size}" fill="{fill}" font-weight="{weight}">'
        f"{text}</text>\n"
    )


# --- the file --------------------------------------------------------------------------------------------------------


def _terminal(shown: Summary, file: str) -> Iterator[str]:
    short = _MESSAGE_ID.sub(r"\1…", f"{shown.uid}-{shown.id}.md")
    yield _typed(0, f"$ cat mail/mailboxes/{demo.ADA}/inbox/{short}", "#ffffff")
    for number, line in enumerate(_readable(file), 1):
        key = re.match(r"( *(?:- )?\w+:)(.*)", line)
        colour = "#8a93a6" if line in ("---", "  …") else "#dfe5ef"
        yield _typed(number, line, colour, keyword=key[1] if key and not line.startswith("*") else "")


def _readable(file: str) -> Iterator[str]:
    """Yield the lines of the file without the ``wire`` section, which is for programs only."""
    _, front, body = file.split("---\n", 2)
    yield "---"
    for line in front.partition("wire:\n")[0].splitlines():
        line = _SHA256.sub(r"\1…", line)
        yield line if len(line) <= _TERMINAL_COLUMNS else f"{line[: _TERMINAL_COLUMNS - 1]}…"
    yield "wire:"
    yield "  …"
    yield "---"
    yield from body.rstrip("\n").splitlines()


def _typed(line: int, text: str, colour: str, keyword: str = "") -> str:
    rest = escape(text[len(keyword) :])
    start = f'<tspan fill="#7fb4e6">{escape(keyword)}</tspan>' if keyword else ""
    return (
        f'<text x="18" y="{58 + 18 * line}" xml:space="preserve" font-family="{_MONO}" font-size="12" fill="{colour}">'
        f"{start}{rest}</text>\n"
    )


# --- the client ------------------------------------------------------------------------------------------------------


def _client(mailbox: Mailbox, shown: Summary, octets: EmailMessage) -> Iterator[str]:
    left, y = _FILE_WIDTH + _GAP + 20, 58
    for message in mailbox.messages():
        if message.id == shown.id:
            width = _WIDTH - left + 4
            yield f'<rect x="{left - 12}" y="{y - 17}" width="{width}" height="25" rx="4" fill="#dbe8fb"/>\n'
        weight = "normal" if message.read else "bold"
        yield _text(left, y, escape(message.sender), weight=weight)
        yield _text(left + 180, y, escape(message.subject), weight=weight)
        y += 26
    yield f'<line x1="{left - 20}" y1="{y - 8}" x2="{_WIDTH - 1}" y2="{y - 8}" stroke="#d5dae3"/>\n'
    y += 22
    yield _text(left, y, escape(str(octets["Subject"])), size=19, weight="bold")
    y += 26
    yield _text(left, y, escape(f"{octets['From']}  to  {octets['To']}"), fill="#5b6474")
    y += 34
    html = octets.get_body(("html",))
    reader = _Paragraphs()
    reader.feed(html.get_content() if html else "")
    for paragraph in reader.lines:
        yield _text(left, y, paragraph, size=14)
        y += 26
    for part in octets.iter_attachments():
        size = len(part.get_payload(decode=True) or b"")
        yield f'<rect x="{left}" y="{y - 6}" width="170" height="28" rx="6" fill="#eef1f6" stroke="#d5dae3"/>\n'
        yield _text(left + 12, y + 13, escape(f"{part.get_filename()}  {size} B"))
        y += 36


@dataclass
class _Paragraphs(HTMLParser):
    """Converts paragraphs and list items to SVG text, with bold and italic."""

    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("p", "li"):
            self.lines.append("•  " if tag == "li" else "")
            self._open = True
        elif tag in _STYLES and self._open:
            self.lines[-1] += f"<tspan {_STYLES[tag]}>"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("p", "li"):
            self._open = False
        elif tag in _STYLES and self._open:
            self.lines[-1] += "</tspan>"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.lines[-1] += escape(data)


_STYLES = {"strong": 'font-weight="bold"', "em": 'font-style="italic"'}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, Store.open(demo.prepare(directory).root) as store:
        sys.stdout.write(draw(store.mailbox(demo.ADA)))


if __name__ == "__main__":
    main()
