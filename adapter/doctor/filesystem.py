"""Where the store lies: its file system, the room there, and who may read and write what. Nothing is changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from adapter.config.schema import Settings
from adapter.doctor.findings import Finding, bad, ok, warn
from adapter.store import layout, locks
from adapter.store.disk import Directories
from protocol.errors import MailError

_REMOTE = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "vboxsf", "fuse.sshfs")
)
_LITTLE, _NOTHING = 2 << 30, 200 << 20  # octets free
_FEW, _NONE = 0.05, 0.005  # share of inodes free
_ENTRIES = 2000  # of one directory that are looked at


def file_system(directories: Directories) -> Iterator[Finding]:
    kind = _type_of(directories.root_fd)
    if os.fstatvfs(directories.root_fd).f_flag & os.ST_RDONLY:
        yield bad("file system", f"{kind} is mounted read-only", "look into the kernel's log for why, and remount it")
        return
    try:
        locks.check_exclusion(directories)
    except PermissionError:
        yield bad("locking", "cannot be tried: this user cannot write there", "run this as the store's owner")
    except (MailError, OSError) as error:
        yield bad("locking", str(error), "put the store on a local file system such as ext4, xfs or btrfs")
    else:
        yield ok("locking", f"two holders exclude one another on {kind}")
    if kind in _REMOTE:
        yield warn("file system", f"{kind} is remote", "put the store on a local disk: syncs are unsure here")


def free_space(directories: Directories) -> Iterator[Finding]:
    found = os.fstatvfs(directories.root_fd)
    free = found.f_bavail * found.f_frsize
    share = free / max(1, found.f_blocks * found.f_frsize)
    text = f"{free / 1e9:.1f} GB free ({share:.0%})"
    if free < _NOTHING:
        yield bad("disk space", text, "make room: mail is refused for the time being when there is none")
    elif free < _LITTLE or share < _FEW:
        yield warn("disk space", text, "make room soon")
    else:
        yield ok("disk space", text)
    if not found.f_files:
        return  # a file system that makes them as they are needed
    share = found.f_favail / found.f_files
    text = f"{found.f_favail} free ({share:.0%})"
    if share < _NONE:
        yield bad("inodes", text, "remove files, or move the store to a file system with more: a message needs two")
    elif share < _FEW:
        yield warn("inodes", text, "move the store to a file system with more: a message needs two")
    else:
        yield ok("inodes", text)


def permissions(directories: Directories, settings: Settings) -> Iterator[Finding]:
    root = directories.root
    top = os.fstat(directories.root_fd)
    problems = [*_owners(directories, top.st_uid), *_private(directories), *_secrets(settings)]
    read_only = os.fstatvfs(directories.root_fd).f_flag & os.ST_RDONLY  # told already
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
            warn("permissions", f"{root} is open to others (mode {top.st_mode & 0o777:o})", f"chmod 700 {root}")
        )
    yield from problems
    if not problems:
        yield ok("permissions", f"the store belongs to user {top.st_uid} and is closed to others")


def _owners(directories: Directories, owner: int) -> Iterator[Finding]:
    """A command run as another user leaves files that the server cannot write."""
    strange = []
    for parts in ((), *layout.DIRECTORIES, layout.CREDENTIALS):
        try:
            with directories.stable(parts) as directory, os.scandir(directory) as entries:
                for entry, _ in zip(entries, range(_ENTRIES), strict=False):
                    if entry.stat(follow_symlinks=False).st_uid != owner:
                        strange.append(layout.absolute(directories.root, *parts, entry.name))
        except OSError:
            continue  # told elsewhere, or not there yet
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        yield bad(
            "permissions",
            f"{strange[0]}{more} do not belong to user {owner} as the store does",
            f"chown -R {owner} {directories.root}",
        )


def _private(directories: Directories) -> Iterator[Finding]:
    try:
        with directories.stable(layout.CREDENTIALS) as directory:
            opened = os.fstat(directory).st_mode & 0o077
            for name in layout.CREDENTIAL_FILES:
                try:
                    opened |= os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode & 0o077
                except FileNotFoundError:
                    pass
    except FileNotFoundError:
        return
    except OSError as error:
        yield bad("permissions", f"the credentials cannot be seen: {error.strerror}", "run this as the store's owner")
        return
    if opened:
        place = layout.absolute(directories.root, *layout.CREDENTIALS)
        yield bad("permissions", f"others can read {place}, where the passwords are", f"chmod -R go= {place}")


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
            continue  # told with the configuration
        if stat.S_ISREG(mode) and mode & 0o007:
            yield bad("permissions", f"everybody can read {name} (mode {mode & 0o777:o})", f"chmod o= {name}")


def _type_of(descriptor: int) -> str:
    """The type of the file system, as the kernel's list of mounts has it."""
    device = os.fstat(descriptor).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                fields, _, rest = line.partition(" - ")
                if fields.split()[2] == wanted:
                    return rest.split()[0]
    except OSError:
        pass
    return "an unknown file system"
