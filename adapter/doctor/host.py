"""The machine: Java for check and repair, a clock that can be trusted, and descriptors for connections."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping

from adapter.config.schema import Settings
from adapter.doctor.findings import Finding, bad, ok, warn
from adapter.sessions.budgets import allowed_connections, connections_per_process

_JAVA = 17
_INSTALL = "install openjdk-17-jre-headless, or set JAVA_HOME"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_OUR_TIME = 1_750_000_000  # this program was not written before
_NOT_SYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def java(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    home = environment.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark would start
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False, env=dict(environment)
        )
    except (OSError, subprocess.TimeoutExpired):
        yield warn("java", f"{program} cannot be started: there is no check and no repair without it", _INSTALL)
        return
    version = _VERSION.search(done.stderr + done.stdout)
    if version is None:
        yield warn("java", f"{program} does not tell its version", _INSTALL)
    elif int(version[1]) < _JAVA:
        yield warn("java", f"{program} is version {version[1]}; check and repair need {_JAVA}", _INSTALL)
    else:
        yield ok("java", f"version {version[1]}")


def clock(newest_change: float | None) -> Iterator[Finding]:
    """``newest_change`` is when the store was last changed, as its journal says."""
    now = time.time()
    advice = "set the clock and let it be kept right (timedatectl set-ntp true)"
    if now < _OUR_TIME:
        yield bad("clock", f"it is {_date(now)}, which cannot be", advice)
    elif newest_change is not None and newest_change > now + 60:
        yield bad("clock", f"it is {_date(now)}, but the store was changed at {_date(newest_change)}", advice)
    elif not _is_synchronised():
        yield warn("clock", f"{_date(now)}, and nothing keeps it right", advice)
    else:
        yield ok("clock", f"{_date(now)}, synchronised")


def descriptors(settings: Settings) -> Iterator[Finding]:
    """Whether the hard limit of descriptors allows as many connections as the settings."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    workers, wanted = settings.server.workers, settings.limits.connections
    allowed = allowed_connections(workers, connections_per_process(hard))
    if allowed < wanted:
        yield warn(
            "descriptors",
            f"{hard} for a process: {allowed} connections instead of limits.connections = {wanted}",
            "raise the hard limit (ulimit -Hn, LimitNOFILE= of the service), or lower limits.connections",
        )
    else:
        yield ok("descriptors", f"enough for {wanted} connections")


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def _is_synchronised() -> bool:
    status = ctypes.create_string_buffer(512)  # struct timex, all zero: only ask
    return int(ctypes.CDLL(None).adjtimex(status)) != _NOT_SYNCHRONISED
