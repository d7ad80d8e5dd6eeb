"""Certificates: server names, reload."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from adapter.config.schema import Certificate, Tls
from adapter.net.tls import Certificates, TlsError
from tests.support.certificates import make_certificate


def test_certificates_are_selected_by_name_and_reload_keeps_the_current_ones_on_failure(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, other = make_certificate(tmp_path / "a"), make_certificate(tmp_path / "b", "other.test")
    assert Certificates(Tls()).context is None
    names = {"other.test": Certificate(other.certificate, other.key)}
    certificates = Certificates(Tls(first.certificate, first.key, names))
    before = certificates.context
    assert before is not None
    assert before.minimum_version == ssl.TLSVersion.TLSv1_2
    assert _presented(certificates, "other.test") != _presented(certificates, "mail.example.test")
    make_certificate(tmp_path / "a")
    certificates.reload()
    assert certificates.context is not before
    Path(first.certificate).write_text("broken")
    kept = certificates.context
    with pytest.raises(TlsError):
        certificates.reload()
    assert certificates.context is kept
    with pytest.raises(TlsError, match="no such file"):
        Certificates(Tls("/nonexistent/cert.pem"))


def _presented(certificates: Certificates, name: str) -> bytes:
    """The certificate presented to a client that sends ``name`` as server name."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    assert certificates.context is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = certificates.context.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(10):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    presented = theirs.getpeercert(binary_form=True)
    assert presented
    return presented
