"""Many different messages: what real mailboxes hold, made by number."""

from __future__ import annotations

import base64
import random

_WORDS = [
    "engine",
    "loom",
    "pattern",
    "brass",
    "punched",
    "card",
    "number",
    "mill",
    "store",
    "barrel",
    "analysis",
    "note",
    "figure",
    "wheel",
    "axis",
]


def varied_message(number: int) -> bytes:
    """The same octets for the same number: plain, with umlauts, HTML, attachments, odd line ends, no body …"""
    dice = random.Random(number)
    words = " ".join(dice.choice(_WORDS) for _ in range(4))
    head = (
        f"Return-Path: <bob@example.test>\r\nDate: Mon, {number % 28 + 1} Nov 2026 08:{number % 60:02}:00 +0100\r\n"
        f"From: Bob Builder <bob@example.test>\r\nTo: Ada <ada@example.test>\r\n"
        f"Message-ID: <{number}.varied@example.test>\r\nSubject: {words} {number}\r\nMIME-Version: 1.0\r\n"
    )
    text = "\r\n".join(" ".join(dice.choice(_WORDS) for _ in range(8)) for _ in range(number % 30 + 1)) + "\r\n"
    kind = number % 7
    if kind == 0:
        return f"{head}Content-Type: text/plain; charset=utf-8\r\n\r\nGrüße, Ada\r\n{text}".encode()
    if kind == 1:
        return f"{head}Content-Type: text/html\r\n\r\n<p>{text}</p>\r\n".encode()
    if kind == 2:
        blob = base64.encodebytes(dice.randbytes(dice.randrange(10, 20000))).decode().replace("\n", "\r\n")
        return (
            f'{head}Content-Type: multipart/mixed; boundary="b{number}"\r\n\r\npreamble\r\n--b{number}\r\n\r\n{text}'
            f"--b{number}\r\nContent-Type: application/pdf; name=plan.pdf\r\nContent-Transfer-Encoding: base64\r\n"
            f"Content-Disposition: attachment; filename=plan.pdf\r\n\r\n{blob}--b{number}--\r\n"
        ).encode()
    if kind == 3:
        return f"{head}\r\n".encode()
    if kind == 4:
        return (
            f"{head}Content-Type: text/plain; charset=iso-8859-1\r\n\r\n".encode() + b"Gr\xfc\xdfe\r\n" + text.encode()
        )
    if kind == 5:
        return f"{head}\r\nFrom the beginning\r\n.\r\n..dots\r\n{'x' * 2000}\r\n{text}".encode()
    inner = varied_message(number + 1).decode("latin-1")
    return (
        f"{head}Content-Type: multipart/mixed; boundary=x\r\n\r\n"
        f"--x\r\nContent-Type: message/rfc822\r\n\r\n{inner}\r\n--x--\r\n"
    ).encode("latin-1")
