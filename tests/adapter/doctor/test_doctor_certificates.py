"""What the doctor says of certificates, keys and chains."""

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
from tests.support.findings import all_ok, told

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


def _look(certificate: str, key: str = "") -> list[Finding]:
    settings = Settings(server=Server(hostname=HOST), tls=Tls(certificate, key))
    return list(certificates.certificates(settings))


def test_certificates(tmp_path: Path) -> None:
    authority, key = _Authority(), ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "both.pem"

    def look(*, days: float = 90, since: float = -1, names: tuple[str, ...] = (HOST,)) -> list[Finding]:
        leaf = authority.sign("x", key, "authority", days=days, since=since, names=names)
        return _look(_write(file, leaf, authority.certificate, key))

    good = look()
    assert all_ok(good)
    assert f"valid for 89 days, for {HOST}" in told(good, Level.OK)
    assert all_ok(look(names=("*.example.test",)))
    assert "expires on" in told(look(days=10), Level.WARN)
    assert "expired on" in told(look(days=-1), Level.BAD)
    assert "not valid before" in told(look(since=3), Level.BAD)
    assert f"not for {HOST} but for other.test" in told(look(names=("other.test",)), Level.WARN)
    assert "no name at all" in told(look(names=()), Level.WARN)


def test_certificate_key_and_chain(tmp_path: Path) -> None:
    authority, key = _Authority(), ec.generate_private_key(ec.SECP256R1())
    leaf = authority.sign("x", key, "authority", names=(HOST,))
    chain = _write(tmp_path / "chain.pem", leaf, authority.certificate)
    assert all_ok(_look(chain, _write(tmp_path / "key.pem", key)))
    other = _write(tmp_path / "other.pem", ec.generate_private_key(ec.SECP256R1()))
    assert "belongs to another certificate" in told(_look(chain, other), Level.BAD)
    assert "its issuer is not in the file" in told(_look(_write(tmp_path / "leaf.pem", leaf, key)), Level.WARN)
    mixed = _write(tmp_path / "mixed.pem", leaf, leaf, key)
    assert "do not follow one another" in told(_look(mixed), Level.BAD)
    weak = rsa.generate_private_key(65537, 1024)
    short = authority.sign("x", weak, "authority", names=(HOST,))
    assert "1024 bits is weak" in told(
        _look(_write(tmp_path / "weak.pem", short, authority.certificate, weak)), Level.WARN
    )
    (tmp_path / "garbage.pem").write_text("garbage")
    assert "not a PEM certificate" in told(_look(str(tmp_path / "garbage.pem")), Level.BAD)
    assert "No such file" in told(_look(str(tmp_path / "none.pem")), Level.BAD)
    pair = Certificate(chain, str(tmp_path / "key.pem"))
    named = list(
        certificates.certificates(Settings(server=Server(hostname=HOST), tls=Tls(chain, pair.key, {"b.test": pair})))
    )
    assert f"not for b.test but for {HOST}" in told(named, Level.WARN)


def test_no_certificate_where_one_is_wanted() -> None:
    assert not list(certificates.certificates(Settings(listen=Listen(imap=("127.0.0.1:143",), lmtp=("/run/l",)))))
    assert "there is none" in told(
        certificates.certificates(Settings(listen=Listen(imap=("0.0.0.0:143",)))), Level.WARN
    )
