"""Check ports: each configured listener can be opened, or is held by which process."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterable, Iterator

from adapter.config.schema import LISTENERS, METRICS_LISTENER, Settings
from adapter.doctor.findings import Finding, bad, ok, warn
from adapter.net import endpoints
from adapter.net.endpoints import Endpoint

_MARKPOST_COMMAND = re.compile(r"(markpost|adapter\.cli)(\.py)? (serve|demo)\b")
_LISTEN_STATE = "0A"  # in /proc/net/tcp


def ports(settings: Settings) -> Iterator[Finding]:
    configured = list(configured_endpoints(settings, LISTENERS))
    if not configured:
        yield warn("listeners", "none configured", "set [listen], or use systemd socket units (conf/systemd)")
    for endpoint in (*configured, *_parsed(METRICS_LISTENER, settings.metrics.listen)):
        yield _unix(endpoint) if endpoint.path else _tcp(endpoint)


def configured_endpoints(settings: Settings, kinds: Iterable[str]) -> Iterator[Endpoint]:
    """Yield the configured endpoints of these kinds."""
    for kind in kinds:
        for text in getattr(settings.listen, kind):
            yield from _parsed(kind, text)


def _parsed(kind: str, text: str) -> Iterator[Endpoint]:
    """Parse an endpoint; mistakes are reported with the configuration."""
    if text:
        with contextlib.suppress(ValueError):
            yield endpoints.parse(kind, text)


def _tcp(endpoint: Endpoint) -> Finding:
    check = f"{endpoint.kind} {endpoint}"
    try:
        addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        return bad(check, f"{endpoint.host}: {error.strerror}", "set an address of this machine in [listen]")
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError as error:
                return _bind_failure(check, endpoint, error)
    return ok(check, "free")


def _bind_failure(check: str, endpoint: Endpoint, error: OSError) -> Finding:
    if error.errno == errno.EADDRINUSE:
        return _held(check, *_holder(endpoint.port))
    if error.errno == errno.EACCES:
        return warn(
            check,
            f"user {os.geteuid()} may not open ports below 1024",
            "use systemd socket units (conf/systemd), or put a mail server or proxy in front",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return bad(check, "this machine does not have this address", "set an address of this machine in [listen]")
    return bad(check, error.strerror or str(error), "set another address in [listen]")


def _held(check: str, process: int, command: str) -> Finding:
    if not process:
        return warn(check, "in use by an unknown process", "run this as root or as the server's user to see which one")
    if _MARKPOST_COMMAND.search(command):
        return ok(check, f"served by process {process}")
    if process == 1:
        return ok(check, "held by systemd for socket activation")
    return bad(check, f"held by process {process} ({command[:80]})", "stop it, or set another port in [listen]")


def _unix(endpoint: Endpoint) -> Finding:
    check = f"{endpoint.kind} {endpoint}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(endpoint.path)
            return ok(check, "a process is listening")
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        except OSError as error:
            return bad(check, error.strerror or str(error), "remove the file, or set another path in [listen]")
    directory = os.path.dirname(endpoint.path)
    if not os.access(directory, os.W_OK | os.X_OK):
        return bad(check, f"cannot create files in {directory}", f"make {directory} writable for markpost's user")
    return ok(check, "free")


def _holder(port: int) -> tuple[int, str]:
    """Return the process that listens on the port and its command line; zero if it is not visible.

    If several processes share the socket, prefer the highest process number: usually the one that inherited it.
    """
    inodes = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _listening(name, port)}
    for process in sorted(filter(str.isdigit, os.listdir("/proc")), key=int, reverse=True):
        try:
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                if os.readlink(f"/proc/{process}/fd/{descriptor}") in inodes:
                    with open(f"/proc/{process}/cmdline", "rb") as file:
                        return int(process), file.read(500).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue  # the process has ended, or belongs to another user
    return 0, ""


def _listening(name: str, port: int) -> Iterator[str]:
    try:
        with open(f"/proc/net/{name}", encoding="ascii") as table:
            next(table)
            for line in table:
                fields = line.split()
                if fields[3] == _LISTEN_STATE and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
    except OSError:
        return
