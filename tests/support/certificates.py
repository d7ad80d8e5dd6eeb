"""A certificate for tests, signed by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

from adapter.settings import Tls


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
