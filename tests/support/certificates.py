"""Certificates for tests, signed by themselves or by an authority of the test's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from adapter.config.schema import Tls


def make_certificate(directory: Path, name: str = "mail.example.test") -> Tls:
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "30", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},DNS:localhost,IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return Tls(certificate=str(certificate), key=str(key))


def make_signed(directory: Path, name: str = "client.example.test") -> tuple[Path, Path]:
    """The certificate of a new authority, and a file with a certificate it signed, for servers and clients, and key."""
    directory.mkdir(exist_ok=True)
    authority, signed = directory / "authority.pem", directory / "signed.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    for command in (
        ["req", "-x509", *curve, "-subj", "/CN=An authority", "-keyout", "authority.key", "-out", "authority.pem"],
        ["req", *curve, "-subj", f"/CN={name}", "-keyout", "signed.key", "-out", "signed.csr"],
        ["x509", "-req", "-in", "signed.csr", "-CA", "authority.pem", "-CAkey", "authority.key", "-days", "30",
         "-CAcreateserial", "-out", "signed.pem"],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True, cwd=directory)
    signed.write_bytes(signed.read_bytes() + (directory / "signed.key").read_bytes())
    return authority, signed
