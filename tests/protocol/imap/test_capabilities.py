"""The table of capabilities, ENABLE, and the document made from the table."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

import protocol.imap
from protocol.imap.capabilities import CAPABILITIES, Situation, enable, offered, rfc_status
from protocol.imap.wire.lexer import PLAIN, Dialect

LOGGED_IN = Situation(logged_in=True, tls=True)


def test_the_document_is_the_table() -> None:
    written = resources.files(protocol.imap).joinpath("RFC-STATUS.md").read_text("utf-8")
    assert written == rfc_status(), "write protocol.imap.capabilities.rfc_status() to RFC-STATUS.md"


def test_names_are_unique() -> None:
    assert len({c.name for c in CAPABILITIES}) == len(CAPABILITIES)


def test_before_login_without_tls() -> None:
    assert offered(Situation(scram=False)) == (
        "IMAP4rev1", "IMAP4rev2", "STARTTLS", "LOGINDISABLED", "SASL-IR", "LITERAL+", "ID", "ENABLE",
    )  # fmt: skip


def test_before_login_under_tls() -> None:
    names = offered(Situation(tls=True, oauth=True))
    assert "STARTTLS" not in names
    assert "LOGINDISABLED" not in names
    assert {"AUTH=PLAIN", "AUTH=LOGIN", "AUTH=SCRAM-SHA-256", "AUTH=OAUTHBEARER", "AUTH=XOAUTH2"} <= set(names)


def test_plaintext_where_allowed() -> None:
    names = offered(Situation(plaintext=True, starttls=False))
    assert "AUTH=PLAIN" in names
    assert "STARTTLS" not in names
    assert "LOGINDISABLED" not in names


def test_after_login() -> None:
    names = offered(LOGGED_IN)
    assert not [n for n in names if n.startswith("AUTH=")]
    assert "STARTTLS" not in names
    assert {"CONDSTORE", "QRESYNC", "UIDONLY", "MOVE", "OBJECTID", "PARTIAL", "COMPRESS=DEFLATE"} <= set(names)
    assert not {"QUOTA", "UNAUTHENTICATE", "ACL", "METADATA", "NOTIFY", "CATENATE"} & set(names)


def test_configured_capabilities() -> None:
    names = offered(
        replace(LOGGED_IN, quota=True, literal_plus=False, compress=False, append_limit=1000, message_limit=50)
    )
    assert {"QUOTA", "QUOTA=RES-STORAGE", "LITERAL-", "APPENDLIMIT=1000", "MESSAGELIMIT=50"} <= set(names)
    assert not {"LITERAL+", "COMPRESS=DEFLATE"} & set(names)


def test_enable() -> None:
    assert enable(("QRESYNC", "BOGUS", "IDLE"), PLAIN, LOGGED_IN) == (
        Dialect(condstore=True, qresync=True),
        ("QRESYNC",),
    )
    dialect, names = enable(("IMAP4REV2", "UTF8=ACCEPT", "UIDONLY", "UIDONLY"), PLAIN, LOGGED_IN)
    assert dialect == Dialect(rev2=True, utf8=True, uid_only=True)
    assert names == ("IMAP4rev2", "UTF8=ACCEPT", "UIDONLY")
    assert enable(("CONDSTORE",), PLAIN, Situation()) == (PLAIN, ())
