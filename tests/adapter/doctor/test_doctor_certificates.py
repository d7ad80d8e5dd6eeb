"""The doctor's findings about certificates, keys and chains."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from adapter.config.schema import Certificate, Listen, Server, Settings, Tls
from adapter.doctor import certificates
from adapter.doctor.findings import Finding, Level
from tests.support.findings import all_ok, texts

HOST = "mail.example.test"
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class _Authority:
    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self.sign("authority", self.key, None)

    def sign(
        self,
        name: str,
        key: _Key,
        issuer: str | None,
        *,
        days: float = 90,
        since: float = -1,
        names: tuple[str, ...] = (),
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(issuer or name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=min(since, days - 1)))
            .not_valid_after(now + datetime.timedelta(days=days))
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), False)
        return builder.sign(self.key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write(path: Path, *items: x509.Certificate | _Key) -> str:
    pem = serialization.Encoding.PEM
    path.write_bytes(
        b"".join(
            item.public_bytes(pem)
            if isinstance(item, x509.Certificate)
            else item.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            for item in items
        )
    )
    return str(path)


def _check(certificate: str, key: str = "") -> list[Finding]:
    settings = Settings(server=Server(hostname=HOST), tls=Tls(certificate, key))
    return list(certificates.certificates(settings))


def test_validity_and_names_are_checked(tmp_path: Path) -> None:
    authority, key = _Authority(), ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "both.pem"

    def check(*, days: float = 90, since: float = -1, names: tuple[str, ...] = (HOST,)) -> list[Finding]:
        leaf = authority.sign("x", key, "authority", days=days, since=since, names=names)
        return _check(_write(file, leaf, authority.certificate, key))

    good = check()
    assert all_ok(good)
    assert f"valid for 89 days, for {HOST}" in texts(good, Level.OK)
    assert all_ok(check(names=("*.example.test",)))
    assert "expires on" in texts(check(days=10), Level.WARN)
    assert "expired on" in texts(check(days=-1), Level.BAD)
    assert "not valid before" in texts(check(since=3), Level.BAD)
    assert f"not for {HOST} but for other.test" in texts(check(names=("other.test",)), Level.WARN)
    assert "no name at all" in texts(check(names=()), Level.WARN)


def test_key_and_chain_are_checked(tmp_path: Path) -> None:
    authority, key = _Authority(), ec.generate_private_key(ec.SECP256R1())
    leaf = authority.sign("x", key, "authority", names=(HOST,))
    chain = _write(tmp_path / "chain.pem", leaf, authority.certificate)
    assert all_ok(_check(chain, _write(tmp_path / "key.pem", key)))
    other = _write(tmp_path / "other.pem", ec.generate_private_key(ec.SECP256R1()))
    assert "belongs to another certificate" in texts(_check(chain, other), Level.BAD)
    assert "its issuer is not in the file" in texts(_check(_write(tmp_path / "leaf.pem", leaf, key)), Level.WARN)
    mixed = _write(tmp_path / "mixed.pem", leaf, leaf, key)
    assert "are not in chain order" in texts(_check(mixed), Level.BAD)
    weak = rsa.generate_private_key(65537, 1024)
    short = authority.sign("x", weak, "authority", names=(HOST,))
    assert "1024 bits is weak" in texts(
        _check(_write(tmp_path / "weak.pem", short, authority.certificate, weak)), Level.WARN
    )
    (tmp_path / "garbage.pem").write_text("garbage")
    assert "not a PEM certificate" in texts(_check(str(tmp_path / "garbage.pem")), Level.BAD)
    assert "No such file" in texts(_check(str(tmp_path / "none.pem")), Level.BAD)
    pair = Certificate(chain, str(tmp_path / "key.pem"))
    named = list(
        certificates.certificates(Settings(server=Server(hostname=HOST), tls=Tls(chain, pair.key, {"b.test": pair})))
    )
    assert f"not for b.test but for {HOST}" in texts(named, Level.WARN)


def test_missing_certificate_is_reported_unless_only_loopback_is_served() -> None:
    assert not list(certificates.certificates(Settings(listen=Listen(imap=("127.0.0.1:143",), lmtp=("/run/l",)))))
    assert "certificate: none" in texts(
        certificates.certificates(Settings(listen=Listen(imap=("0.0.0.0:143",)))), Level.WARN
    )
