"""A disk to measure on.

A file system that was just used for something else (mass deletes above all) makes new files slow for minutes. Where it
is possible (root on Linux), a fresh journaled ext4 in a loop-mounted image is used instead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

_IMAGE_BYTES = 40 << 30  # sparse
_INODES_BYTES = 4096  # one inode for so many octets: mail is many small files


@contextlib.contextmanager
def directory(chosen: str | None, *, loop: bool = True) -> Iterator[tuple[str, str]]:
    """Yield a directory to work in, and what kind of disk it is on."""
    if chosen:
        os.makedirs(chosen, exist_ok=True)
    work = tempfile.mkdtemp(prefix="markpost-bench-", dir=chosen)
    try:
        mount = _mount(work) if loop else None
        try:
            yield (
                (mount, "a fresh loop-mounted ext4") if mount else (work, f"the plain disk of {os.path.dirname(work)}")
            )
        finally:
            if mount:
                subprocess.run(["umount", mount], check=False)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _mount(work: str) -> str | None:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        return None
    image, mount = f"{work}/disk.img", f"{work}/disk"
    os.mkdir(mount)
    with open(image, "wb") as file:
        file.truncate(_IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-i", str(_INODES_BYTES), image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, mount], check=False).returncode == 0
    return mount if mounted else None
