"""The README's tour, step by step as it is written there: what it says happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.processes.fronts import free_port

_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Message ids and times: they differ from run to run.
_VARIES = re.compile(r"msg-\d{8}T\d{6}Z-[0-9a-f]{20}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def _tour() -> list[tuple[str, str]]:
    text = (REPOSITORY / "README.md").read_text()
    return _BLOCK.findall(text.partition("## A tour\n")[2].partition("\n## ")[0])


def _masked(text: str) -> str:
    return _VARIES.sub("*", text)


@pytest.mark.needs("bash", "curl", "java")
@pytest.mark.timeout(600)  # two looks by Spark, each in a process of its own
def test_every_step_does_what_the_readme_says(tmp_path: Path) -> None:
    steps = _tour()
    assert [kind for kind, _ in steps] == ["sh", "sh", "text", "sh", "text", "sh", "text"]
    program = tmp_path / "bin" / "markpost"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m adapter.cli "$@"\n')
    program.chmod(0o755)
    # One shell for all steps, as a reader has it; a line between their outputs.
    script = "set -e\n" + "\n".join(f"{text}echo '=== end'" for kind, text in steps if kind == "sh")
    for port in ("2143", "2587"):
        script = script.replace(port, str(free_port()))
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=570
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = iter(_masked(done.stdout.replace("\r\n", "\n")).split("=== end\n"))
    for kind, text in steps:
        if kind == "sh":
            output = next(outputs)
            continue
        for line in _masked(text).splitlines():
            assert line.removesuffix("…") in output, f"{line!r} is not in\n{output}"
