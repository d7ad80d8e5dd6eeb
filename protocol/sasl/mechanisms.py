"""Server side of SASL (RFC 4422) without IO: PLAIN, LOGIN, SCRAM-SHA-256, OAUTHBEARER, XOAUTH2.

The SMTP or IMAP session drives an exchange::

    exchange = start_exchange("PLAIN", config)  # None: no such mechanism
    step = exchange.step(initial_response)      # None: the client sent none
    Challenge      send it, pass the client's response to step()
    NeedPassword   verify it off the event loop, then accept(user) or reject()
    NeedToken      the same, for OAuth tokens
    NeedScramKeys  look up the keys, then supply_keys(keys, name); None for an unknown user
    Success, Failure   the end

Invariants: no input of a client raises; input is bounded by MAX_LINE_BYTES; an exchange that has ended stays ended; an
unknown user and a wrong password are indistinguishable, in SCRAM down to a plausible, stable salt.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto

from protocol.sasl.scram import ScramKeys, keyed_hash

#: One base64 line. RFC 4954 4.5 requires 12288 octets; OAuth tokens with many claims are longer.
MAX_LINE_BYTES = 1 << 16
_MAX_USER_BYTES = 512


class FailureCause(Enum):
    MALFORMED = auto()  # not base64, or not what the mechanism expects
    TOO_LONG = auto()
    CANCELLED = auto()  # the client sent "*"
    REFUSED = auto()  # wrong credentials, for any reason
    UNAVAILABLE = auto()  # the credentials could not be checked


@dataclass(frozen=True, slots=True)
class Challenge:
    data: bytes


@dataclass(frozen=True, slots=True)
class NeedPassword:
    user: str
    password: str

    def __repr__(self) -> str:
        return f"NeedPassword(user={self.user!r})"


@dataclass(frozen=True, slots=True)
class NeedToken:
    """``user`` is the claimed user name; empty if the token alone names the user."""

    user: str
    token: str

    def __repr__(self) -> str:
        return f"NeedToken(user={self.user!r})"


@dataclass(frozen=True, slots=True)
class NeedScramKeys:
    user: str


@dataclass(frozen=True, slots=True)
class Success:
    user: str


@dataclass(frozen=True, slots=True)
class Failure:
    cause: FailureCause


Step = Challenge | NeedPassword | NeedToken | NeedScramKeys | Success | Failure

_MALFORMED = Failure(FailureCause.MALFORMED)
_REFUSED = Failure(FailureCause.REFUSED)


# --- base64 lines (RFC 4954 section 4, RFC 9051 6.2.2)


def encode_line(challenge: bytes) -> bytes:
    return base64.b64encode(challenge)


def decode_line(line: bytes) -> bytes | Failure:
    """Decode a client's response to a challenge, without its line end."""
    if len(line) > MAX_LINE_BYTES:
        return Failure(FailureCause.TOO_LONG)
    if line == b"*":
        return Failure(FailureCause.CANCELLED)
    try:
        return base64.b64decode(line, validate=True)
    except binascii.Error:
        return _MALFORMED


def decode_initial(line: bytes) -> bytes | Failure:
    """Decode an initial response; a single ``=`` means an empty one."""
    return b"" if line == b"=" else decode_line(line)


# --- exchanges


@dataclass(frozen=True, slots=True)
class Config:
    """``nonce`` is fresh and random for each exchange, printable and without comma. ``secret`` is the server's and
    survives a restart: the salts of unknown users are derived from it. ``iterations`` is that of new accounts."""

    nonce: str
    secret: bytes
    iterations: int = 4096

    def __repr__(self) -> str:
        return "Config()"


