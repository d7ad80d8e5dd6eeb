"""External users: password schemes, Dovecot's passwd-file, and a misbehaving auth process."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st

from adapter.accounts import password_schemes
from adapter.accounts.dovecot.auth_socket import AuthSocket, UnavailableError, UserdbSocket
from adapter.accounts.dovecot.lookup import DovecotUsers, VerifiedLogin
from adapter.accounts.dovecot.passwd_file import PasswdFile
from adapter.accounts.password_schemes import SchemeError
from adapter.config.loader import Seconds
from adapter.config.schema import Dovecot, Settings
from adapter.transport.transport import create_store
from protocol.sasl import dovecot
from tests.support.imapd import ImapClient
from tests.support.smtpd import serving
from tests.support.waiting import PATIENCE

SECRET = "correct hörse"


def test_argon2id() -> None:
    stored = "{ARGON2ID}" + PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(SECRET)
    assert password_schemes.verify(stored, SECRET, "CRYPT")
    assert not password_schemes.verify(stored, "x", "CRYPT")


def test_default_scheme_applies_to_passwords_without_prefix() -> None:
    assert password_schemes.verify("open", "open", "plain")
    assert not password_schemes.verify("open", "Open", "PLAIN")
    assert not password_schemes.verify("$6$salt$" + "x" * 86, "x", "CRYPT")


def test_hexadecimal_digest_is_detected_by_its_length() -> None:
    assert password_schemes.verify("{SHA256}" + hashlib.sha256(b"a").hexdigest(), "a", "CRYPT")
    assert password_schemes.verify("{sha512.HEX}" + hashlib.sha512(b"a").hexdigest().upper(), "a", "CRYPT")


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("{CRAM-MD5}9186d855e11eba527a7a52ca82b313e180d62234f0acc9051b527243d41e2740", "CRAM-MD5 is not supported"),
        ("{NO-SUCH}x", "NO-SUCH is not supported"),
        ("{SHA256.rot13}x", "encoding ROT13 is not supported"),
        ("{SHA256}AAAA", "malformed data for the scheme SHA256"),
        ("{SSHA256}AAAA", "malformed data for the scheme SSHA256"),
        ("{SHA256.hex}zz", "malformed data for the scheme"),
        ("{SSHA512}====", "malformed data for the scheme"),
        ("{PLAIN}", "malformed data for the scheme"),
        ("{CRYPT}nonsense:", "malformed data for the scheme"),
        ("{ARGON2ID}$argon2id$", "malformed data for the scheme"),
        ("{PBKDF2}$1$salt$99999999999$00", "malformed data for the scheme"),
        ("{PBKDF2}$2$salt$1$00", "malformed data for the scheme"),
        ("{SCRAM-SHA-256}4096,x", "malformed data for the scheme"),
        ("{SCRAM-SHA-256}0,AAAA,AAAA,AAAA", "malformed data for the scheme"),
    ],
)
def test_unusable_stored_password_never_matches_and_says_why(stored: str, expected: str) -> None:
    with pytest.raises(SchemeError, match=expected):
        password_schemes.verify(stored, "x", "CRYPT")


def test_missing_libcrypt_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password_schemes, "_libcrypt", lambda: None)
    with pytest.raises(SchemeError, match="libcrypt is not installed"):
        password_schemes.verify("{CRYPT}$6$salt$x", "x", "CRYPT")


@given(st.text(), st.text(max_size=20))
def test_any_stored_text_matches_or_raises_scheme_error(stored: str, password: str) -> None:
    try:
        right = password_schemes.verify(f"{{PLAIN}}{stored}", password, "CRYPT")
    except SchemeError:
        right = False
    assert not right or stored.encode("utf-8", "replace") == password.encode("utf-8", "replace")


USERS = """\
# comment: here
Ada@Example.test:{PLAIN}right:1000:1000::/home/ada::userdb_mail=maildir:~/Maildir
bob:{PLAIN}his
nets@example.test:{PLAIN}x::::::allow_nets=192.0.2.0/24,local
odd@example.test:{PLAIN}x::::::allow_nets=somewhere
no@example.test:{PLAIN}x::::::nologin
any@example.test:{PLAIN}x::::::nopassword
md5@example.test:{DIGEST-MD5}x
none@example.test:
other@example.test:{PLAIN}x::::::user=ada@example.test
:{PLAIN}x
"""


def test_passwd_file_is_parsed_and_reloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "users"
    path.write_text(USERS)
    file = PasswdFile(str(path), "CRYPT")

    def check(name: str, password: str, peer: str = "192.0.2.1") -> bool:
        return file.verify(file.find(name), password, peer)

    assert check("ada@example.TEST", "right")
    assert not check("ada@example.test", "wrong")
    assert not check("ada@example.test", "")
    assert not check("nobody@example.test", "right")
    assert check("nets@example.test", "x")
    assert check("nets@example.test", "x", "unix")
    assert not check("nets@example.test", "x", "198.51.100.1")
    for name in ("odd", "no", "any", "md5", "none"):
        assert not check(f"{name}@example.test", "x"), name
    for expected in ("allow_nets", "field nologin", "field nopassword", "the scheme DIGEST-MD5 is not supported"):
        assert expected in caplog.text, expected
    assert file.domains() == {"example.test"}
    path.write_text("ada@example.test:{PLAIN}another\n")
    os.utime(path, ns=(1, 1))
    assert check("ada@example.test", "another")
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        file.find("ada@example.test")


@pytest.mark.setting("dovecot.scheme")
async def test_configured_scheme_applies_to_passwords_without_prefix(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("ada@example.test:open\n")
    for scheme, right in (("plain", True), ("CRYPT", False)):
        users = DovecotUsers(Dovecot(passwd_file=str(path), scheme=scheme))
        assert (await users.verify("ada@example.test", "open", "", asyncio.to_thread) is not None) is right


async def test_user_names_and_addresses_lead_to_the_same_account(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users"
    path.write_text(USERS)
    users = DovecotUsers(Dovecot(passwd_file=str(path), domain="Here.test"))
    assert await users.verify("bob", "his", "", asyncio.to_thread) == VerifiedLogin("bob@here.test", is_cacheable=True)
    assert await users.verify("bob@here.test", "his", "", asyncio.to_thread) == VerifiedLogin(
        "bob@here.test", is_cacheable=True
    )
    assert await users.verify("bob@example.test", "his", "", asyncio.to_thread) is None
    assert await users.verify("other@example.test", "x", "", asyncio.to_thread) == VerifiedLogin(
        "ada@example.test", is_cacheable=True
    )
    assert await users.verify("nets@example.test", "x", "unix", asyncio.to_thread) == VerifiedLogin(
        "nets@example.test", is_cacheable=False
    )
    assert [await users.has_user(f"bob@{domain}") for domain in ("here.test", "example.test")] == [True, False]
    assert users.domains() == {"here.test", "example.test"}
    mark = users.fingerprint("bob@here.test")
    assert mark == users.fingerprint("bob") != users.fingerprint("nobody") == b""
    users.apply(Dovecot(passwd_file=str(path)))
    assert await users.verify("bob", "his", "", asyncio.to_thread) is None
    assert "'bob' has no domain: set domain in [dovecot]" in caplog.text
    path.unlink()
    with pytest.raises(UnavailableError, match="No such file"):
        await users.verify("bob", "his", "", asyncio.to_thread)


@pytest.mark.setting("dovecot.passwd_file", "dovecot.domain")
async def test_users_of_the_file_are_provisioned_by_login_and_mail(tmp_path: Path) -> None:
    create_store(str(tmp_path / "store"))
    path = tmp_path / "users"
    path.write_text("$name:$hash\nada@example.test:{PLAIN}right\ncarol:{PLAIN}hers\nlate@new.test:{PLAIN}x\n")
    settings = Settings(dovecot=Dovecot(passwd_file=str(path), domain="example.test"))
    async with serving(tmp_path / "store", settings, ["imap", "submission", "lmtp"]) as running:
        lmtp = await running.hello("lmtp")
        assert await lmtp.codes(
            "MAIL FROM:<x@y.test>", "RCPT TO:<carol+x@example.test>", "RCPT TO:<late@new.test>", "RCPT TO:<no@new.test>"
        ) == [250, 250, 250, 550]

        async def login(user: str, password: str) -> bytes:
            client = await ImapClient.connect(running.ports["imap"])
            await client.line()
            return (await client.run(f"LOGIN {user} {password}"))[1]

        assert (await login("carol", "hers")).startswith(b"OK")
        submission = await running.hello("submission")
        assert (await submission.login("carol", "hers")).code == 235
        assert (await submission.ask("MAIL FROM:<carol@example.test>")).code == 250
        assert (await login("Ada@example.test", "right")).startswith(b"OK")
        assert (await login("ada@example.test", "wrong")).startswith(b"NO [AUTHENTICATIONFAILED]")
        assert running.services.store is not None
        assert len(running.services.store.authenticator._cache) == 2
        path.write_text("ada@example.test:{PLAIN}changed\n")
        assert (await login("ada@example.test", "right")).startswith(b"NO [AUTHENTICATIONFAILED]")
        assert (await login("ada@example.test", "changed")).startswith(b"OK")
        path.unlink()
        assert (await login("ada@example.test", "changed")).startswith(b"NO [UNAVAILABLE]")


@given(st.text())
def test_escaping_is_reversible_and_keeps_one_line(text: str) -> None:
    escaped = dovecot.escape(text)
    assert not set(escaped) & set("\0\t\r\n")
    assert dovecot.unescape(escaped) == text


@given(st.binary())
def test_any_line_is_parsed(line: bytes) -> None:
    assert dovecot.parse_line(line).number >= -1


_HELLO = b"VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nSPID\t1\nCUID\t1\nCOOKIE\tx\nDONE\n"
_Behave = Callable[[bytes], bytes | None]


async def _with_auth_process(
    path: Path, behave: _Behave, ask: Callable[[str], Awaitable[object]], hello: bytes = _HELLO
) -> object:
    """Serve an auth socket: ``behave`` turns a request into a reply; None closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello)
        while line := await reader.readline():
            if line.startswith((b"AUTH", b"USER")):
                answer = behave(line)
                if answer is None:
                    break
                writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        return await ask(str(path))
    finally:
        server.close()


