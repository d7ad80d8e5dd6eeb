"""Calls as a user other than root."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

UNPRIVILEGED_UID = 65534

only_for_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def give_to_unprivileged(place: Path) -> None:
    for directory, directories, files in os.walk(place):
        for name in (".", *directories, *files):
            os.lchown(os.path.join(directory, name), UNPRIVILEGED_UID, UNPRIVILEGED_UID)


def as_unprivileged(place: Path, ask: Callable[[Path], str]) -> str:
    """Return the function's answer for a path of the test, called as an unprivileged user."""
    for directory in place.parents:
        if directory.stat().st_mode & 0o1777 == 0o700:
            directory.chmod(0o711)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = ""
        try:
            os.setgroups([])
            os.setgid(UNPRIVILEGED_UID)
            os.setuid(UNPRIVILEGED_UID)
            answer = ask(place)
        except BaseException as error:
            answer = repr(error)
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, encoding="utf-8") as answers:
        return answers.read()