class Exchange(ABC):
    """One authentication. A call out of order ends it as a failure."""

    __slots__ = ("_config", "_last", "_user")

    def __init__(self, config: Config) -> None:
        self._config = config
        self._last: Step | None = None
        self._user = ""

    def step(self, response: bytes | None) -> Step:
        """Process the initial response (None if the client sent none), then the response to each challenge."""
        if self._last is not None and (response is None or not isinstance(self._last, Challenge)):
            return self._end_step(_MALFORMED)
        if response is not None and len(response) > MAX_LINE_BYTES:
            return self._end_step(Failure(FailureCause.TOO_LONG))
        return self._end_step(self._step(response))

    def accept(self, user: str) -> Step:
        """The password or token is valid and belongs to ``user``."""
        if not isinstance(self._last, NeedPassword | NeedToken):
            return self._end_step(_MALFORMED)
        # A token for one account must not open another one that the client named.
        if isinstance(self._last, NeedToken) and self._last.user.casefold() not in ("", user.casefold()):
            return self.reject()
        return self._end_step(Success(user))

    def reject(self, *, unavailable: bool = False) -> Step:
        """The password or token is wrong, or could not be checked (``unavailable``)."""
        if unavailable:
            return self._end_step(Failure(FailureCause.UNAVAILABLE))
        return self._end_step(self._reject() if isinstance(self._last, NeedToken) else _REFUSED)

    def supply_keys(self, keys: ScramKeys | None, name: str) -> Step:
        """The keys that NeedScramKeys asked for; None for an unknown user.

        ``name`` is the canonical user name: all spellings of the same account must give the same salt, whether or not
        the account exists.
        """
        is_expected = isinstance(self._last, NeedScramKeys)
        return self._end_step(self._challenge_with(keys, name) if is_expected else _MALFORMED)

    @abstractmethod
    def _step(self, response: bytes | None) -> Step:
        """Process a response; None: the client has sent nothing yet."""

    def _reject(self) -> Step:
        return _REFUSED

    def _challenge_with(self, keys: ScramKeys | None, name: str) -> Step:
        return _MALFORMED

    def _end_step(self, step: Step) -> Step:
        self._last = step
        return step


def _name(raw: bytes) -> str | None:
    """A user name: UTF-8, bounded, no control characters."""
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return name if name and len(raw) <= _MAX_USER_BYTES and name.isprintable() else None


def _sasl_name(raw: bytes) -> str | None:
    """RFC 5802 5.1: comma and equals sign are written =2C and =3D."""
    if not _SASL_NAME.fullmatch(raw):
        return None
    return _name(raw.replace(b"=2C", b",").replace(b"=3D", b"="))


_SASL_NAME = re.compile(rb"(?:[^=,\x00]|=2C|=3D)+")


def _password(user: str | None, raw: bytes) -> NeedPassword | Failure:
    if user is None or not raw or b"\x00" in raw:
        return _REFUSED
    try:
        return NeedPassword(user, raw.decode("utf-8"))
    except UnicodeDecodeError:
        return _REFUSED


class _Plain(Exchange):
    """RFC 4616: ``[authzid] NUL authcid NUL password``."""

    __slots__ = ()

    def _step(self, response: bytes | None) -> Step:
        if response is None:
            return Challenge(b"")
        fields = response.split(b"\x00")
        if len(fields) != 3:
            return _MALFORMED
        authzid, authcid, password = fields
        if authzid not in (b"", authcid):
            return _REFUSED
        return _password(_name(authcid), password)


