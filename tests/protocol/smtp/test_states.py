from __future__ import annotations

import itertools

import pytest

from protocol.smtp import commands, ehlo, replies
from protocol.smtp.data import MessageLimits
from protocol.smtp.states import RULES, TRANSITIONS, Event, Phase, Service, SessionState, refusal

COMMANDS = [
    *("HELO", "EHLO", "LHLO", "MAIL", "RCPT", "DATA", "BDAT", "RSET", "NOOP", "VRFY", "EXPN", "HELP", "QUIT"),
    *("STARTTLS", "AUTH", "XCLIENT"),
]


def allowed(session: SessionState) -> set[str]:
    return {command for command in COMMANDS if refusal(session, command) is None}


def test_table_has_every_command() -> None:
    assert set(RULES) == set(COMMANDS)


@pytest.mark.parametrize(
    ("phase", "commands"),
    [
        (Phase.CONNECTED, set()),
        (Phase.GREETED, {"MAIL"}),
        (Phase.MAIL, {"RCPT"}),
        (Phase.RCPT, {"RCPT", "DATA", "BDAT"}),
        (Phase.CHUNKS, {"BDAT"}),
        (Phase.BROKEN, set()),
    ],
)
def test_commands_allowed_in_each_phase(phase: Phase, commands: set[str]) -> None:
    session = SessionState(Service.MX, extended=True, phase=phase)
    assert allowed(session) == commands | {"HELO", "EHLO", "RSET", "NOOP", "VRFY", "HELP", "QUIT"}


def test_every_refusal_is_negative_in_every_state() -> None:
    flags = list(itertools.product([False, True], repeat=6))
    for service, phase, (tls_able, plain, trusted, tls, extended, binary) in itertools.product(Service, Phase, flags):
        for authenticated in (False, True):
            session = SessionState(
                service,
                tls_available=tls_able,
                plaintext_auth=plain,
                mechanisms=("PLAIN",),
                xclient_trusted=trusted,
                tls=tls,
                extended=extended,
                authenticated=authenticated,
                binary=binary,
                phase=phase,
            )
            for command in [*COMMANDS, "GET", "FOO", ""]:
                reply = refusal(session, command)
                assert reply is None or reply.code >= 400
            assert not {"QUIT", "NOOP", "RSET"} - allowed(session)
            if phase is not Phase.GREETED:
                assert not {"MAIL", "AUTH", "STARTTLS"} & allowed(session)
            if service is Service.SUBMISSION and not authenticated:
                assert "MAIL" not in allowed(session)
            if not tls and not plain:
                assert "AUTH" not in allowed(session)


def test_lmtp_accepts_only_lhlo_and_smtp_only_helo_and_ehlo() -> None:
    smtp, local = SessionState(Service.MX), SessionState(Service.LMTP)
    assert refusal(smtp, "LHLO") == refusal(local, "EHLO") == refusal(local, "HELO") == replies.UNKNOWN_COMMAND
    assert refusal(local, "LHLO") is None
    assert refusal(smtp, "GET") == replies.NOT_SMTP
    assert replies.NOT_SMTP.closes


def test_submission_requires_tls_then_auth() -> None:
    session = SessionState(Service.SUBMISSION, tls_available=True, mechanisms=("PLAIN",))
    session.advance(Event.HELLO)
    session.extended = True
    assert refusal(session, "MAIL") == replies.TLS_REQUIRED
    assert refusal(session, "AUTH") == replies.ENCRYPTION_REQUIRED
    assert refusal(session, "STARTTLS") is None
    session.advance(Event.RESTART)
    session.tls = True
    assert session.phase is Phase.CONNECTED
    assert refusal(session, "AUTH") == replies.HELLO_FIRST
    session.advance(Event.HELLO)
    assert refusal(session, "AUTH") == replies.EHLO_FIRST
    session.extended = True
    assert refusal(session, "STARTTLS") == replies.ALREADY_TLS
    assert refusal(session, "MAIL") == replies.AUTH_REQUIRED
    assert refusal(session, "AUTH") is None
    session.authenticated = True
    assert refusal(session, "AUTH") == replies.ALREADY_AUTHENTICATED
    assert refusal(session, "MAIL") is None


