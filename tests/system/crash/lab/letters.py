"""Messages for the crash tests: the same number always gives the same octets."""

from __future__ import annotations

import base64
import random


def _head(number: int, subject: str, reply_to: int | None, extra: str = "") -> bytes:
    lines = [
        "Date: Mon, 16 Nov 2026 08:00:00 +0000",
        "From: Bob Builder <bob@example.test>",
        "To: Ada Lovelace <ada@example.test>",
        f"Subject: {subject}",
        f"Message-ID: <{number}.crash@example.test>",
    ]
    if reply_to is not None:
        lines.append(f"In-Reply-To: <{reply_to}.crash@example.test>")
    return ("\r\n".join(lines) + "\r\n" + extra).encode()


def plain(number: int, *, reply_to: int | None = None, size: int = 300) -> bytes:
    """A text message; with a large ``size`` its canonical file does not fit into a journal record."""
    line = f"Letter {number}: the engine weaves algebraic patterns.\r\n"
    head = _head(number, f"Letter {number}", reply_to)
    return head + b"\r\n" + (line * max(1, size // len(line))).encode()


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def with_files(number: int, *files: bytes, reply_to: int | None = None) -> bytes:
    """A message with attachments."""
    extra = 'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="=-cut"\r\n'
    pieces = [
        _head(number, f"Files {number}", reply_to, extra),
        b"\r\n--=-cut\r\nContent-Type: text/plain\r\n\r\nSee the files.\r\n",
    ]
    for position, data in enumerate(files):
        pieces.append(
            b"--=-cut\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n"
            b'Content-Disposition: attachment; filename="file-%d.bin"\r\n\r\n' % position
        )
        pieces.append(base64.encodebytes(data).replace(b"\n", b"\r\n"))
    pieces.append(b"--=-cut--\r\n")
    return b"".join(pieces)
