"""Compose a message from Markdown: multipart/alternative with the Markdown as text/plain and its HTML.

``ingest`` returns the text as the body of the canonical file, character for character. The octets are ASCII and survive
any relay. The same input gives the same octets. Header injection is impossible: every header value is encoded or
rejected.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from email.utils import format_datetime
from hashlib import sha256
from typing import Any, NamedTuple

from adapter.content import front_matter
from adapter.content.encodings import base64_lines, quoted_printable
from adapter.content.encodings.quoted_printable import Quoting
from adapter.content.html.markdown_to_html import markdown_to_html
from adapter.content.parts import safe_name
from protocol.errors import MailError, Reason
from protocol.idna import to_ascii
from protocol.mime.addresses import Mailbox, mailboxes

Person = str | Mailbox

_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_ATOM = r"[^\s()<>\[\]:;@\\,\"\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
_ADDRESS = re.compile(rf'({_ATOM}|"(?:[ !#-\[\]-~]|\\[ -~])*")@({_ATOM}|\[[0-9A-Za-z:.]+\])')
_TYPE = re.compile(r"(?!multipart/|message/)[A-Za-z0-9!#$&^_.+-]{1,60}/[A-Za-z0-9!#$&^_.+-]{1,60}")
_PHRASE = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)[ \t#]*$", re.MULTILINE)
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_FROM_LINE = re.compile(rb"^From ", re.MULTILINE)
# Text that relays change (trailing blanks, "From ", control characters) or that exceeds RFC 5322 section 2.1.1.
_FRAGILE = re.compile(rb"^From |[ \t]$|[^\t\n -~]|^[^\n]{900}", re.MULTILINE)
_ENCODED_WORD_BYTES = 42
_MAX_SUBJECT_CHARACTERS = 900
_QUOTING = Quoting(width=75, final=76)
_COMPOSE_KEYS = ("from", "to", "cc", "reply_to", "subject", "in_reply_to", "references")
#: Front matter of a stored message that is generated again when the message is sent again.
_STORED_ONLY_KEYS = ("id", "date", "message_id", "thread", "wire", "digest")


class Attachment(NamedTuple):
    name: str
    type: str
    data: bytes


class Headers(NamedTuple):
    """The header values of a message to compose. An empty subject becomes the first heading of the text."""

    author: Person | None = None  # None: the sender
    to: Sequence[Person] = ()
    cc: Sequence[Person] = ()
    reply_to: Sequence[Person] = ()
    subject: str = ""
    in_reply_to: str = ""
    references: Sequence[str] = ()


def compose(
    markdown_file: bytes | str,
    *,
    sender: Person,
    recipients: Iterable[Person],
    now: datetime,
    message_id: str,
    attachments: Sequence[tuple[str, str, bytes]] = (),
    ignore_unknown_keys: bool = False,
) -> bytes:
    """Compose the octets of a Markdown file; raises MailError(BAD_CONTENT or BAD_ADDRESS).

    Optional front matter sets ``from``, ``to``, ``cc``, ``reply_to``, ``subject``, ``in_reply_to`` and ``references``.
    Without ``to`` and ``cc`` the To header lists ``recipients``; otherwise the headers list only the named people.
    Unknown keys are rejected, unless ``ignore_unknown_keys`` is set for files that were not written to be sent. A
    stored message can be sent again unless it has attachments, because its file does not contain them.
    """
    values, text = _read(markdown_file)
    if not ignore_unknown_keys:
        _check_keys(values)
    headers = _headers_of(values)
    if not headers.to and not headers.cc:
        headers = headers._replace(to=list(recipients))
    return compose_message(headers, text, sender=sender, now=now, message_id=message_id, attachments=attachments)


def compose_message(
    headers: Headers,
    text: str,
    *,
    sender: Person,
    now: datetime,
    message_id: str,
    attachments: Sequence[tuple[str, str, bytes]] = (),
) -> bytes:
    """Compose the octets of a Markdown text; raises MailError(BAD_CONTENT or BAD_ADDRESS)."""
    text = _normal_text(text)
    if not _MESSAGE_ID.fullmatch(message_id):
        raise MailError(Reason.BAD_CONTENT, f"bad message id {message_id[:80]!r}")
    parts = _alternative(text)
    octets = _multipart("alternative", parts)
    if attachments:
        files = [_file(Attachment(*attachment)) for attachment in attachments]
        octets = _multipart("mixed", [octets, *files])
    return "".join(_header_lines(headers, text, sender, now, message_id)).encode() + octets


def read_date(markdown_file: bytes) -> int | None:
    """The ``date`` of the front matter in seconds; None if it has none, or an impossible one."""
    value = _read(markdown_file)[0].get("date")
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        return int((value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, date):
        return int(datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp())
    return None


def _read(markdown_file: bytes | str) -> tuple[dict[str, Any], str]:
    """Split a Markdown file into front matter (may be empty) and text."""
    raw = markdown_file.encode("utf-8", "replace") if isinstance(markdown_file, str) else markdown_file
    raw = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\x00", b"")
    values: dict[str, Any] = {}
    start = 0
    if raw.startswith(b"---\n") and (raw.find(b"\n---\n", 3) >= 0 or raw.endswith(b"\n---")):
        closed = raw if raw.find(b"\n---\n", 3) >= 0 else raw + b"\n"
        values, start = front_matter.load(closed)
    try:
        text = raw[start:].decode()
    except UnicodeDecodeError as error:
        raise MailError(Reason.BAD_CONTENT, "the Markdown is not UTF-8") from error
    return values, text


def _normal_text(text: str) -> str:
    """Return text with LF line endings and a final one, without NUL and lone surrogates."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    text = text.encode("utf-8", "replace").decode()
    return text if text.endswith("\n") else text + "\n"


