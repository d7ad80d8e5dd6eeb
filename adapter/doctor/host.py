"""Check the machine: Java for check and repair, a synchronised clock, and descriptors for connections."""

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

_MIN_JAVA = 17
_INSTALL = "install openjdk-17-jre-headless, or set JAVA_HOME"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_EARLIEST_TIME = 1_750_000_000  # this program did not exist before
_NOT_SYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def java(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    home = environment.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"
    try:
        result = subprocess.run(  # noqa: S603 - the program that Spark would start
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False, env=dict(environment)
        )
    except (OSError, subprocess.TimeoutExpired):
        yield warn("java", f"cannot start {program}, which check and repair need", _INSTALL)
        return
    version = _VERSION.search(result.stderr + result.stdout)
    if version is None:
        yield warn("java", f"{program} does not print its version", _INSTALL)
    elif int(version[1]) < _MIN_JAVA:
        yield warn("java", f"{program} is version {version[1]}; check and repair need {_MIN_JAVA}", _INSTALL)
    else:
        yield ok("java", f"version {version[1]}")


def clock(last_change: float | None) -> Iterator[Finding]:
    """Compare the clock with ``last_change``, the time of the last journal record."""
    now = time.time()
    advice = "set the clock and synchronise it (timedatectl set-ntp true)"
    if now < _EARLIEST_TIME:
        yield bad("clock", f"{_date(now)} is wrong", advice)
    elif last_change is not None and last_change > now + 60:
        yield bad("clock", f"{_date(now)}, but the store was changed at {_date(last_change)}", advice)
    elif not _is_synchronised():
        yield warn("clock", f"{_date(now)}, not synchronised", advice)
    else:
        yield ok("clock", f"{_date(now)}, synchronised")


def descriptors(settings: Settings) -> Iterator[Finding]:
    """Compare the hard limit of descriptors with limits.connections."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    workers, configured = settings.server.workers, settings.limits.connections
    allowed = allowed_connections(workers, connections_per_process(hard))
    if allowed < configured:
        yield warn(
            "descriptors",
            f"{hard} per process: {allowed} connections instead of limits.connections = {configured}",
            "raise the hard limit (ulimit -Hn, LimitNOFILE= of the service), or lower limits.connections",
        )
    else:
        yield ok("descriptors", f"enough for {configured} connections")


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def _is_synchronised() -> bool:
    status = ctypes.create_string_buffer(512)  # struct timex, all zero: query only
    return int(ctypes.CDLL(None).adjtimex(status)) != _NOT_SYNCHRONISED
