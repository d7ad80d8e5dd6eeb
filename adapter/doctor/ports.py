"""Ports: whether each listener of the configuration can be opened, or is open already and by whom."""

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

_OURS = re.compile(r"(markpost|adapter\.cli)(\.py)? (serve|demo)\b")
_LISTEN = "0A"  # the state, in the kernel's lists


def ports(settings: Settings) -> Iterator[Finding]:
    wanted = list(listed(settings, LISTENERS))
    if not wanted:
        yield warn(
            "listeners", "the configuration names none", "set [listen], or let systemd hand them over (conf/systemd)"
        )
    for endpoint in (*wanted, *_parsed(METRICS_LISTENER, settings.metrics.listen)):
        yield _unix(endpoint) if endpoint.path else _tcp(endpoint)


def listed(settings: Settings, kinds: Iterable[str]) -> Iterator[Endpoint]:
    """Where listeners of these kinds shall be."""
    for kind in kinds:
        for text in getattr(settings.listen, kind):
            yield from _parsed(kind, text)


def _parsed(kind: str, text: str) -> Iterator[Endpoint]:
    """A mistake is told with the configuration."""
    if text:
        with contextlib.suppress(ValueError):
            yield endpoints.parse(kind, text)


def _tcp(endpoint: Endpoint) -> Finding:
    what = f"{endpoint.kind} {endpoint}"
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        return bad(what, f"{endpoint.host}: {error.strerror}", "set an address of this machine in [listen]")
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError as error:
                return _trouble(what, endpoint, error)
    return ok(what, "free")


def _trouble(what: str, endpoint: Endpoint, error: OSError) -> Finding:
    if error.errno == errno.EADDRINUSE:
        return _held(what, *_holder(endpoint.port))
    if error.errno == errno.EACCES:
        return warn(
            what,
            f"user {os.geteuid()} may not open ports below 1024",
            "let systemd open it (conf/systemd), or put a mail server or proxy in front",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return bad(what, "this machine does not have the address", "set an address of this machine in [listen]")
    return bad(what, error.strerror or str(error), "set another address in [listen]")


def _held(what: str, process: int, command: str) -> Finding:
    if not process:
        return warn(what, "in use, by whom cannot be seen", "run this as root, or as the user the server runs as")
    if _OURS.search(command):
        return ok(what, f"served by process {process}")
    if process == 1:
        return ok(what, "systemd listens there, and hands it over")
    return bad(what, f"held by process {process} ({command[:80]})", "stop it, or set another port in [listen]")


def _unix(endpoint: Endpoint) -> Finding:
    what = f"{endpoint.kind} {endpoint}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(endpoint.path)
            return ok(what, "somebody listens there")
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        except OSError as error:
            return bad(what, error.strerror or str(error), "remove what lies there, or set another path in [listen]")
    directory = os.path.dirname(endpoint.path)
    if not os.access(directory, os.W_OK | os.X_OK):
        return bad(what, f"nothing can be made in {directory}", f"make {directory} writable for markpost's user")
    return ok(what, "free")


def _holder(port: int) -> tuple[int, str]:
    """The process that listens on the port, and its command line; zero where that cannot be seen.

    Whoever got the socket from another process is told before that one: the latest has the highest number, mostly.
    """
    inodes = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _listening(name, port)}
    for process in sorted(filter(str.isdigit, os.listdir("/proc")), key=int, reverse=True):
        try:
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                if os.readlink(f"/proc/{process}/fd/{descriptor}") in inodes:
                    with open(f"/proc/{process}/cmdline", "rb") as file:
                        return int(process), file.read(500).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue  # it has gone, or is not ours to look at
    return 0, ""


def _listening(name: str, port: int) -> Iterator[str]:
    try:
        with open(f"/proc/net/{name}", encoding="ascii") as table:
            next(table)
            for line in table:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
    except OSError:
        return
