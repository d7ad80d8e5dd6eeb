"""Copies of whole stores, with whatever is in them."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path


def copy_store(root: Path, target: Path) -> None:
    """Copy a store as a killed process would leave it: without scratch files, with pipes and sockets."""
    ignored = shutil.ignore_patterns("run-*")
    shutil.copytree(root, target, symlinks=True, ignore=ignored, copy_function=_copy_entry)


def _copy_entry(source: str, target: str) -> str:
    mode = os.lstat(source).st_mode
    if stat.S_ISREG(mode):
        return shutil.copy2(source, target)
    os.mknod(target, mode)
    return target
