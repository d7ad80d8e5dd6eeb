"""Run all checks of the doctor in order. Nothing is changed, and a failing check does not stop the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from adapter.config.schema import Settings
from adapter.doctor import certificates, filesystem, host, ports, store_health
from adapter.doctor.findings import RUN_AS_OWNER, Finding, bad, guarded
from adapter.store.disk import Directories
from adapter.transport.recovery import opening
from protocol.errors import MailError


def run_checks(root: str, settings: Settings) -> Iterator[Finding]:
    yield from guarded("java", host.java())
    yield from guarded("descriptors", host.descriptors(settings))
    advice = f"markpost init --root {root}, or give the right --root"
    try:
        with contextlib.closing(opening.open_root(root)) as directories:
            if opening.is_backup(directories):
                advice = f"markpost restore {root} --root DIR, and give that as --root"
            opening.version(directories)
            advice = "install the markpost that created the store"
            opening.check_version(directories)
            yield from _store_checks(directories, settings)
    except MailError as error:
        yield bad("store", str(error), RUN_AS_OWNER if isinstance(error.__cause__, PermissionError) else advice)
        yield from guarded("clock", host.clock(None))
    yield from guarded("listeners", ports.ports(settings))
    yield from guarded("certificate", certificates.certificates(settings))


def _store_checks(directories: Directories, settings: Settings) -> Iterator[Finding]:
    yield from guarded("clock", host.clock(store_health.last_change(directories)))
    yield from guarded("locking", filesystem.file_system(directories))
    yield from guarded("disk space", filesystem.free_space(directories))
    yield from guarded("permissions", filesystem.permissions(directories, settings))
    yield from guarded("service", store_health.service(directories))
    yield from guarded("index", store_health.layers(directories))
