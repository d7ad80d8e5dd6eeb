"""The log of a server with a failing disk: each cause once with advice, then counts."""

from __future__ import annotations

import errno
import io
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.observability import logging as logs
from adapter.observability.disk_errors import advice, disk_cause
from adapter.observability.repeated_errors import RepeatLimit
from adapter.store import disk
from adapter.transport.errors import as_mail_error
from protocol.errors import MailError
from tests.support.messages import message
from tests.support.smtpd import make_store, serving

_MAILS = 20


class _Log:
    """A repeat limit with a clock of its own, and the lines that it passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.limit = RepeatLimit(lambda: self.now)

    def write(self, text: str, *arguments: object, error: BaseException | None = None, level: int = 40) -> list[str]:
        info = (type(error), error, None) if error is not None else None
        record = logging.LogRecord("adapter.x", level, "", 0, text, arguments, info)
        return [_line(each) for each in self.limit.filter(record)]

    def due(self) -> list[str]:
        return [_line(each) for each in self.limit.due()]


def _line(record: logging.LogRecord) -> str:
    return record.getMessage() + (" with traceback" if record.exc_info else "")


def _eio(name: str = "a") -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO), name)


def test_disk_error_is_written_once_and_then_counted_each_minute() -> None:
    log = _Log()
    assert log.write("reading failed", error=_eio("a")) == [
        "reading failed: [Errno 5] Input/output error: 'a'; check the disk and the kernel log (dmesg)"
    ]
    for second in range(59):
        log.now = float(second)
        assert log.write("reading failed", error=_eio(f"file {second}")) == []
    assert log.due() == []
    log.now = 60.0
    repeated = "reading failed: [Errno 5] Input/output error: 'a'; check the disk and the kernel log (dmesg)"
    assert log.due() == [f"repeated 59 times in 60 s: {repeated}"]
    log.now = 90.0
    assert log.write("reading failed", error=_eio()) == []
    log.now = 125.0
    assert log.write("something else") == [f"repeated 1 times in 60 s: {repeated}", "something else"]
    log.now = 300.0
    assert log.due() == []  # the errors have stopped
    assert len(log.write("reading failed", error=_eio())) == 1  # a new line


def test_other_place_or_cause_has_its_own_line() -> None:
    log = _Log()
    assert len(log.write("reading failed", error=_eio())) == 1
    assert len(log.write("writing failed", error=_eio())) == 1
    assert len(log.write("reading failed", error=OSError(errno.ENOSPC, "No space left on device"))) == 1
    assert log.write("reading failed", error=OSError(errno.ENOSPC, "No space left on device")) == []


def test_other_errors_pass_unchanged() -> None:
    log = _Log()
    for _ in range(3):
        assert log.write("login of %s failed", "ada") == ["login of ada failed"]
        assert log.write("bug", error=ValueError("x")) == ["bug with traceback"]
        assert log.write("peer: %s", ConnectionResetError(errno.ECONNRESET, "reset")) == ["peer: [Errno 104] reset"]
        assert log.write("not accepted: %s", as_mail_error(_eio()), level=logging.INFO)


def test_disk_error_is_recognised_as_cause_of_the_logged_error() -> None:
    log = _Log()
    error = as_mail_error(_eio())
    assert isinstance(error, MailError)
    assert isinstance(disk_cause(error), OSError)
    assert log.write("peer %s: %s", "x", error)[0].endswith("; check the disk and the kernel log (dmesg)")
    assert log.write("peer %s: %s", "y", as_mail_error(_eio("other"))) == []


def test_errors_of_the_index_file_are_disk_errors(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"x" * 5000)
    with pytest.raises(sqlite3.DatabaseError) as raised:
        sqlite3.connect(tmp_path / "index").execute("SELECT * FROM x")
    assert advice(raised.value) == "run markpost repair"
    assert advice(sqlite3.OperationalError("no such table")) == ""


def test_memory_is_bounded_and_nothing_is_lost_without_a_count() -> None:
    log = _Log()
    for number in range(1000):
        assert log.write(f"place {number}", error=_eio())[-1].startswith(f"place {number}: ")
        assert log.write(f"place {number}", error=_eio()) == []
    log.now = 60.0
    assert len(log.due()) == 256


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The standard error of a server."""
    stream = io.StringIO()
    handler = logs.LogWriter(stream)
    handler.setFormatter(logs.TextLines())
    ours = logging.getLogger("adapter")
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    yield stream
    ours.setLevel(level)
    ours.removeHandler(handler)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("where", ["write_new", "write_at"])
async def test_mail_refused_by_a_failing_disk_does_not_flood_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: io.StringIO, number: int, where: str
) -> None:
    make_store(tmp_path / "store")

    def failing(*arguments: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    async with serving(tmp_path / "store") as running:
        client = await running.hello()
        with monkeypatch.context() as patched:
            patched.setattr(disk, where, failing)
            for _ in range(_MAILS):
                assert (await client.mail(message())).code in (451, 452)
        lines = written.getvalue().splitlines()
        assert sum("not accepted" in line for line in lines) == _MAILS
        serious = [line for line in lines if " ERROR " in line or " WARNING " in line]
        assert 1 <= len(serious) <= 4, serious
        assert all("; " in line for line in serious)  # advice
        assert not any("Traceback" in line for line in lines)
        assert (await client.mail(message())).code == 250
