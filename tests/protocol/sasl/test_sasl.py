from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.sasl import mechanisms
from protocol.sasl import scram as stored
from protocol.sasl.mechanisms import (
    Challenge,
    Config,
    Exchange,
    Failure,
    FailureCause,
    NeedPassword,
    NeedScramKeys,
    NeedToken,
    Step,
    Success,
)

CONFIG = Config(nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", secret=b"s" * 32)
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KEYS = stored.parse_scram_keys(stored.scram_keys("pencil", SALT, 4096))
MALFORMED, REFUSED = Failure(FailureCause.MALFORMED), Failure(FailureCause.REFUSED)


def begin(mechanism: str) -> Exchange:
    exchange = mechanisms.start_exchange(mechanism, CONFIG)
    assert exchange is not None
    return exchange


def test_mechanisms_are_found_in_any_case() -> None:
    assert mechanisms.start_exchange("plain", CONFIG) is not None
    assert mechanisms.start_exchange("CRAM-MD5", CONFIG) is None
    assert mechanisms.start_exchange("SCRAM-SHA-256-PLUS", CONFIG) is None


def test_base64_lines_are_decoded_or_fail() -> None:
    assert mechanisms.decode_line(b"") == b""
    assert mechanisms.decode_line(b"AGE=") == b"\x00a"
    assert mechanisms.decode_initial(b"=") == b""
    assert mechanisms.decode_line(b"=") == MALFORMED
    assert mechanisms.decode_line(b"*") == Failure(FailureCause.CANCELLED)
    for bad in (b"AGE", b"A GE=", b"\xff", b"AGE=AGE="):
        assert mechanisms.decode_line(bad) == MALFORMED
    assert mechanisms.decode_line(b"A" * mechanisms.MAX_LINE_BYTES) == b"\x00" * (mechanisms.MAX_LINE_BYTES * 3 // 4)
    assert mechanisms.decode_line(b"A" * (mechanisms.MAX_LINE_BYTES + 4)) == Failure(FailureCause.TOO_LONG)
    assert mechanisms.encode_line(b"Username:") == b"VXNlcm5hbWU6"
    assert mechanisms.encode_line(b"Password:") == b"UGFzc3dvcmQ6"


@pytest.mark.parametrize("initial", [True, False])
def test_plain_with_and_without_initial_response(initial: bool) -> None:
    exchange = begin("PLAIN")
    if not initial:
        assert exchange.step(None) == Challenge(b"")
    assert exchange.step("\0ada\0pässword".encode()) == NeedPassword("ada", "pässword")
    assert exchange.accept("ada@example.test") == Success("ada@example.test")
    assert exchange.step(b"\0ada\0x") == MALFORMED


@pytest.mark.parametrize(
    ("message", "step"),
    [
        (b"ada\0ada\0x", NeedPassword("ada", "x")),
        (b"root\0ada\0x", REFUSED),
        (b"\0\0x", REFUSED),
        (b"\0ada\0", REFUSED),
        (b"\0ada\0\xff", REFUSED),
        (b"\0\xff\0x", REFUSED),
        (b"\0a\rb\0x", REFUSED),
        (b"\0" + b"a" * 600 + b"\0x", REFUSED),
        (b"", MALFORMED),
        (b"ada", MALFORMED),
        (b"\0ada", MALFORMED),
        (b"\0ada\0x\0", MALFORMED),
    ],
)
def test_plain_message_needs_a_password_or_fails(message: bytes, step: Step) -> None:
    assert begin("PLAIN").step(message) == step


def test_login_prompts_for_user_and_password() -> None:
    exchange = begin("LOGIN")
    assert exchange.step(None) == Challenge(b"Username:")
    assert exchange.step(b"ada") == Challenge(b"Password:")
    assert exchange.step(b"x y") == NeedPassword("ada", "x y")
    assert exchange.reject() == REFUSED
    exchange = begin("LOGIN")
    assert exchange.step(b"ada") == Challenge(b"Password:")
    assert exchange.step(b"") == REFUSED


def test_representations_contain_no_secrets() -> None:
    assert "hunter2" not in repr(NeedPassword("ada", "hunter2"))
    assert "hunter2" not in repr(NeedToken("ada", "hunter2"))
    assert "nonce" not in repr(CONFIG)
    assert "key" not in repr(KEYS)


def test_calls_out_of_order_fail() -> None:
    exchange = begin("PLAIN")
    exchange.step(b"\0ada\0x")
    assert exchange.reject(unavailable=True) == Failure(FailureCause.UNAVAILABLE)
    assert exchange.accept("ada") == MALFORMED
    assert begin("PLAIN").accept("ada") == MALFORMED
    assert begin("PLAIN").supply_keys(KEYS, "user") == MALFORMED
    exchange = begin("SCRAM-SHA-256")
    exchange.step(b"n,,n=ada,r=abc")
    assert exchange.accept("ada") == MALFORMED
    assert exchange.supply_keys(KEYS, "user") == MALFORMED
    exchange = begin("PLAIN")
    exchange.step(None)
    assert exchange.step(None) == MALFORMED


# --- SCRAM

FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FINAL = b"c=biws,r=" + NONCE + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def test_scram_as_in_rfc_7677() -> None:
    exchange = begin("SCRAM-SHA-256")
    assert exchange.step(None) == Challenge(b"")
    assert exchange.step(FIRST) == NeedScramKeys("user")
    assert exchange.supply_keys(KEYS, "user") == Challenge(b"r=" + NONCE + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert exchange.step(FINAL) == Challenge(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert exchange.step(b"") == Success("user")


def scram_client(password: str, user: bytes, gs2: bytes, exchange: Exchange, keys: stored.ScramKeys | None) -> Step:
    """An independent client."""
    bare = b"n=" + user + b",r=clientnonce"
    step = exchange.step(gs2 + bare)
    if not isinstance(step, NeedScramKeys):
        return step
    step = exchange.supply_keys(keys, "user")
    assert isinstance(step, Challenge)
    fields = dict(part.split(b"=", 1) for part in step.data.split(b","))
    without = b"c=" + base64.b64encode(gs2) + b",r=" + fields[b"r"]
    salt = base64.b64decode(fields[b"s"])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, int(fields[b"i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    message = bare + b"," + step.data + b"," + without
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature)))
    step = exchange.step(without + b",p=" + proof)
    return exchange.step(b"") if isinstance(step, Challenge) else step


@pytest.mark.parametrize(
    ("user", "gs2", "step"),
    [
        (b"user", b"n,,", Success("user")),
        (b"user", b"y,,", Success("user")),
        (b"user", b"n,a=user,", Success("user")),
        (b"a=2Cb=3Dc", b"n,a=a=2Cb=3Dc,", Success("a,b=c")),
        (b"user", b"n,a=root,", REFUSED),
        (b"us=er", b"n,,", REFUSED),
        (b"us=2cer", b"n,,", REFUSED),
        (b"user", b"p=tls-unique,,", MALFORMED),
        (b"user", b"x,,", MALFORMED),
        (b"user", b"n,,m=ext,", MALFORMED),
        (b"user", b",,", MALFORMED),
    ],
)
def test_scram_accepts_the_variants_of_the_first_message(user: bytes, gs2: bytes, step: Step) -> None:
    assert scram_client("pencil", user, gs2, begin("SCRAM-SHA-256"), KEYS) == step


def test_scram_refuses_invalid_messages() -> None:
    assert scram_client("pencils", b"user", b"n,,", begin("SCRAM-SHA-256"), KEYS) == REFUSED
    assert scram_client("pencil", b"user", b"n,,", begin("SCRAM-SHA-256"), None) == REFUSED
    for final in (
        FINAL.replace(b"c=biws", b"c=eSws"),
        FINAL.replace(b"r=rOpr", b"r=xOpr"),
        FINAL.replace(b"p=d", b"p=e"),
    ):
        exchange = begin("SCRAM-SHA-256")
        exchange.step(FIRST)
        exchange.supply_keys(KEYS, "user")
        assert exchange.step(final) == REFUSED
    exchange = begin("SCRAM-SHA-256")
    exchange.step(FIRST)
    exchange.supply_keys(KEYS, "user")
    exchange.step(FINAL)
    assert exchange.step(b"x") == MALFORMED


def test_unknown_user_gets_a_stable_salt() -> None:
    def challenge(user: bytes, name: str, config: Config = CONFIG) -> Step:
        exchange = mechanisms.start_exchange("SCRAM-SHA-256", config)
        assert exchange is not None
        exchange.step(b"n,,n=" + user + b",r=abc")
        return exchange.supply_keys(None, name)

    assert challenge(b"ada", "ada") == challenge(b'"ada"', "ada") == challenge(b"ADA", "ada")
    assert challenge(b"ada", "ada") != challenge(b"ada", "bob")
    assert challenge(b"ada", "ada") != challenge(b"ada", "ada", Config(CONFIG.nonce, b"t" * 32))
    step = challenge(b"ada", "ada")
    assert isinstance(step, Challenge)
    assert step.data.endswith(b",i=4096")


def test_stored_keys_round_trip() -> None:
    text = stored.scram_keys("pencil", SALT, 4096)
    assert text.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    keys = stored.parse_scram_keys(text)
    assert keys is not None
    assert (keys.salt, keys.iterations, len(keys.stored_key), len(keys.server_key)) == (SALT, 4096, 32, 32)
    for bad in ("", "x", text[:-1], text + "=", text.replace("4096", "0096"), text.replace("W22Z", "W22")):
        assert stored.parse_scram_keys(bad) is None
    for arguments in (("", SALT, 4096), ("x", SALT, 4095), ("x", b"short", 4096), ("\x07", SALT, 4096)):
        with pytest.raises(ValueError, match=r"SCRAM needs|prohibited|mixes"):
            stored.scram_keys(*arguments)


def test_saslprep_as_in_rfc_4013() -> None:
    assert stored.saslprep("I\u00adX") == "IX"
    assert stored.saslprep("USER") == "USER"
    assert stored.saslprep("\u00aa") == "a"
    assert stored.saslprep("\u2168") == "IX"
    assert stored.saslprep("a\u00a0b") == "a b"
    assert stored.saslprep("🔑") == "🔑"
    for bad in ("\u0007", "\u0627\u0031", "", "\u00ad"):
        with pytest.raises(ValueError, match=r"SCRAM needs|prohibited|mixes"):
            stored.saslprep(bad)


# --- OAuth


def test_oauthbearer_needs_a_token_check() -> None:
    token = "a" * 20000
    exchange = begin("OAUTHBEARER")
    message = b"n,a=ada@example.test,\x01host=h\x01port=587\x01auth=Bearer " + token.encode() + b"\x01\x01"
    assert exchange.step(message) == NeedToken("ada@example.test", token)
    assert exchange.accept("Ada@example.test") == Success("Ada@example.test")


def test_oauth_failure_takes_one_more_step() -> None:
    exchange = begin("OAUTHBEARER")
    assert exchange.step(b"n,,\x01auth=Bearer x\x01\x01") == NeedToken("", "x")
    step = exchange.reject()
    assert isinstance(step, Challenge)
    assert b"invalid_token" in step.data
    assert exchange.step(b"\x01") == REFUSED


def test_a_token_opens_only_its_own_account() -> None:
    exchange = begin("XOAUTH2")
    assert exchange.step(b"user=ada\x01auth=Bearer x\x01\x01") == NeedToken("ada", "x")
    assert isinstance(exchange.accept("eve"), Challenge)
    assert exchange.step(b"") == REFUSED


@pytest.mark.parametrize(
    ("mechanism", "message", "step"),
    [
        ("XOAUTH2", b"user=ada\x01auth=bearer x.y=\x01\x01", NeedToken("ada", "x.y=")),
        ("XOAUTH2", b"user=\x01auth=Bearer x\x01\x01", REFUSED),
        ("XOAUTH2", b"user=ada\x01\x01", MALFORMED),
        ("XOAUTH2", b"user=ada\x01auth=Bearer x\x01", MALFORMED),
        ("XOAUTH2", b"user=ada\x01auth=Basic x\x01\x01", MALFORMED),
        ("XOAUTH2", b"user=ada\x01auth=Bearer x\x01auth=Bearer y\x01\x01", MALFORMED),
        ("XOAUTH2", b"", MALFORMED),
        ("OAUTHBEARER", b"p=x,,\x01auth=Bearer x\x01\x01", MALFORMED),
        ("OAUTHBEARER", b"y,,\x01auth=Bearer x\x01\x01", NeedToken("", "x")),
        ("OAUTHBEARER", b"n,a=a=2Cb,\x01auth=Bearer x\x01\x01", NeedToken("a,b", "x")),
        ("OAUTHBEARER", b"n,a=a=b,\x01auth=Bearer x\x01\x01", REFUSED),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer x y\x01\x01", MALFORMED),
        ("OAUTHBEARER", b"\x01", MALFORMED),
    ],
)
def test_oauth_message_needs_a_token_check_or_fails(mechanism: str, message: bytes, step: Step) -> None:
    assert begin(mechanism).step(message) == step


# --- fuzz

WORDS = [b"\0", b"\x01", b",", b"=", b"n,,", b"n=a", b"r=x", b"p=", b"c=biws", b"auth=Bearer t", b"user=a", b"\xff"]


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(sorted(mechanisms.MECHANISMS)),
    st.lists(st.none() | st.lists(st.sampled_from(WORDS), max_size=8).map(b"".join) | st.binary(max_size=40)),
)
def test_arbitrary_messages_never_succeed_or_raise(mechanism: str, messages: list[bytes | None]) -> None:
    exchange = begin(mechanism)
    ended = False
    for message in messages:
        step = exchange.step(message)
        assert not isinstance(step, Success)
        if ended:
            assert isinstance(step, Failure)
        ended = ended or isinstance(step, Failure)
        if isinstance(step, NeedScramKeys):
            assert isinstance(exchange.supply_keys(KEYS, "user"), Challenge)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_line_decodes_or_fails(line: bytes) -> None:
    result = mechanisms.decode_initial(line)
    assert isinstance(result, bytes | Failure)
    assert mechanisms.decode_line(mechanisms.encode_line(line)) == line


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_stored_keys_parser_is_total(text: str) -> None:
    assert stored.parse_scram_keys(text) is None
    stored.parse_scram_keys("SCRAM-SHA-256$4096:" + text)
