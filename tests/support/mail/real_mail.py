"""Real-looking mail, made by seed and number: threads, mailing lists, HTML, attachments, charsets and encodings.

The same seed and number always give the same octets, in any order. Its properties:

* **Threads.** 55 % of messages reply to an earlier one, most often a recent one (exponential, mean 25 messages back):
  many threads have one message and a few have dozens. References names up to twenty ancestors, as mail clients do.
* **Structure.** 30 % plain text, 52 % multipart/alternative with HTML, 5 % HTML alone, 9 % with attachments, 2 %
  forwarded as message/rfc822, 2 % invitations. One thread in five belongs to a mailing list, with its header fields.
* **Encodings.** Text is 8bit, 7bit, quoted-printable or base64, in UTF-8, ISO-8859-1 or US-ASCII; about one subject in
  seven is an encoded word.
* **Size.** Log-normal: text has a median of 1.2 kB, HTML of 6 kB, an attachment of 45 kB (at most 1.5 MB); four of ten
  attachments are one of 40 that many messages carry. Whole messages have a median of about 7 kB and a mean of 20 kB.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import functools
import math
import random

REPLY_SHARE = 0.55
MEAN_DISTANCE = 25  # messages between a reply and what it answers
MAX_REFERENCES = 20
MAX_ATTACHMENT_BYTES = 1_500_000
_SHARED_ATTACHMENTS = 40
_PARAGRAPHS = 600
_NOISE_BYTES = 2 * MAX_ATTACHMENT_BYTES
_LINE_BYTES = 78  # of base64, its line end included
_EPOCH = datetime.datetime(2025, 1, 6, 7, 0, tzinfo=datetime.UTC)
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_PEOPLE = (
    ("Ada Lovelace", "ada@example.test"), ("Bob Builder", "bob@example.test"), ("Zoë Åkerström", "zoe@nord.test"),
    ("Jürgen Müller", "jm@werk.test"), ("Grace Hopper", "grace@navy.test"), ("Łukasz Nowak", "lukasz@kolo.test"),
    ("Mary Somerville", "mary@orbit.test"), ("José Ibáñez", "jose@sur.test"), ("Edith Clarke", "edith@grid.test"),
    ("Charles Babbage", "charles@mill.test"), ("Emmy Noether", "emmy@ring.test"), ("Alan Turing", "alan@tape.test"),
)  # fmt: skip
_LISTS = ("loom-dev", "engine-users", "announce", "ops")
_NAMES = ("plan.pdf", "invoice.pdf", "photo.jpg", "figures.xlsx", "minutes.docx", "logo.png", "Übersicht.pdf")
_TYPES = {
    "pdf": "application/pdf", "jpg": "image/jpeg", "png": "image/png",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}  # fmt: skip
_ENDS = ("a", "e", "i", "o", "u", "er", "in", "al")
_COMMON = tuple(
    """the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
    one you were all her she there would their we him been has when who will no more if out so up what its""".split()  # noqa: SIM905
)
_SYLLABLES = [start + end for start in ("b", "d", "g", "k", "l", "m", "n", "p", "r", "st", "tr", "v") for end in _ENDS]
_STYLE = (
    '<td style="padding:12px 18px;font-family:Arial,Helvetica,sans-serif;font-size:14px;line-height:21px;'
    'color:#333333;border-bottom:1px solid #e5e5e5" valign="top" align="left" width="560">'
)


class RealMail:
    """An endless supply of messages; ``octets(number)`` is one of them."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        dice = random.Random(f"{seed} material")
        rare = ["".join(dice.choices(_SYLLABLES, k=dice.randint(2, 4))) for _ in range(2500)]
        weights = [1 / (rank + 3) for rank in range(len(rare))]
        self._words = dice.choices(_COMMON, k=3000) + dice.choices(rare, weights, k=3000)
        self._words += dice.choices(["Grüße", "façade", "naïve", "Größe", "señor", "smørbrød"], k=60)
        self._paragraphs = [self._prose(dice) for _ in range(_PARAGRAPHS)]
        noise = dice.randbytes(_NOISE_BYTES)
        self._base64 = base64.encodebytes(noise).replace(b"\n", b"\r\n")

    # --- threads -----------------------------------------------------------------------------------------------------

    def parent(self, number: int) -> int | None:
        """Return the number of the message that this one answers."""
        return _parent(self._seed, number)

    def ancestors(self, number: int) -> list[int]:
        """Return the numbers of the messages above this one in its thread, the first message first."""
        found: list[int] = []
        parent = self.parent(number)
        while parent is not None:
            found.append(parent)
            parent = self.parent(parent)
        return found[::-1]

    def message_id(self, number: int) -> str:
        host = _sender(self._seed, number)[1].partition("@")[2]
        return f"<{number}.{(number * 2654435761 + self._seed) & 0xFFFFFFFF:08x}@{host}>"

    def subject(self, number: int) -> str:
        """Return the decoded subject."""
        ancestors = self.ancestors(number)
        root = ancestors[0] if ancestors else number
        thread = random.Random(f"{self._seed} thread {root}")
        mailing_list = _mailing_list(self._seed, root)
        words = " ".join(thread.choices(self._words, k=thread.randint(2, 7)))
        return f"{'Re: ' if ancestors else ''}{f'[{mailing_list}] ' if mailing_list else ''}{words}"

    # --- messages ----------------------------------------------------------------------------------------------------

    def octets(self, number: int, size: int | None = None) -> bytes:
        """Return a message; with ``size`` one of exactly that many octets: text, above 10 kB with an attachment."""
        dice = random.Random(f"{self._seed} {number}")
        if size is not None:
            return self._sized(number, self._head(number, dice, is_short=True), size)
        head = self._head(number, dice)
        kind = dice.random()
        if kind < 0.30:
            return head + self._text_part(number, dice)
        if kind < 0.82:
            return head + self._alternative(number, dice)
        if kind < 0.87:
            return head + self._html_part(number, dice)
        if kind < 0.96:
            parts = [self._alternative(number, dice) if dice.random() < 0.6 else self._text_part(number, dice)]
            parts += [self._attachment(number, position, dice) for position in range(1 + (dice.random() < 0.25))]
            return head + _multipart("mixed", f"mixed-{number}", parts)
        if kind < 0.98:
            inner = self._head(number + 1_000_000_000, dice) + self._text_part(number, dice)
            forwarded = b"Content-Type: message/rfc822\r\nContent-Disposition: inline\r\n\r\n" + inner
            return head + _multipart("mixed", f"forward-{number}", [self._text_part(number, dice), forwarded])
        return head + _multipart("alternative", f"call-{number}", [self._text_part(number, dice), _invitation(number)])

    def _head(self, number: int, dice: random.Random, *, is_short: bool = False) -> bytes:
        """Header fields up to Content-Type; a short head has no signature and leaves room in 2 kB."""
        ancestors = self.ancestors(number)
        root = ancestors[0] if ancestors else number
        mailing_list = _mailing_list(self._seed, root)
        subject = self.subject(number)
        name, address = _sender(self._seed, number)
        to = [_PEOPLE[0], *dice.sample(_PEOPLE[1:], dice.choice([0, 0, 0, 1, 2]))]
        cc = dice.sample(_PEOPLE[1:], dice.choice([0, 0, 0, 0, 1, 3]))
        when = _EPOCH + datetime.timedelta(seconds=number % 1_000_000 * 300 + dice.randrange(300))
        date = f"{_DAYS[when.weekday()]}, {when.day} {_MONTHS[when.month - 1]} {when:%Y %H:%M:%S} +0000"
        host = address.split("@")[1]
        lines = [f"Return-Path: <{address}>"]
        for hop in range(1 if is_short else dice.randint(2, 4)):
            lines.append(
                f"Received: from relay{hop}.{host} (relay{hop}.{host} [192.0.2.{dice.randint(1, 254)}])\r\n"
                f"\tby mx{hop}.example.test (Postfix) with ESMTPS id {dice.getrandbits(48):012X}\r\n"
                f"\tfor <ada@example.test>; {date}"
            )
        if not is_short:
            lines += _signature(address, dice)
        lines += [
            f"Date: {date}",
            f"From: {_mailbox(name, address)}",
            "To: " + ",\r\n ".join(_mailbox(*each) for each in to),
        ]
        if cc:
            lines.append("Cc: " + ",\r\n ".join(_mailbox(*each) for each in cc))
        is_encoded = not subject.isascii() or root % 8 == 0
        lines.append(f"Subject: {_encoded_word(subject) if is_encoded else subject}")
        lines.append(f"Message-ID: {self.message_id(number)}")
        if ancestors:
            most = 5 if is_short else MAX_REFERENCES
            named = ancestors if len(ancestors) <= most else [root, *ancestors[1 - most :]]
            lines.append(f"In-Reply-To: {self.message_id(ancestors[-1])}")
            lines.append("References: " + "\r\n ".join(map(self.message_id, named)))
        if mailing_list:
            lines += [
                f"List-Id: {mailing_list} <{mailing_list}.lists.test>",
                f"List-Unsubscribe: <https://lists.test/{mailing_list}>,\r\n <mailto:leave@lists.test>",
                f"List-Post: <mailto:{mailing_list}@lists.test>",
                "Precedence: list",
            ]
        lines += [dice.choice(["User-Agent: Mutt/2.2.9", "X-Mailer: Apple Mail (2.3774)", "User-Agent: Thunderbird"])]
        lines += ["MIME-Version: 1.0", ""]
        return "\r\n".join(lines).encode()

    def _prose(self, dice: random.Random) -> str:
        sentences = (" ".join(dice.choices(self._words, k=dice.randint(5, 18))) for _ in range(dice.randint(2, 6)))
        lines, line = [], ""
        for word in " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences).split():
            if len(line) + len(word) > 71:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        return "\r\n".join([*lines, line])

    def _text(self, number: int, dice: random.Random, median: float = 1200) -> str:
        """Paragraphs around a sentence that no other message has, after the quoted text of the answered message."""
        wanted = min(dice.lognormvariate(math.log(median), 0.9), 60_000)
        pieces = ["Hello,"]
        parent = self.parent(number)
        if parent is not None:
            quoted = self._paragraphs[parent % _PARAGRAPHS].replace("\r\n", "\r\n> ")
            pieces.append(f"Reference code{parent}x was:\r\n> {quoted}")
        length = sum(map(len, pieces))
        while length < wanted:
            pieces.append(dice.choice(self._paragraphs))
            length += len(pieces[-1])
        pieces.append(f"Ticket {unique_word(number)} has {' '.join(dice.choices(self._words, k=6))}.")
        return "\r\n\r\n".join([*pieces, _sender(self._seed, number)[0]]) + "\r\n"

    def _text_part(self, number: int, dice: random.Random) -> bytes:
        text = self._text(number, dice)
        way = dice.random()
        if way < 0.45:
            return b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n" + text.encode()
        if way < 0.70:
            return (
                b"Content-Type: text/plain; charset=UTF-8; format=flowed\r\n"
                b"Content-Transfer-Encoding: quoted-printable\r\n\r\n" + _quoted_printable(text.encode())
            )
        if way < 0.80:
            return (
                b'Content-Type: text/plain; charset="utf-8"\r\nContent-Transfer-Encoding: base64\r\n\r\n'
                + base64.encodebytes(text.encode()).replace(b"\n", b"\r\n")
            )
        if way < 0.90:
            return (
                b"Content-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
                + text.encode("iso-8859-1", "replace")
            )
        return b"Content-Type: text/plain; charset=us-ascii\r\n\r\n" + text.encode("ascii", "replace")

    def _html_part(self, number: int, dice: random.Random) -> bytes:
        wanted = min(dice.lognormvariate(math.log(6000), 0.8), 200_000)
        rows = [f"<p>Ticket {unique_word(number)}</p>"]
        length = 900
        while length < wanted:
            target = f"https://click.example.test/{dice.getrandbits(64):016x}"
            rows.append(f'{dice.choice(self._paragraphs)} <a href="{target}" style="color:#0066cc">more</a>')
            length += len(rows[-1]) + len(_STYLE) + 20
        body = "\r\n".join(f"<tr>{_STYLE}\r\n{row}</td></tr>" for row in rows)
        html = (
            '<!DOCTYPE html>\r\n<html><head><meta charset="utf-8"><style>body{margin:0}a{text-decoration:none}</style>'
            f'</head>\r\n<body><table width="600" cellpadding="0" cellspacing="0" border="0">\r\n{body}\r\n</table>'
            "</body></html>\r\n"
        ).encode()
        if dice.random() < 0.7:
            return (
                b"Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
                + _quoted_printable(html)
            )
        return b"Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n" + html

    def _alternative(self, number: int, dice: random.Random) -> bytes:
        parts = [self._text_part(number, dice), self._html_part(number, dice)]
        return _multipart("alternative", f"alternative-{number}", parts)

    def _attachment(self, number: int, position: int, dice: random.Random) -> bytes:
        if dice.random() < 0.4:
            dice = random.Random(f"{self._seed} attachment {dice.randrange(_SHARED_ATTACHMENTS)}")
            unique = b""
        else:
            unique = base64.b64encode(b"%019d.%037d" % (number, position)) + b"\r\n"
        name = dice.choice(_NAMES)
        size = min(int(dice.lognormvariate(math.log(45_000), 1.2)), MAX_ATTACHMENT_BYTES)
        return _attachment_head(name) + unique + self._noise(dice, size * 4 // 3)

    def _noise(self, dice: random.Random, length: int) -> bytes:
        """Whole lines of base64, at least one."""
        count = max(1, length // _LINE_BYTES)
        first = dice.randrange(_NOISE_BYTES // 57 - count)
        return self._base64[first * _LINE_BYTES : (first + count) * _LINE_BYTES]

    def _sized(self, number: int, head: bytes, size: int) -> bytes:
        dice = random.Random(f"{self._seed} {number} sized")
        unique = f"Ticket {unique_word(number)} follows.\r\n".encode()
        if size < 10_000:
            whole = head + b"Content-Type: text/plain; charset=utf-8\r\n\r\n" + unique
            while len(whole) < size:
                whole += dice.choice(self._paragraphs).encode("ascii", "replace") + b"\r\n\r\n"
            if whole[size - 3 : size - 2] == b"\r":  # the cut must not leave half a line end
                whole = whole[: size - 3] + b"." + whole[size - 2 :]
            return whole[: size - 2].replace(b"\r\n.", b"\r\n,") + b"\r\n"
        part = b"Content-Type: text/plain; charset=us-ascii\r\n\r\n" + unique
        frame = head + _multipart("mixed", f"mixed-{number}", [part, _attachment_head(_NAMES[0])])
        data = self._noise(dice, size - len(frame) - _LINE_BYTES)
        padding = b"See the plan.\r\n".rjust(size - len(frame) - len(data), b"-")
        return head + _multipart("mixed", f"mixed-{number}", [part + padding, _attachment_head(_NAMES[0]) + data])


def unique_word(number: int) -> str:
    """Return a word that only the text of this message and those of the replies to it contain."""
    return f"code{number}x"


def _mailing_list(seed: int, root: int) -> str | None:
    dice = random.Random(f"{seed} list {root}")
    return dice.choice(_LISTS) if dice.random() < 0.2 else None


@functools.lru_cache(1 << 18)
def _parent(seed: int, number: int) -> int | None:
    dice = random.Random(f"{seed} parent {number}")
    if number == 0 or number >= 1_000_000_000 or dice.random() >= REPLY_SHARE:
        return None
    return max(0, number - 1 - int(dice.expovariate(1 / MEAN_DISTANCE)))


@functools.lru_cache(1 << 18)
def _sender(seed: int, number: int) -> tuple[str, str]:
    return random.Random(f"{seed} sender {number}").choice(_PEOPLE)


def _signature(address: str, dice: random.Random) -> list[str]:
    host = address.partition("@")[2]
    signature = base64.b64encode(dice.randbytes(256)).decode()
    folded = "\r\n\t ".join(signature[at : at + 70] for at in range(0, len(signature), 70))
    return [
        f"Authentication-Results: mx.example.test; dkim=pass header.d={host}; spf=pass smtp.mailfrom={address}",
        f"DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d={host}; s=mail;\r\n"
        f"\th=from:to:subject:date:message-id; bh={signature[:44]};\r\n\tb={folded}",
    ]


def _mailbox(name: str, address: str) -> str:
    return f"{name if name.isascii() else _encoded_word(name)} <{address}>"


def _encoded_word(text: str) -> str:
    pieces = [text[at : at + 20] for at in range(0, len(text), 20)]
    return "\r\n ".join(f"=?utf-8?B?{base64.b64encode(piece.encode()).decode()}?=" for piece in pieces)


def _quoted_printable(text: bytes) -> bytes:
    return binascii.b2a_qp(text, istext=True)


def _multipart(kind: str, boundary: str, parts: list[bytes]) -> bytes:
    edge = f"--=_{boundary}".encode()
    return (
        f'Content-Type: multipart/{kind}; boundary="=_{boundary}"\r\n\r\n'.encode()
        + b"".join(edge + b"\r\n" + part + b"\r\n" for part in parts)
        + edge
        + b"--\r\n"
    )


def _attachment_head(name: str) -> bytes:
    shown = name if name.isascii() else _encoded_word(name)
    return (
        f'Content-Type: {_TYPES[name.rpartition(".")[2]]}; name="{shown}"\r\nContent-Transfer-Encoding: base64\r\n'
        f'Content-Disposition: attachment; filename="{shown}"\r\n\r\n'
    ).encode()


def _invitation(number: int) -> bytes:
    return (
        "Content-Type: text/calendar; charset=utf-8; method=REQUEST\r\n\r\nBEGIN:VCALENDAR\r\nVERSION:2.0\r\n"
        f"METHOD:REQUEST\r\nBEGIN:VEVENT\r\nUID:{number}@example.test\r\nDTSTART:20261116T080000Z\r\n"
        f"DTEND:20261116T090000Z\r\nSUMMARY:Meeting {number}\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    ).encode()
