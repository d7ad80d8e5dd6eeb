from __future__ import annotations

import re

import pytest

from protocol.errors import MailError, ProtocolError, Reason
from protocol.smtp import replies
from protocol.smtp.commands import decode_xtext, encode_xtext
from protocol.smtp.replies import Reply, SmtpError


@pytest.mark.parametrize("reply", [*replies.TABLE.values(), *replies.REASONS.values()], ids=lambda r: r.text)
def test_every_reply_is_well_formed(reply: Reply) -> None:
    assert reply.wire.isascii()
    assert len(reply.wire) <= replies.MAX_LINE_BYTES
    if reply.code == 354:
        assert reply.enhanced == ""
    else:
        assert re.fullmatch(r"[245]\.[0-7]\.[0-9]{1,2}", reply.enhanced)
        assert reply.enhanced[0] == str(reply.code)[0]
    assert reply.positive == (reply.code < 400)


def test_multi_line_reply_repeats_the_enhanced_code() -> None:
    assert replies.OK.wire == b"250 2.0.0 Ok\r\n"
    assert Reply(250, "2.0.0", "one\ntwo").wire == b"250-2.0.0 one\r\n250 2.0.0 two\r\n"
    assert replies.hello("mx.example.test").wire == b"250 mx.example.test\r\n"
    assert (
        replies.hello("mx.example.test", ["SIZE 1", "DSN"]).wire == b"250-mx.example.test\r\n250-SIZE 1\r\n250 DSN\r\n"
    )
    assert replies.greeting("mx.example.test", "ESMTP").wire == b"220 mx.example.test ESMTP ready\r\n"
    assert replies.challenge(b"") == b"334 \r\n"
    assert replies.challenge(b"Username:") == b"334 VXNlcm5hbWU6\r\n"


def test_details_cannot_inject_lines() -> None:
    wire = replies.ACCEPTED.about("msg\r\n250 ok\n\x00é" + "x" * 1000).wire
    assert wire.startswith(b"250 2.0.0 Message accepted: msg??250 ok???xxx")
    assert wire.count(b"\r\n") == 1
    assert len(wire) <= replies.MAX_LINE_BYTES


def test_unknown_errors_become_temporary_replies() -> None:
    assert replies.reply_to(MailError(Reason.DISK_FULL, "/secret/path")).wire.startswith(b"452 4.3.1 ")
    assert replies.reply_to(SmtpError(replies.MAIL_FIRST)) is replies.MAIL_FIRST
    for unknown in (OSError("/secret/path"), ProtocolError("x"), KeyError("x")):
        wire = replies.reply_to(unknown).wire
        assert wire.startswith(b"451 4.3.0 ")
        assert b"secret" not in wire
    assert replies.reply_to(MailError(Reason.MAINTENANCE)).closes


def test_xtext_encoding() -> None:
    assert decode_xtext(b"a+2Bb+3D") == b"a+b="
    assert decode_xtext(b"+0d+0A") == b"\r\n"
    for bad in (b"a b", b"a=b", b"+", b"+G0", b"\xc3\xa9", b"+2"):
        assert decode_xtext(bad) is None
    assert encode_xtext(b"a+b=c d\n") == "a+2Bb+3Dc+20d+0A"
