"""Check the file system of the store: locking, free space, owners and permissions. Nothing is changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from adapter.config.schema import Settings
from adapter.doctor.findings import RUN_AS_OWNER, Finding, bad, ok, warn
from adapter.store import layout, locks
from adapter.store.disk import Directories
from protocol.errors import MailError

_REMOTE = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "vboxsf", "fuse.sshfs")
)
_LOW_BYTES, _FULL_BYTES = 2 << 30, 200 << 20  # free
_LOW_SHARE, _FULL_SHARE = 0.05, 0.005  # of inodes, free
_MAX_ENTRIES = 2000  # checked in one directory


def file_system(directories: Directories) -> Iterator[Finding]:
    kind = _type_of(directories.root_fd)
    if os.fstatvfs(directories.root_fd).f_flag & os.ST_RDONLY:
        yield bad("file system", f"{kind} is mounted read-only", "find the cause in the kernel log, and remount it")
        return
    try:
        locks.check_exclusion(directories)
    except PermissionError:
        yield bad("locking", "cannot be tested: this user cannot write to the store", RUN_AS_OWNER)
    except (MailError, OSError) as error:
        yield bad("locking", str(error), "put the store on a local file system such as ext4, xfs or btrfs")
    else:
        yield ok("locking", f"works on {kind}")
    if kind in _REMOTE:
        yield warn("file system", f"{kind} is remote", "put the store on a local disk: fsync is not reliable here")


def free_space(directories: Directories) -> Iterator[Finding]:
    statistics = os.fstatvfs(directories.root_fd)
    free = statistics.f_bavail * statistics.f_frsize
    share = free / max(1, statistics.f_blocks * statistics.f_frsize)
    text = f"{free / 1e9:.1f} GB free ({share:.0%})"
    if free < _FULL_BYTES:
        yield bad("disk space", text, "free space: mail is refused temporarily when the disk is full")
    elif free < _LOW_BYTES or share < _LOW_SHARE:
        yield warn("disk space", text, "free space soon")
    else:
        yield ok("disk space", text)
    if not statistics.f_files:
        return  # the file system allocates inodes on demand
    share = statistics.f_favail / statistics.f_files
    text = f"{statistics.f_favail} free ({share:.0%})"
    if share < _FULL_SHARE:
        yield bad("inodes", text, "remove files, or move the store to a file system with more: a message needs two")
    elif share < _LOW_SHARE:
        yield warn("inodes", text, "move the store to a file system with more: a message needs two")
    else:
        yield ok("inodes", text)


def permissions(directories: Directories, settings: Settings) -> Iterator[Finding]:
    root = directories.root
    top = os.fstat(directories.root_fd)
    problems = [*_owners(directories, top.st_uid), *_private(directories), *_secrets(settings)]
    read_only = os.fstatvfs(directories.root_fd).f_flag & os.ST_RDONLY  # reported by file_system()
    if not read_only and not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        problems.append(
            bad(
                "permissions",
                f"user {os.geteuid()} cannot write {root}, which belongs to user {top.st_uid}",
                f"run markpost as its owner: sudo -u '#{top.st_uid}' markpost …",
            )
        )
    if top.st_mode & 0o077:
        problems.append(
            warn(
                "permissions",
                f"{root} is open to other users (mode {top.st_mode & 0o777:o})",
                f"chmod 700 {root}",
            )
        )
    yield from problems
    if not problems:
        yield ok("permissions", f"the store belongs to user {top.st_uid} and is private")


def _owners(directories: Directories, owner: int) -> Iterator[Finding]:
    """Find files of other users: the server cannot write them."""
    foreign = []
    for parts in ((), *layout.DIRECTORIES, layout.CREDENTIALS):
        try:
            with directories.stable(parts) as directory, os.scandir(directory) as entries:
                for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
                    if entry.stat(follow_symlinks=False).st_uid != owner:
                        foreign.append(layout.absolute(directories.root, *parts, entry.name))
        except OSError:
            continue  # reported by another check, or not created yet
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        yield bad(
            "permissions",
            f"{foreign[0]}{more} do not belong to user {owner} as the store does",
            f"chown -R {owner} {directories.root}",
        )


def _private(directories: Directories) -> Iterator[Finding]:
    try:
        with directories.stable(layout.CREDENTIALS) as directory:
            mode = os.fstat(directory).st_mode & 0o077
            for name in layout.CREDENTIAL_FILES:
                try:
                    mode |= os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode & 0o077
                except FileNotFoundError:
                    pass
    except FileNotFoundError:
        return
    except OSError as error:
        yield bad("permissions", f"cannot read the credentials: {error.strerror}", RUN_AS_OWNER)
        return
    if mode:
        path = layout.absolute(directories.root, *layout.CREDENTIALS)
        yield bad("permissions", f"other users can read {path}, which has the passwords", f"chmod -R go= {path}")


def _secrets(settings: Settings) -> Iterator[Finding]:
    keys = {pair.key or pair.certificate for pair in settings.tls.names.values()}
    if settings.tls.certificate:
        keys.add(settings.tls.key or settings.tls.certificate)
    keys |= {upstream.password_file for upstream in settings.upstream.values()}
    keys |= {hook.authorization_file for hook in settings.hook.values()}
    for name in sorted({*keys, settings.relay.password_file} - {""}):
        try:
            mode = os.stat(name).st_mode
        except OSError:
            continue  # reported as a mistake in the configuration
        if stat.S_ISREG(mode) and mode & 0o007:
            yield bad("permissions", f"every user can read {name} (mode {mode & 0o777:o})", f"chmod o= {name}")


def _type_of(descriptor: int) -> str:
    """Return the type of the file system from the kernel's list of mounts."""
    device = os.fstat(descriptor).st_dev
    device_number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                fields, _, rest = line.partition(" - ")
                if fields.split()[2] == device_number:
                    return rest.split()[0]
    except OSError:
        pass
    return "an unknown file system"
