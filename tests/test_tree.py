"""The tree of the tests: it mirrors the product's packages, and only ``tests/system`` starts processes."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY, TESTS

MAX_MODULES = 16
#: Tests of the repository itself: its rules, its language, its settings.
_OF_THE_REPOSITORY = ("test_architecture.py", "test_settings_proven.py", "test_style.py", "test_tree.py")
_PROCESS_MODULES = ("multiprocessing", "pty", "pyspark", "subprocess", "tests.support.processes")
_PROCESS_CALLS = {
    *(f"os.{name}" for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")),
    *(f"asyncio.{name}" for name in ("create_subprocess_exec", "create_subprocess_shell")),
}


def _test_modules() -> list[str]:
    names = (str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py"))
    return sorted(name for name in names if not name.startswith("system/"))


def mirrors_nothing(module: str) -> bool:
    """True for a test module below ``tests`` that is neither beside a package of the product nor one of ours."""
    folder = Path(module).parent
    if folder == Path(""):
        return module not in _OF_THE_REPOSITORY
    return folder.parts[0] != "support" and not list((REPOSITORY / folder).glob("*.py"))


def process_starts(source: str) -> list[str]:
    """Imports and calls by which a test module starts processes."""
    tree = ast.parse(source)
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.append(f"{node.value.id}.{node.attr}")
    return [
        name
        for name in names
        if name in _PROCESS_CALLS or any(f"{name}.".startswith(f"{module}.") for module in _PROCESS_MODULES)
    ]


def test_test_modules_mirror_packages_of_the_product() -> None:
    assert not [module for module in _test_modules() if mirrors_nothing(module)]


@pytest.mark.parametrize("module", ["test_new.py", "adapter/nowhere/test_x.py", "clients/test_x.py"])
def test_module_that_mirrors_nothing_is_reported(module: str) -> None:
    assert mirrors_nothing(module)


def test_only_system_tests_start_processes() -> None:
    starts = {module: process_starts((TESTS / module).read_text()) for module in _test_modules()}
    assert not {module: names for module, names in starts.items() if names and module not in _OF_THE_REPOSITORY}


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "from subprocess import run",
        "from multiprocessing import get_context",
        "import pyspark.sql",
        "import pty",
        "import os\nos.fork()",
        "from os import fork",
        "import asyncio\nasyncio.create_subprocess_exec('true')",
        "from tests.support import processes",
        "from tests.support.processes.serve import served",
    ],
)
def test_start_of_a_process_is_reported(source: str) -> None:
    assert process_starts(source)


def test_process_started_outside_system_tests_is_refused() -> None:
    with pytest.raises(PermissionError, match="only tests in tests/system start processes"):
        subprocess.run(["true"], check=True)


@pytest.mark.parametrize("folder", ["support", "bench", "system/clients", "system/server", "system/crash"])
def test_folder_holds_few_modules(folder: str) -> None:
    counts = Counter(
        str(path.parent.relative_to(TESTS)) for path in (TESTS / folder).rglob("*.py") if path.stem != "__init__"
    )
    assert not {name: count for name, count in counts.items() if count > MAX_MODULES}