async def _login(where: str) -> str | None:
    socket = AuthSocket(where, 0.5)
    try:
        return await socket.login("ada", "secret", "192.0.2.1")
    finally:
        socket.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"OK\t1\tuser=Ada@Example.test\tx=y\n", "Ada@Example.test"),
        (b"OK\t7\tuser=mallory\nOK\t1\n", "ada"),
        (b"nonsense\n\n\t\t\nOK\t1\tuser=a\x01tb\n", "a\tb"),
        (b"FAIL\t1\tuser=ada\n", None),
        (b"FAIL\t1\tuser=ada\tuser_disabled\n", None),
        (b"FAIL\t1\tuser=ada\ttemp\n", UnavailableError),
        (b"FAIL\t1\tcode=temp_fail\treason=the disk is full\n", UnavailableError),
        (b"CONT\t1\tbW9yZQ==\n", UnavailableError),
        (b"OK\t99999999999999999999\n", UnavailableError),
        (b"x" * 100_000, UnavailableError),
        (b"", UnavailableError),
        (None, UnavailableError),
    ],
)
async def test_reply_of_the_auth_process_is_interpreted(tmp_path: Path, answer: bytes | None, expected: object) -> None:
    if expected is UnavailableError:
        with pytest.raises(UnavailableError):
            await _with_auth_process(tmp_path / "s", lambda _: answer, _login)
    else:
        assert await _with_auth_process(tmp_path / "s", lambda _: answer, _login) == expected


