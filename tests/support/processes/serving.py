"""``markpost serve`` with a certificate, for mail clients that want one."""

from __future__ import annotations

import contextlib
import re
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter.config.schema import Tls
from tests.support.certificates import make_certificate
from tests.support.processes import serve
from tests.support.waiting import PATIENCE

_REFUSED = re.compile(r'markpost_commands_total\{([^}]*status="(?:NO|BAD)"[^}]*)\} ([0-9.]+)')


@dataclass(frozen=True)
class Served:
    ports: dict[str, int]
    tls: Tls

    def refused_commands(self) -> list[str]:
        """IMAP commands answered with NO or BAD so far, as the metrics count them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['metrics']}/metrics", timeout=PATIENCE) as page:
            text = page.read().decode()
        assert 'protocol="imap"' in text
        return [labels for labels, count in _REFUSED.findall(text) if float(count) and 'protocol="imap"' in labels]


@contextlib.contextmanager
def served(root: Path, kinds: Sequence[str], scratch: Path) -> Iterator[Served]:
    """Serve a store on free ports of loopback; the server must end well and have logged no error."""
    tls = make_certificate(scratch)
    config, log = scratch / "markpost.toml", scratch / "server.log"
    metrics = '[metrics]\nlisten = "127.0.0.1:0"\n'
    config.write_text(f'{metrics}[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n', encoding="utf-8")
    listeners = [option for kind in kinds for option in (f"--{kind}", "127.0.0.1:0")]
    with serve.served(root, "--config", str(config), *listeners, log=log) as server:
        yield Served(server.ports, tls)
        assert server.stop() == 0
    text = log.read_text()
    assert " ERROR " not in text, text
    assert "Traceback" not in text, text