class _Login(Exchange):
    """LOGIN, which no RFC defines: clients expect exactly these prompts."""

    __slots__ = ("_login",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._login: bytes | None = None

    def _step(self, response: bytes | None) -> Step:
        if response is None:
            return Challenge(b"Username:")
        if self._login is None:
            self._login = response
            return Challenge(b"Password:")
        return _password(_name(self._login), response)


class _ScramSha256(Exchange):
    """RFC 5802 and RFC 7677, without channel binding."""

    __slots__ = ("_bare", "_gs2", "_nonce", "_scram", "_server_first", "_user_exists", "_verified")

    # RFC 5802 section 7. "m=" (a mandatory extension) never matches, as required.
    _FIRST = re.compile(
        rb"((?:[ny]|(p=)[A-Za-z0-9.-]+),(?:a=([^,]+))?,)(n=([^,]+),r=([!-+\--~]{1,1024})(?:,[A-Za-z]=[^,]*)*)"
    )
    _FINAL = re.compile(rb"(c=([A-Za-z0-9+/=]+),r=([!-+\--~]+)(?:,[A-Za-oq-z]=[^,]*)*),p=([A-Za-z0-9+/]{43}=)")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._gs2 = self._bare = self._nonce = self._server_first = b""
        self._scram: ScramKeys | None = None
        self._user_exists = False
        self._verified = False

    def _step(self, response: bytes | None) -> Step:
        if response is None:
            return Challenge(b"")
        if not self._bare:
            return self._client_first(response)
        if not self._verified:
            return self._client_final(response)
        return _MALFORMED if response else Success(self._user)

    def _client_first(self, message: bytes) -> Step:
        match = self._FIRST.fullmatch(message)
        # "p=" requests channel binding, which is not offered; "y": the client noticed that (RFC 5802 6).
        if match is None or match[2]:
            return _MALFORMED
        user = _sasl_name(match[5])
        if user is None or (match[3] is not None and _sasl_name(match[3]) != user):
            return _REFUSED
        self._gs2, self._bare, self._user = match[1], match[4], user
        self._nonce = match[6] + self._config.nonce.encode("ascii")
        return NeedScramKeys(user)

    def _challenge_with(self, keys: ScramKeys | None, name: str) -> Step:
        self._user_exists = keys is not None
        decoy = self._decoy(name)  # computed for every user, so that the time is the same
        self._scram = keys or decoy
        self._server_first = b"r=%s,s=%s,i=%d" % (
            self._nonce,
            base64.b64encode(self._scram.salt),
            self._scram.iterations,
        )
        return Challenge(self._server_first)

    def _decoy(self, name: str) -> ScramKeys:
        """Keys for an unknown user; no password matches them."""
        user = name.encode("utf-8", "surrogatepass")
        salt, key = (keyed_hash(self._config.secret, label + user) for label in (b"salt:", b"key:"))
        return ScramKeys(salt[:16], self._config.iterations, key, key)

    def _client_final(self, message: bytes) -> Step:
        match = self._FINAL.fullmatch(message)
        if match is None or self._scram is None:
            return _MALFORMED
        if match[2] != base64.b64encode(self._gs2) or match[3] != self._nonce:
            return _REFUSED
        auth_message = b",".join((self._bare, self._server_first, match[1]))
        signature = keyed_hash(self._scram.stored_key, auth_message)
        client_key = bytes(a ^ b for a, b in zip(base64.b64decode(match[4]), signature))
        is_valid = hmac.compare_digest(hashlib.sha256(client_key).digest(), self._scram.stored_key)
        if not (is_valid and self._user_exists):
            return _REFUSED
        self._verified = True
        # Sent as a challenge: neither SMTP nor IMAP can carry data with the success itself.
        return Challenge(b"v=" + base64.b64encode(keyed_hash(self._scram.server_key, auth_message)))


class _Bearer(Exchange):
    """Common part of the OAuth mechanisms: a list of key=value fields separated by 0x01 octets."""

    __slots__ = ("_refused",)

    _FIELDS = re.compile(rb"(?:[A-Za-z]+=[^\x01]*\x01)*\x01")
    _TOKEN = re.compile(rb"(?i:bearer) +([A-Za-z0-9._~+/-]+=*)")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._refused = False

    def _step(self, response: bytes | None) -> Step:
        if response is None:
            return Challenge(b"")
        if self._refused:
            return _REFUSED
        return self._read(response)

    @abstractmethod
    def _read(self, response: bytes) -> Step:
        """Extract user and token from the initial response."""

    def _token(self, user: str | None, fields: bytes) -> Step:
        if user is None:
            return _REFUSED
        if not self._FIELDS.fullmatch(fields):
            return _MALFORMED
        values = [field[5:] for field in fields.split(b"\x01") if field[:5].lower() == b"auth="]
        match = self._TOKEN.fullmatch(values[0]) if len(values) == 1 else None
        return _MALFORMED if match is None else NeedToken(user, match[1].decode("ascii"))

    def _reject(self) -> Step:
        # RFC 7628 3.2.2: the error is sent as a challenge; after the client's empty response the exchange fails.
        self._refused = True
        return Challenge(b'{"status":"invalid_token","schemes":"bearer"}')


class _OAuthBearer(_Bearer):
    """RFC 7628 3.1."""

    __slots__ = ()

    _GS2 = re.compile(rb"[ny],(?:a=([^,\x01]+))?,\x01")

    def _read(self, response: bytes) -> Step:
        match = self._GS2.match(response)
        if match is None:
            return _MALFORMED
        return self._token("" if match[1] is None else _sasl_name(match[1]), response[match.end() :])


class _XOAuth2(_Bearer):
    """The predecessor of OAUTHBEARER: ``user=`` is a field, and there is no GS2 header."""

    __slots__ = ()

    def _read(self, response: bytes) -> Step:
        user, mark, fields = response.partition(b"\x01")
        if not mark or user[:5].lower() != b"user=":
            return _MALFORMED
        return self._token(_name(user[5:]), fields)


MECHANISMS: dict[str, type[Exchange]] = {
    "SCRAM-SHA-256": _ScramSha256,
    "PLAIN": _Plain,
    "LOGIN": _Login,
    "OAUTHBEARER": _OAuthBearer,
    "XOAUTH2": _XOAuth2,
}


def start_exchange(mechanism: str, config: Config) -> Exchange | None:
    """Start an exchange of the named mechanism (case-insensitive); None: unknown."""
    kind = MECHANISMS.get(mechanism.upper())
    return None if kind is None else kind(config)
