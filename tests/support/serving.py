"""``markpost serve`` as a process of its own, as users run it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adapter.settings import Tls
from tests.support.certificates import make_certificate
from tests.support.waiting import PATIENCE

_ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Served:
    root: Path
    ports: dict[str, int]
    tls: Tls
    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, "".join(self.log)

    def troubles(self) -> list[str]:
        """What the server logged as an error, tracebacks included."""
        return [line for line in self.log if " ERROR " in line or "Traceback" in line]


@contextlib.contextmanager
def served(root: Path, kinds: Sequence[str], scratch: Path, settings: str = "") -> Iterator[Served]:
    """Serve a store on free ports of loopback; the server must end well and have logged no error."""
    tls = make_certificate(scratch)
    config = scratch / "markpost.toml"
    config.write_text(f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n{settings}', encoding="utf-8")
    listeners = [option for kind in kinds for option in (f"--{kind}", "127.0.0.1:0")]
    command = [sys.executable, "-m", "adapter.cli", "serve", "--root", str(root), "--config", str(config), *listeners]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_ROOT)
    found = Served(root, {}, tls, process)
    assert process.stdout is not None
    assert process.stderr is not None
    reader = threading.Thread(target=lambda errors: found.log.extend(errors), args=(process.stderr,), daemon=True)
    reader.start()
    try:
        for line in process.stdout:
            if line.strip() == "ready":
                break
            kind, _, place = line.strip().partition(" ")
            found.ports[kind] = int(place.rpartition(":")[2])
        else:
            process.wait(PATIENCE)
            reader.join(PATIENCE)
            raise AssertionError("".join(found.log))
        yield found
        if process.poll() is None:
            found.stop()
        reader.join(PATIENCE)
        assert not found.troubles(), "".join(found.log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
