"""Make files of a damaged store unreadable for this process, and for the executors and the replay of the lab."""

from __future__ import annotations

import atexit
import errno
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

_SITE = Path(__file__).parents[1] / "lab_site"
sys.path.insert(0, str(_SITE))  # inherited by child processes

from tests.system.maintenance.lab_site import sitecustomize  # noqa: E402

_place = tempfile.mkdtemp(prefix="markpost-failing-")
atexit.register(shutil.rmtree, _place, ignore_errors=True)
_list = Path(_place, "list.json")
os.environ[sitecustomize.VARIABLE] = str(_list)
_errors: dict[str, int] = {}
ERRORS = (errno.EACCES, errno.EIO, errno.EMFILE)


def environment() -> str:
    """The value of PYTHONPATH that loads the failing ``os.open`` into a process."""
    return os.pathsep.join(filter(None, (str(_SITE), os.environ.get("PYTHONPATH"))))


def fail(path: Path, error: int) -> None:
    """Make every attempt to open this file or directory fail with this error."""
    _errors[os.path.realpath(path.parent) + "/" + path.name] = error
    _write()
    sitecustomize.install()


def clear() -> None:
    """Make everything readable again."""
    _errors.clear()
    _list.unlink(missing_ok=True)
    sitecustomize.remove()


def _write() -> None:
    new = _list.with_suffix(".new")
    new.write_text(json.dumps(_errors))
    new.rename(_list)
