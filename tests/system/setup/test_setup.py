"""``.ci/setup``: an interrupted set-up is completed by the next one, at whichever step it was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

_REPOSITORY = REPOSITORY

#: Stands for Python, its venv module and pip. Each ``step`` is a point at which the whole set-up can be killed. As with
#: the real pip, a package with metadata counts as installed, with or without the rest of its files.
_PYTHON = """#!/usr/bin/env bash
set -euo pipefail
step() {
    echo "$1" >>"$STEPS"
    [ "$(wc -l <"$STEPS")" != "$KILLED_AT" ] || { kill -s "$SIGNAL" 0; sleep 60; }
}
case "$1 ${2:-}" in
"-c import pip") [ -e "${0%/*}/../pip" ] ;;
"-c "*) ;;
"-m venv")
    step "venv: directories"; mkdir -p "$3/bin"
    step "venv: configuration"; echo "home = /usr/bin" >"$3/pyvenv.cfg"
    step "venv: interpreter"; cp "$0" "$3/bin/python"
    step "venv: pip"; echo 1 >"$3/pip" ;;
"-m pip")
    venv=${0%/bin/python}
    [ -e "$venv/pip" ] || { echo "No module named pip" >&2; exit 1; }
    package=markpost
    for argument in "$@"; do if [ "$argument" = constraints.txt ]; then package=$(cat constraints.txt); fi; done
    if [ ! -e "$venv/$package.metadata" ]; then
        step "pip: metadata of $package"; echo 1 >"$venv/$package.metadata"
        step "pip: files of $package"; echo 1 >"$venv/$package.files"
    fi
    step "pip: end" ;;
*) exit 2 ;;
esac
"""


class _Machine:
    """A clone with ``.ci/setup`` and ``Makefile``, and a PATH on which Python and Java are scripts of the test."""

    def __init__(self, directory: Path) -> None:
        self.clone, self._programs, self._steps = directory / "clone", directory / "bin", directory / "steps"
        (self.clone / ".ci").mkdir(parents=True)
        self._programs.mkdir()
        for name in ("Makefile", ".ci/setup"):
            shutil.copy(_REPOSITORY / name, self.clone / name)
        (self.clone / "pyproject.toml").touch()
        (self.clone / "constraints.txt").write_text("dependency-1")
        for name, text in (("python", _PYTHON), ("java", "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")):
            (self._programs / name).write_text(text)
            (self._programs / name).chmod(0o755)
        self.venv = self.clone / ".venv"

    def setup(self, killed_at: int = 0, number: int = signal.SIGKILL) -> int:
        """Run ``make setup``, killed at a step of the stand-in for Python; its exit status."""
        self._steps.unlink(missing_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "MARKPOST_PYTHON": str(self._programs / "python"),
            "STEPS": str(self._steps),
            "KILLED_AT": str(killed_at),
            "SIGNAL": signal.Signals(number).name.removeprefix("SIG"),
        }
        done = subprocess.run(
            ["make", "--silent", "setup"],
            cwd=self.clone,
            env=environment,
            start_new_session=True,
            capture_output=True,
            check=False,
        )
        return done.returncode

    @property
    def steps(self) -> list[str]:
        return self._steps.read_text().splitlines() if self._steps.exists() else []

    @property
    def files(self) -> set[str]:
        return {str(path.relative_to(self.venv)) for path in self.venv.rglob("*") if path.is_file()}


_COMPLETE = {
    "bin/python", "pyvenv.cfg", "pip", ".lock", ".ready",
    "dependency-1.metadata", "dependency-1.files", "markpost.metadata", "markpost.files",
}  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> _Machine:
    return _Machine(tmp_path)


def test_complete_environment_is_not_made_again(machine: _Machine) -> None:
    assert machine.setup() == 0
    assert machine.files == _COMPLETE
    assert len(machine.steps) == 10
    assert machine.setup() == 0
    assert machine.steps == []


@pytest.mark.parametrize(
    ("step", "number"), [*((step, signal.SIGKILL) for step in range(1, 11)), (4, signal.SIGINT), (6, signal.SIGINT)]
)
def test_killed_setup_is_completed_by_the_next(machine: _Machine, step: int, number: int) -> None:
    assert machine.setup(killed_at=step, number=number) != 0
    assert len(machine.steps) == step
    assert ".ready" not in machine.files
    assert machine.setup() == 0
    assert machine.files == _COMPLETE


@pytest.mark.parametrize("step", range(1, 5))
def test_changed_constraints_are_installed_even_after_a_kill(machine: _Machine, step: int) -> None:
    assert machine.setup() == 0
    (machine.clone / "constraints.txt").write_text("dependency-2")
    assert machine.setup(killed_at=step) != 0
    assert machine.setup() == 0
    assert {"dependency-2.metadata", "dependency-2.files", "markpost.files", ".ready"} <= machine.files


def test_changed_constraints_keep_the_environment(machine: _Machine) -> None:
    assert machine.setup() == 0
    (machine.clone / "constraints.txt").write_text("dependency-2")
    assert machine.setup() == 0
    assert machine.files == _COMPLETE | {"dependency-2.metadata", "dependency-2.files"}
    assert not any(step.startswith("venv") for step in machine.steps)


def test_broken_interpreter_is_replaced(machine: _Machine) -> None:
    assert machine.setup() == 0
    (machine.venv / "bin" / "python").unlink()
    (machine.clone / "constraints.txt").touch()
    assert machine.setup() == 0
    assert machine.files == _COMPLETE


def test_directory_that_is_not_an_environment_is_left_alone(machine: _Machine) -> None:
    machine.venv.mkdir()
    (machine.venv / "letters.txt").write_text("mine")
    assert machine.setup() != 0
    assert machine.files == {"letters.txt"}
