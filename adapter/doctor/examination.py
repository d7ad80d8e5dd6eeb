"""All the checks, in the order in which a person would make them. Nothing is changed; one that fails stops no other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from adapter.config.schema import Settings
from adapter.doctor import certificates, filesystem, host, ports, store_health
from adapter.doctor.findings import Finding, bad
from adapter.store import layout
from adapter.store.disk import Directories
from adapter.transport.recovery import opening
from protocol.errors import MailError

_AS_OWNER = "run this as the user that owns the store"


def examine(root: str, settings: Settings) -> Iterator[Finding]:
    yield from _safely("java", host.java())
    yield from _safely("descriptors", host.descriptors(settings))
    advice = f"markpost init --root {root}, or give the right --root"
    try:
        with contextlib.closing(opening.open_root(root)) as directories:
            if opening.is_backup(directories):
                advice = f"markpost restore {root} --root DIR, and give that as --root"
            older = opening.version(directories) < layout.VERSION
            advice = f"markpost migrate --root {root}" if older else "install the markpost that it belongs to"
            opening.check_version(directories)
            yield from _store(directories, settings)
    except MailError as error:
        yield bad("store", str(error), _AS_OWNER if isinstance(error.__cause__, PermissionError) else advice)
        yield from _safely("clock", host.clock(None))
    yield from _safely("listeners", ports.ports(settings))
    yield from _safely("certificate", certificates.certificates(settings))


def _store(directories: Directories, settings: Settings) -> Iterator[Finding]:
    yield from _safely("clock", host.clock(store_health.newest_change(directories)))
    yield from _safely("locking", filesystem.file_system(directories))
    yield from _safely("disk space", filesystem.room(directories))
    yield from _safely("permissions", filesystem.permissions(directories, settings))
    yield from _safely("service", store_health.service(directories))
    yield from _safely("index", store_health.layers(directories))


def _safely(check: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except (OSError, MailError) as error:
        yield bad(check, f"cannot be looked at: {error}", _AS_OWNER)