def _headers_of(values: dict[str, Any]) -> Headers:
    return Headers(
        next(iter(_people(values.get("from"))), None),
        _people(values.get("to")),
        _people(values.get("cc")),
        _people(values.get("reply_to")),
        str(values.get("subject") or ""),
        " ".join(_ids(values.get("in_reply_to"))[:1]),
        _ids(values.get("references")),
    )


def _check_keys(values: dict[str, Any]) -> None:
    stored = "wire" in values
    if stored and "attachments" in values:
        raise MailError(
            Reason.BAD_CONTENT,
            "front matter: this stored message has attachments, which its file does not contain; run markpost export"
            " and deliver the exported message instead",
        )
    allowed = (*_COMPOSE_KEYS, *_STORED_ONLY_KEYS) if stored else _COMPOSE_KEYS
    for key in (key for key in values if key not in allowed):
        raise MailError(
            Reason.BAD_CONTENT, f"front matter: unknown key {key[:80]!r}; use one of {', '.join(_COMPOSE_KEYS)}"
        )


# -- headers ------------------------------------------------------------------------------------------------------


def _header_lines(headers: Headers, text: str, sender: Person, now: datetime, message_id: str) -> list[str]:
    envelope_sender = _person(sender)
    author = envelope_sender if headers.author is None else _person(headers.author)
    if not author.name and author.address == envelope_sender.address:
        author = envelope_sender
    to, cc, reply_to = ([_person(each) for each in people] for people in (headers.to, headers.cc, headers.reply_to))
    lines = [f"From: {_mailbox(author)}\r\n"]
    if author.address != envelope_sender.address:
        lines.append(f"Sender: {_mailbox(envelope_sender)}\r\n")
    lines.append(_address_list("To", to) if to or cc else "To: undisclosed-recipients:;\r\n")
    lines.append(_address_list("Cc", cc))
    lines.append(_address_list("Reply-To", reply_to))
    subject = _CONTROLS.sub(" ", headers.subject or _title(text))[:_MAX_SUBJECT_CHARACTERS].strip()
    if subject:
        lines.append(f"Subject: {_unstructured(subject)}\r\n")
    lines.append(f"Date: {format_datetime(now if now.tzinfo is not None else now.replace(tzinfo=UTC))}\r\n")
    lines.append(f"Message-ID: {message_id}\r\n")
    parents = _ids(headers.in_reply_to)[:1]
    references = _ids(list(headers.references)) or parents
    for name, ids in (("In-Reply-To", parents), ("References", references)):
        if ids:
            lines.append(f"{name}: " + "\r\n ".join(ids) + "\r\n")
    lines.append("MIME-Version: 1.0\r\n")
    return lines


def _title(text: str) -> str:
    """The first heading of the text: the default subject."""
    match = _HEADING.search(text[:2000])
    return match[1] if match else ""


def _person(value: object) -> Mailbox:
    """Parse a person: a Mailbox, a mapping with name and address, or text such as ``Ada <ada@example.test>``."""
    name = ""
    if isinstance(value, Mailbox):
        name, address = value
    elif isinstance(value, dict):
        name, address = str(value.get("name") or ""), str(value.get("address") or "")
    else:
        address = str(value).strip()
        if "<" in address:
            addresses = mailboxes(address.encode("utf-8", "replace"))
            name, address = addresses[0] if len(addresses) == 1 else ("", address)
    match = _ADDRESS.fullmatch(address)
    if match is None or len(address) > 320:
        raise MailError(Reason.BAD_ADDRESS, f"bad address {address[:80]!r}")
    local, domain = match.groups()
    if not domain.isascii():
        try:
            domain = to_ascii(domain)
        except UnicodeError as error:
            raise MailError(Reason.BAD_ADDRESS, f"bad domain in {address[:80]!r}") from error
    return Mailbox(" ".join(_CONTROLS.sub(" ", name).split())[:200], f"{local}@{domain}")


