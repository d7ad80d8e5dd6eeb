"""``markpost serve`` with a certificate, for mail clients that want one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter.settings import Tls
from tests.support import serve
from tests.support.certificates import make_certificate


@dataclass(frozen=True)
class Served:
    ports: dict[str, int]
    tls: Tls


@contextlib.contextmanager
def served(root: Path, kinds: Sequence[str], scratch: Path) -> Iterator[Served]:
    """Serve a store on free ports of loopback; the server must end well and have logged no error."""
    tls = make_certificate(scratch)
    config, log = scratch / "markpost.toml", scratch / "server.log"
    config.write_text(f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n', encoding="utf-8")
    listeners = [option for kind in kinds for option in (f"--{kind}", "127.0.0.1:0")]
    with serve.served(root, "--config", str(config), *listeners, log=log) as server:
        yield Served(server.ports, tls)
        assert server.stop() == 0
    said = log.read_text()
    assert " ERROR " not in said, said
    assert "Traceback" not in said, said
