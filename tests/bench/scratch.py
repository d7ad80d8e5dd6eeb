"""A disk to measure on.

A file system that was just used for something else (mass deletes above all) makes new files slow for minutes. Where it
can be had (root on Linux), a fresh ext4 in a loop-mounted image is used instead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

_IMAGE_BYTES = 24 << 30  # sparse


@contextlib.contextmanager
def directory(chosen: str | None) -> Iterator[str]:
    if chosen:
        os.makedirs(chosen, exist_ok=True)
        yield tempfile.mkdtemp(prefix="markpost-bench-", dir=chosen)
        return
    work = tempfile.mkdtemp(prefix="markpost-bench-")
    try:
        if os.geteuid() == 0 and shutil.which("mkfs.ext4"):
            image, mount = f"{work}/disk.img", f"{work}/disk"
            os.mkdir(mount)
            with open(image, "wb") as file:
                file.truncate(_IMAGE_BYTES)
            subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
            if subprocess.run(["mount", "-o", "loop", image, mount], check=False).returncode == 0:
                print("disk: a fresh loop-mounted ext4")
                try:
                    yield mount
                finally:
                    subprocess.run(["umount", mount], check=False)
                return
        print("disk: a folder of the temporary directory (no loop mount here)")
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