def _people(value: object) -> list[Mailbox]:
    if not value:
        return []
    if isinstance(value, str):
        addresses = mailboxes(value.encode("utf-8", "replace"))
        return [_person(person) for person in addresses] if addresses else [_person(value)]
    return [_person(item) for item in value] if isinstance(value, list) else [_person(value)]


def _ids(value: object) -> list[str]:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return _MESSAGE_ID.findall(text)[:100]


def _address_list(name: str, people: Sequence[Mailbox]) -> str:
    return f"{name}: " + ",\r\n ".join(map(_mailbox, people)) + "\r\n" if people else ""


def _mailbox(person: Mailbox) -> str:
    name, address = person
    if not name:
        return address
    if not name.isascii() or "=?" in name:
        name = _encoded_words(name)
    elif not _PHRASE.fullmatch(name):
        name = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{name}\r\n <{address}>" if len(name) + len(address) > 70 else f"{name} <{address}>"


def _unstructured(text: str) -> str:
    """Encode an unstructured value (RFC 5322 section 3.2.5): plain ASCII folded at blanks, else encoded words."""
    words = text.split(" ")
    if not text.isascii() or "=?" in text or "" in words or max(map(len, words)) > 70:
        return _encoded_words(text)
    lines, line = [], words[0]
    for word in words[1:]:
        if len(line) + len(word) > 66:
            lines.append(line)
            line = word
        else:
            line += " " + word
    return "\r\n ".join([*lines, line])


def _encoded_words(text: str) -> str:
    """Encode text as encoded words of at most 75 characters that never split a character (RFC 2047 section 2)."""
    raw = text.encode()
    words = []
    at = 0
    while at < len(raw):
        stop = min(at + _ENCODED_WORD_BYTES, len(raw))
        while stop < len(raw) and raw[stop] & 0xC0 == 0x80:
            stop -= 1
        words.append(f"=?utf-8?B?{b2a_base64(raw[at:stop], newline=False).decode()}?=")
        at = stop
    return "\r\n ".join(words)


# -- parts --------------------------------------------------------------------------------------------------------


def _alternative(text: str) -> list[bytes]:
    return [_text_part("plain", text), _text_part("html", markdown_to_html(text))]


def _text_part(subtype: str, text: str) -> bytes:
    """Encode a text part with the most readable encoding that survives relays. The final newline is the delimiter's."""
    raw = text.encode()
    if not _FRAGILE.search(raw):
        encoding, encoded = "7bit", raw.replace(b"\n", b"\r\n")
    elif 3 * len(raw.translate(None, _ASCII)) > len(raw):
        encoding, encoded = "base64", base64_lines.encode(raw.replace(b"\n", b"\r\n"), 76, b"\r\n") + b"\r\n"
    else:
        extra = tuple(match.start() for match in _FROM_LINE.finditer(raw))
        quoting = _QUOTING._replace(blanks=not extra, extra=_extra(raw, extra) if extra else ())
        encoding, encoded = "quoted-printable", quoted_printable.encode(raw, quoting).replace(b"\n", b"\r\n")
    head = f"Content-Type: text/{subtype}; charset=utf-8\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n"
    return head.encode() + encoded


def _extra(raw: bytes, from_lines: tuple[int, ...]) -> tuple[int, ...]:
    """Offsets to escape in a text with "From " lines: these lines, and trailing blanks."""
    blanks = [match.start() for match in re.finditer(rb"[ \t](?=\n|\Z)", raw)]
    return tuple(sorted({*from_lines, *blanks}))


_ASCII = bytes(range(0x80))
_PLAIN_IN_NAMES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"


def _file(attachment: Attachment) -> bytes:
    kind = attachment.type if _TYPE.fullmatch(attachment.type) else "application/octet-stream"
    name = safe_name(attachment.name) or "attachment"
    if name.isascii():
        parameter = f'filename="{name}"'
    else:  # RFC 2231 section 4
        escaped = "".join(chr(o) if o in _PLAIN_IN_NAMES else f"%{o:02X}" for o in name.encode())
        parameter = f"filename*=utf-8''{escaped}"
    head = (
        f"Content-Type: {kind}\r\nContent-Transfer-Encoding: base64\r\n"
        f"Content-Disposition: attachment;\r\n {parameter}\r\n\r\n"
    )
    return head.encode() + base64_lines.encode(attachment.data, 76, b"\r\n") + b"\r\n"


def _multipart(subtype: str, parts: list[bytes]) -> bytes:
    """Join parts as a multipart (RFC 2046 section 5.1). Each part ends with a newline; no part can contain "=_"."""
    hasher = sha256(subtype.encode())
    for part in parts:
        hasher.update(part)
    boundary = f"=_{hasher.hexdigest()[:32]}"
    head = f'Content-Type: multipart/{subtype};\r\n boundary="{boundary}"\r\n\r\n'
    delimiter = f"--{boundary}\r\n".encode()
    body = b"".join([delimiter + part for part in parts])
    return head.encode() + body + f"--{boundary}--\r\n".encode()