def test_smtp_without_tls_offers_neither_auth_nor_starttls() -> None:
    session = SessionState(Service.MX, extended=True, phase=Phase.GREETED)
    assert refusal(session, "AUTH") == replies.NOT_IMPLEMENTED
    assert refusal(session, "STARTTLS") == replies.NOT_IMPLEMENTED
    assert refusal(session, "XCLIENT") == replies.UNKNOWN_COMMAND


def test_binary_content_requires_bdat() -> None:
    session = SessionState(Service.MX, extended=True, phase=Phase.GREETED)
    session.advance(Event.SENDER)
    session.binary = True
    session.advance(Event.RECIPIENT)
    assert refusal(session, "DATA") == replies.BINARY_NEEDS_BDAT
    assert refusal(session, "BDAT") is None
    session.advance(Event.CHUNK)
    assert refusal(session, "RCPT") == replies.CHUNKS_STARTED
    session.advance(Event.CHUNK_FAILED)
    assert refusal(session, "BDAT") == replies.CHUNKS_FAILED
    session.advance(Event.END)
    assert session.phase is Phase.GREETED
    assert not session.binary


def test_transitions_cover_all_allowed_commands() -> None:
    needed = {"MAIL": [Event.SENDER], "RCPT": [Event.RECIPIENT], "DATA": [Event.END]}
    needed |= {
        "BDAT": [Event.CHUNK, Event.CHUNK_FAILED, Event.END],
        "RSET": [Event.END],
        "EHLO": [Event.HELLO],
    }
    for phase, (command, events) in itertools.product(Phase, needed.items()):
        if refusal(SessionState(Service.MX, extended=True, phase=phase), command) is None:
            assert all((phase, event) in TRANSITIONS for event in events)


def test_keywords_follow_the_state() -> None:
    limits = MessageLimits(message_size=1000, recipients=7)
    session = SessionState(Service.SUBMISSION, tls_available=True, mechanisms=("PLAIN", "LOGIN"), extended=True)
    plain = ehlo.keywords(session, limits)
    assert {"SIZE 1000", "STARTTLS", "8BITMIME", "SMTPUTF8", "CHUNKING", "BINARYMIME", "DSN"} <= set(plain)
    assert "LIMITS RCPTMAX=7" in plain
    assert not any(line.startswith(("AUTH", "REQUIRETLS", "XCLIENT")) for line in plain)
    session.authenticated = True
    assert "STARTTLS" not in ehlo.keywords(session, limits)  # it would be refused
    session.authenticated = False
    session.tls = True
    secure = ehlo.keywords(session, limits)
    assert {"AUTH PLAIN LOGIN", "REQUIRETLS"} <= set(secure)
    assert "STARTTLS" not in secure


def test_parameters_follow_the_offered_extensions() -> None:
    session = SessionState(Service.MX, extended=True)
    assert ehlo.mail_parameters(session) == commands.MAIL_PARAMETERS - {"AUTH", "REQUIRETLS"}
    assert ehlo.rcpt_parameters(session) == commands.RCPT_PARAMETERS
    session.tls = True
    session.mechanisms = ("PLAIN",)
    assert ehlo.mail_parameters(session) == commands.MAIL_PARAMETERS
    session.extended = False
    assert ehlo.mail_parameters(session) == ehlo.rcpt_parameters(session) == frozenset()


def test_lhlo_offers_the_required_extensions() -> None:
    session = SessionState(Service.LMTP, extended=True, xclient_trusted=True)
    offered = {line.split()[0] for line in ehlo.keywords(session, MessageLimits())}
    assert offered >= {"PIPELINING", "ENHANCEDSTATUSCODES", "8BITMIME", "XCLIENT"}  # the first two: RFC 2033 5


def test_lmtp_replies_once_per_recipient() -> None:
    bob, eve = "bob@example.test", "eve@example.test"
    outcomes = {bob: replies.ACCEPTED, eve: replies.SHUTTING_DOWN}
    wires = [reply.wire for reply in replies.lmtp_replies([bob, eve, bob, "lost@example.test"], outcomes)]
    assert wires[0] == wires[2] == b"250 2.0.0 <bob@example.test> Message accepted\r\n"
    assert wires[1].startswith(b"451 4.3.2 <eve@example.test> ")
    assert wires[3].startswith(b"451 4.3.0 <lost@example.test> ")
    refused = replies.lmtp_replies([bob, eve], replies.TOO_BIG)
    assert [reply.code for reply in refused] == [552, 552]
    assert replies.lmtp_replies([], replies.TOO_BIG) == []
