"""Set-up of every test: the seed, scratch space in memory, hypothesis profiles, and the ``needs`` marker."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from adapter.transport.transport import Transport

_TESTS = Path(__file__).resolve().parent
_ROOT = _TESTS.parent
_LONG = ("clients", "crash", "maintenance", "stress")
#: The files of this directory share the Spark session of their process, so one process runs them all: starting another,
#: and its first scan of a store, take half a minute of a processor.
_ONE_SESSION = "tests/system/maintenance/one_session"
if str(_ROOT) not in sys.path:  # `pytest` alone does not put it there, and tests import tests.support
    sys.path.insert(0, str(_ROOT))

_MEMORY = Path("/dev/shm")
_urandom = os.urandom
_SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile("default", deadline=None, suppress_health_check=_SLOW_MACHINE)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=_SLOW_MACHINE)
settings.register_profile("long", deadline=None, max_examples=3000, suppress_health_check=_SLOW_MACHINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
#: `make unit` runs this share of the examples of every property; `make test` runs all.
_SHARE_OF_EXAMPLES = float(os.environ.get("MARKPOST_EXAMPLES", "1"))

_scratch = pytest.StashKey[Path]()

#: Everything random in a test's own process derives from it: ids, sizes, order (but with 0, files keep their order).
_SEED = os.environ.setdefault("MARKPOST_SEED", "0")


def pytest_configure(config: pytest.Config) -> None:
    """Give ``tmp_path`` a fresh directory in memory: thousands of fsyncs cost nothing there.

    A shell makes what it starts in the background ignore Ctrl-C, and children inherit that: they get the default back.
    """
    os.umask(0o022)  # tests put entries into stores by hand, and check reports what others may write to
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.basetemp is None and not hasattr(config, "workerinput") and os.access(_MEMORY, os.W_OK):
        scratch = Path(tempfile.mkdtemp(prefix="markpost-tests-", dir=_MEMORY))
        config.stash[_scratch] = scratch
        config.option.basetemp = str(scratch / "tmp")


def pytest_unconfigure(config: pytest.Config) -> None:
    scratch = config.stash.get(_scratch, None)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def pytest_report_header() -> str:
    return f"MARKPOST_SEED={_SEED}"


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test draw the same random octets, and so ids, each time it runs with this seed."""
    dice = random.Random(f"{_SEED} {request.node.nodeid}")
    owner = os.getpid()

    def urandom(size: int) -> bytes:
        # A child that was forked would repeat what its parent draws.
        return dice.randbytes(size) if os.getpid() == owner else _urandom(size)

    random.seed(dice.getrandbits(64))
    monkeypatch.setattr(os, "urandom", urandom)
    monkeypatch.setattr(random, "_urandom", urandom)  # of SystemRandom, and so of secrets


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """Undo what a test changes of the process's logging: in-process servers and commands set levels and handlers."""
    ours = logging.getLogger("adapter")
    levels, handlers = (logging.root.level, ours.level), logging.root.handlers[:]
    details = logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile = details


_STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
#: The test that runs now, unless it may start processes.
_pure_test = ""


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: a test outside tests/system starts no process, whatever code it calls."""
    if _pure_test and event in _STARTS and "ldconfig" not in str(arguments[:1]):  # ctypes asks it for the C library
        raise PermissionError(f"{_pure_test}: only tests in tests/system start processes ({event})")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _pure_test
    _pure_test = "" if item.path.is_relative_to(_TESTS / "system") else item.nodeid
    try:
        return (yield)
    finally:
        _pure_test = ""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, a process gets whole files; those that share a session are one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    def unit(nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _ONE_SESSION if file.startswith(f"{_ONE_SESSION}/") else file

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = unit
    return scheduler


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start long files first, computing ones beside waiting ones, so that no process is left with one at the end."""
    files: dict[str, dict[Path, int]] = {}
    last = (len(items), "")

    def rank(item: pytest.Item) -> tuple[int, str]:
        if item.nodeid.startswith(f"{_ONE_SESSION}/"):
            return (-1, "")
        directory = item.path.parent.name
        positions = files.setdefault(directory, {})
        return (positions.setdefault(item.path, len(positions)), directory) if directory in _LONG else last

    if _SEED != "0":
        _shuffle_within_files(items)
    if _SHARE_OF_EXAMPLES != 1:
        _reduce_examples(items)
    items.sort(key=rank)


def _reduce_examples(items: list[pytest.Item]) -> None:
    for owner in {getattr(item, "cls", None) or getattr(item, "obj", None) for item in items}:
        for name in ("settings", "_hypothesis_internal_use_settings"):
            full = getattr(owner, name, None)
            if isinstance(full, settings):
                setattr(owner, name, settings(full, max_examples=max(5, int(full.max_examples * _SHARE_OF_EXAMPLES))))


def _shuffle_within_files(items: list[pytest.Item]) -> None:
    places = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
    random.Random(_SEED).shuffle(items)
    items.sort(key=lambda item: places[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``needs("dovecot")``: without the program the test is skipped."""
    programs = [str(program) for mark in item.iter_markers("needs") for program in mark.args]
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that is skipped, for whatever reason, fails where nothing may be skipped."""
    report = yield
    if report.failed:
        report.sections.append(("seed", f"run again with MARKPOST_SEED={_SEED}"))
    if report.skipped and os.environ.get("MARKPOST_NO_SKIP") == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{reason}: no test may be skipped here"
    return report


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Transport]:
    """An open store with two accounts; all its layers must agree after the test."""
    from tests.support.layers import assert_layers_agree
    from tests.support.stores import ADA, BOB, new_store

    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        yield transport
        transport.checkpoint()  # content too large for the journal stays in staging until then
        assert_layers_agree(root, tmp_path / "scratch", open_stores=1)
    assert_layers_agree(root, tmp_path / "scratch")


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    """An open store with one account; all its layers must agree once it is closed."""
    from tests.support.layers import assert_layers_agree
    from tests.support.stores import ADA, new_store

    with new_store(tmp_path / "store", ADA) as opened:
        yield opened
    assert_layers_agree(tmp_path / "store", tmp_path / "scratch")
