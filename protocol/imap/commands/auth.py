"""Parsers of LOGIN, AUTHENTICATE, ID, ENABLE and COMPRESS."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Final

from protocol.imap.commands.model import Authenticate, Compress, Enable, Id, Login
from protocol.imap.wire.lexer import CommandError, Lexer

_MAX_ID_FIELDS: Final = 30


# RFC 3501 6.2.3 login = "LOGIN" SP userid SP password
def parse_login(lexer: Lexer) -> Login:
    lexer.space()
    user = lexer.text(lexer.astring("a user name"))
    lexer.space()
    return Login(user, lexer.astring("a password"))


# RFC 3501 6.2.2 authenticate = "AUTHENTICATE" SP auth-type; RFC 4959 7 [SP initial-resp]
def parse_authenticate(lexer: Lexer) -> Authenticate:
    lexer.space()
    mechanism = lexer.keyword("a mechanism")
    if lexer.at_end:
        return Authenticate(mechanism)
    lexer.space()
    response = lexer.atom("an initial response")
    return Authenticate(mechanism, b"" if response == b"=" else _base64(response))


# RFC 3501 6.2.2 *(CRLF base64), or "*" to cancel
def sasl_response(line: bytes) -> bytes | None:
    """Decode the client's response to a challenge; None if it cancels the exchange."""
    line = line.strip()
    return None if line == b"*" else _base64(line)


def _base64(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except Base64Error:
        raise CommandError("Response is not valid base64") from None


# RFC 2971 3.1 id = "ID" SP id_params_list
def parse_id(lexer: Lexer) -> Id:
    lexer.space()
    if not lexer.next_is(b"("):
        if lexer.nstring("a list or NIL") is not None:
            raise CommandError("Expected a list or NIL")
        return Id(())

    def pair() -> tuple[str, str | None]:
        name = lexer.text(lexer.string("a field name"))
        lexer.space()
        value = lexer.nstring()
        return name.lower(), None if value is None else lexer.text(value)

    fields = lexer.parenthesised(pair, empty=True)
    if len(fields) > _MAX_ID_FIELDS:
        raise CommandError(f"More than {_MAX_ID_FIELDS} fields")
    return Id(tuple(fields))


# RFC 5161 3.1 enable = "ENABLE" 1*(SP capability)
def parse_enable(lexer: Lexer) -> Enable:
    names: list[str] = []
    while not names or not lexer.at_end:
        lexer.space()
        names.append(lexer.keyword("a capability"))
    return Enable(tuple(dict.fromkeys(names)))


# RFC 4978 5 compress = "COMPRESS" SP algorithm
def parse_compress(lexer: Lexer) -> Compress:
    lexer.space()
    return Compress(lexer.keyword("an algorithm"))
