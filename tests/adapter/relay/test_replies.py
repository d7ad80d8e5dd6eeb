"""Replies of the smarthost: verdict, status, and one bounded line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.relay import replies
from adapter.relay.replies import Verdict


@pytest.mark.parametrize(
    ("code", "text", "verdict", "status"),
    [
        (250, "2.0.0 ok", Verdict.RELAYED, "2.0.0"),
        (250, "ok", Verdict.RELAYED, "2.0.0"),
        (450, "4.2.1 busy", Verdict.DEFERRED, "4.2.1"),
        (451, "busy", Verdict.DEFERRED, "4.0.0"),
        (550, "5.1.1 no", Verdict.FAILED, "5.1.1"),
        (550, "no", Verdict.FAILED, "5.0.0"),
        (550, "4.1.1 contradicts itself", Verdict.FAILED, "5.0.0"),
        (554, "5.7.1234 no such code", Verdict.FAILED, "5.0.0"),
        (530, "5.7.0 log in", Verdict.DEFERRED, "4.7.0"),
        (535, "5.7.8 wrong password", Verdict.DEFERRED, "4.7.8"),
        (354, "go", Verdict.DEFERRED, "4.5.0"),
        (-1, "nonsense", Verdict.DEFERRED, "4.5.0"),
    ],
)
def test_replies_have_a_verdict_and_a_status(code: int, text: str, verdict: Verdict, status: str) -> None:
    reply = replies.parse_reply(code, text, "host")
    assert (reply.verdict, reply.status) == (verdict, status)


@pytest.mark.parametrize(
    ("code", "text", "verdict"),
    [
        (452, "4.5.3 too many", Verdict.RETRY_NOW),
        (452, "too many", Verdict.RETRY_NOW),
        (552, "too many", Verdict.RETRY_NOW),
        (552, "5.5.3 too many", Verdict.RETRY_NOW),
        (552, "5.2.2 mailbox full", Verdict.FAILED),
        (452, "4.2.2 mailbox full", Verdict.DEFERRED),
        (550, "5.1.1 no", Verdict.FAILED),
    ],
)
def test_replies_to_rcpt_have_a_verdict(code: int, text: str, verdict: Verdict) -> None:
    assert replies.parse_rcpt_reply(code, text, "host").verdict is verdict


@given(st.integers(-10, 999), st.text(max_size=3000))
def test_every_reply_is_one_bounded_line(code: int, text: str) -> None:
    for reply in (replies.parse_reply(code, text, "host"), replies.parse_rcpt_reply(code, text, "host")):
        assert reply.text.isprintable()
        assert len(reply.text.encode()) < 2200
        assert re.fullmatch(r"[245]\.\d{1,3}\.\d{1,3}", reply.status)
