"""Simple messages for tests: every call gives what its arguments say and nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence


def message(
    subject: str = "Hello",
    body: str = "Hello Ada.\r\n",
    *,
    message_id: str | None = None,
    in_reply_to: str | None = None,
    references: Sequence[str] = (),
    to: str = "ada@example.test",
    cc: str | None = None,
    attachments: Sequence[bytes] = (),
) -> bytes:
    """RFC 5322 octets; with ``attachments`` a multipart/mixed that carries them in base64."""
    fields = [
        ("Date", "Mon, 16 Nov 2026 08:00:00 +0000"),
        ("From", "Bob <bob@example.test>"),
        ("To", to),
        ("Cc", cc),
        ("Subject", subject),
        ("Message-ID", message_id),
        ("In-Reply-To", in_reply_to),
        ("References", " ".join(references) or None),
    ]
    head = "".join(f"{name}: {value}\r\n" for name, value in fields if value is not None)
    if not attachments:
        return f"{head}Content-Type: text/plain; charset=utf-8\r\n\r\n{body}".encode()
    parts = [f"Content-Type: text/plain; charset=utf-8\r\n\r\n{body}".encode()]
    parts += [
        b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n"
        b'Content-Disposition: attachment; filename="file-%d.bin"\r\n\r\n%b'
        % (number, base64.encodebytes(data).replace(b"\n", b"\r\n"))
        for number, data in enumerate(attachments)
    ]
    whole = b"".join(b"--=_cut\r\n%b\r\n" % part for part in parts)
    return (
        head.encode()
        + b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="=_cut"\r\n\r\n'
        + whole
        + b"--=_cut--\r\n"
    )
