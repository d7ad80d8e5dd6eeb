"""Directories that never follow symbolic links, and the primitives that change files."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from adapter.store import disk
from adapter.store.disk import Directories


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Directories]:
    (tmp_path / "root").mkdir()
    with closing(Directories(str(tmp_path / "root"))) as opened:
        yield opened


@pytest.mark.parametrize("planted", ["a", "a/b", "a/b/c"])
@pytest.mark.parametrize("create", [False, True])
def test_directories_are_not_opened_through_a_symbolic_link(
    directories: Directories, planted: str, create: bool
) -> None:
    outside = Path(directories.root).parent / "outside"
    (outside / "b" / "c").mkdir(parents=True)
    (outside / "c").mkdir()
    place = Path(directories.root, planted)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(outside)
    for use in (directories.open, directories.stable):
        with pytest.raises(NotADirectoryError), use(("a", "b", "c"), create=create):
            pytest.fail("followed")
    assert sorted(path.name for path in outside.rglob("*")) == ["b", "c", "c"]


def test_files_are_not_opened_through_a_symbolic_link(directories: Directories, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    Path(directories.root, "link").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        disk.read_file(directories.root_fd, "link")
    with pytest.raises(OSError, match="symbolic links"):
        disk.open_log(directories.root_fd, "link", create=True)
    with pytest.raises(FileExistsError):
        disk.write_new(directories.root_fd, "link", b"x")
    disk.replace_file(directories.root_fd, "link", b"mine")
    assert secret.read_text() == "secret"
    assert Path(directories.root, "link").read_bytes() == b"mine"


def test_pipe_in_place_of_a_file_does_not_block_readers(directories: Directories) -> None:
    os.mkfifo(Path(directories.root, "pipe"))
    assert disk.read_file(directories.root_fd, "pipe") == b""
    os.close(disk.open_read(directories.root_fd, "pipe"))


def test_directory_is_created_with_its_parents(directories: Directories) -> None:
    with pytest.raises(FileNotFoundError), directories.open(("a", "b")):
        pytest.fail("opened a missing directory")
    with directories.open(("a", "b"), create=True) as fd:
        disk.write_new(fd, "file", b"x")
    assert Path(directories.root, "a", "b", "file").read_bytes() == b"x"
    assert Path(directories.root, "a").stat().st_mode & 0o777 == 0o700
    assert Path(directories.root, "a", "b", "file").stat().st_mode & 0o777 == 0o444


def test_number_of_cached_descriptors_is_limited(directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Directories, "_KEEP", 4)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        with directories.stable((str(number),), create=True):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    for number in range(20):
        with directories.stable((str(number),)) as fd:
            assert os.listdir(fd) == []


def test_write_new_refuses_an_existing_file(directories: Directories) -> None:
    disk.write_new(directories.root_fd, "file", b"one")
    with pytest.raises(FileExistsError):
        disk.write_new(directories.root_fd, "file", b"two")
    assert disk.read_file(directories.root_fd, "file") == b"one"


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 20])
def test_a_file_is_read_whole(directories: Directories, size: int) -> None:
    data = os.urandom(size)
    disk.write_new(directories.root_fd, "file", data)
    assert disk.read_file(directories.root_fd, "file") == data


def test_a_short_write_is_continued(directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def short(fd: int, data: bytes | memoryview) -> int:
        return write(fd, data[:7])

    monkeypatch.setattr(os, "write", short)
    disk.write_new(directories.root_fd, "file", b"0123456789" * 10)
    assert disk.read_file(directories.root_fd, "file") == b"0123456789" * 10


def test_file_replaced_by_several_threads_is_never_torn(directories: Directories) -> None:
    disk.replace_file(directories.root_fd, "file", b"0" * 1000)
    failures: list[BaseException] = []

    def replace(digit: bytes) -> None:
        try:
            for _ in range(60):
                disk.replace_file(directories.root_fd, "file", digit * 1000)
                data = disk.read_file(directories.root_fd, "file")
                assert len(data) == 1000
                assert len(set(data)) == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=replace, args=(b"%d" % number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(directories.root) == ["file"]


def test_write_at_completes_short_writes(directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev

    def write_short(fd: int, pieces: list[bytes], offset: int) -> int:
        assert whole(fd, pieces, offset) > 0  # the number of pieces is within the system's limit
        os.ftruncate(fd, offset)
        return os.pwrite(fd, b"".join(pieces)[:accepted_bytes], offset)

    monkeypatch.setattr(os, "pwritev", write_short)
    for accepted_bytes, spaces in ((1, 300), (9, 300), (10, 300), (11, 300), (70_000, 150_000), (200_000, 150_000)):
        fd = disk.open_log(directories.root_fd, f"log-{accepted_bytes}", create=True)
        disk.write_at(fd, [b"before"], 0)
        disk.write_at(fd, [b"01234", memoryview(b"56789"), *[b"x"] * 1500], 6, spaces=spaces)
        os.close(fd)
        data = Path(directories.root, f"log-{accepted_bytes}").read_bytes()
        assert data == b"before0123456789" + b"x" * 1500 + b" " * spaces


def test_every_primitive_reports_its_step(directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(disk, "on_step", lambda action, fd, name: steps.append(action))
    root = directories.root_fd
    disk.write_new(root, "a", b"x", sync=True)
    disk.rename(root, "a", root, "b")
    disk.link(root, "b", root, "c")
    disk.symlink(root, "d", "c")
    disk.unlink(root, "d")
    disk.make_directory(root, "e")
    disk.change_mode(root, "e", 0o500)
    assert os.stat("e", dir_fd=root).st_mode & 0o777 == 0o500
    disk.remove_directory(root, "e")
    fd = disk.open_log(root, "f", create=True)
    disk.write_at(fd, [b"x"], 0)
    disk.truncate(fd, 0)
    disk.sync_data(fd)
    os.close(fd)
    disk.sync_directory(root)
    disk.sync_file_system(root)
    assert steps == [
        "create", "fsync", "rename", "link", "symlink", "unlink", "mkdir", "chmod", "rmdir", "create", "append",
        "truncate", "fsync", "fsync-directory", "syncfs",
    ]  # fmt: skip


def test_boot_id_is_constant_within_a_boot() -> None:
    assert disk.boot_id() == disk.boot_id() != ""


def _open_below(root: str) -> list[str]:
    """Return the targets of open descriptors below a directory; other threads may close theirs at any time."""
    targets: list[str] = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(target for target in targets if target.startswith(root))


def test_a_directory_is_opened_once_while_it_is_kept_open(directories: Directories) -> None:
    before = _open_below(directories.root)
    with directories.open(("a", "b"), create=True) as fd, directories.open(("a", "b")) as other:
        assert fd != other
    with directories.keeping_open():
        with directories.open(("a", "b")) as fd:
            pass
        with directories.open(("a", "b")) as again:
            assert again == fd
        for number in range(100):  # up to a limit
            with directories.open((f"c{number}",), create=True):
                pass
        assert len(_open_below(directories.root)) == len(before) + Directories._KEEP_A_WHILE
        elsewhere: list[int] = []

        def open_in_thread() -> None:
            with directories.open(("a", "b")) as thread_fd:
                elsewhere.append(thread_fd)

        thread = threading.Thread(target=open_in_thread)
        thread.start()
        thread.join()
        assert elsewhere != [fd]
    assert _open_below(directories.root) == before
    with pytest.raises(FileNotFoundError), directories.keeping_open(), directories.open(("nowhere",)):
        pass
    assert _open_below(directories.root) == before
