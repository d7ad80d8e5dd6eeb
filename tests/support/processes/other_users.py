"""Being somebody else than root for a while."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

NOBODY = 65534

only_for_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def give_to_nobody(place: Path) -> None:
    for directory, directories, files in os.walk(place):
        for name in (".", *directories, *files):
            os.lchown(os.path.join(directory, name), NOBODY, NOBODY)


def as_nobody(place: Path, ask: Callable[[Path], str]) -> str:
    """What the function says about a place of the test's when a user without privileges asks."""
    for directory in place.parents:
        if directory.stat().st_mode & 0o1777 == 0o700:
            directory.chmod(0o711)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = ""
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
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