@pytest.mark.parametrize(
    "hello", [b"VERSION\t2\t0\nDONE\n", b"", b"VERSION\t1\t2\nMECH\tCRAM-MD5\nDONE\n", b"MECH\tPLAIN\n" * 1000]
)
async def test_unusable_handshake_is_a_temporary_failure(tmp_path: Path, hello: bytes) -> None:
    with pytest.raises(UnavailableError):
        await _with_auth_process(tmp_path / "s", lambda _: b"OK\t1\n", _login, hello)


async def test_request_is_retried_after_a_lost_connection(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def behave(line: bytes) -> bytes | None:
        asked.append(line)
        return None if len(asked) == 1 else b"OK\t1\tuser=ada\n"

    assert await _with_auth_process(tmp_path / "s", behave, _login) == "ada"
    assert len(asked) == 2
    assert asked[0] == asked[1]
    assert b"\trip=192.0.2.1\t" in asked[0]
    assert asked[0].endswith(b"resp=AGFkYQBzZWNyZXQ=\n")


@pytest.mark.setting("dovecot.timeout")
async def test_silent_auth_process_is_a_temporary_failure(tmp_path: Path) -> None:
    async def ask(where: str) -> object:
        users = DovecotUsers(Dovecot(auth_socket=where, timeout=Seconds(0.2)))
        with pytest.raises(UnavailableError, match="no reply in time"):
            async with asyncio.timeout(PATIENCE):
                await users.verify("ada", "x", "", asyncio.to_thread)
        users.close()
        return None

    await _with_auth_process(tmp_path / "s", lambda _: b"", ask)


async def test_userdb_error_is_a_temporary_failure(tmp_path: Path) -> None:
    async def ask(where: str) -> bool:
        return await UserdbSocket(where, 0.5).has_user("ada")

    hello = b"VERSION\t1\t1\nSPID\t7\n"
    assert await _with_auth_process(tmp_path / "1", lambda _: b"USER\t1\tada\tuid=1\n", ask, hello) is True
    assert await _with_auth_process(tmp_path / "2", lambda _: b"NOTFOUND\t1\n", ask, hello) is False
    with pytest.raises(UnavailableError, match="temporary failure"):
        await _with_auth_process(tmp_path / "3", lambda _: b"FAIL\t1\treason=why\n", ask, hello)
    with pytest.raises(UnavailableError, match="No such file"):
        await UserdbSocket(str(tmp_path / "none"), 0.5).has_user("ada")
    users = DovecotUsers(Dovecot(userdb_socket="127.0.0.1:1", timeout=Seconds(1)))
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        await users.has_user("ada@example.test")
