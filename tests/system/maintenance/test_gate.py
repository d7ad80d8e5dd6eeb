"""The gate: mail goes offline reliably, and comes back after any failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest

from adapter.maintenance import gate
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from protocol.errors import MailError, Reason
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def root(tmp_path: Path) -> str:
    where = str(tmp_path / "mail")
    create_store(where)
    with Transport.open(where) as transport:
        transport.run(op.Register("ada@example.test"))
    return where


def _refused(root: str) -> MailError:
    with pytest.raises(MailError) as caught:
        Transport.open(root)
    assert caught.value.reason is Reason.MAINTENANCE
    return caught.value


def test_store_cannot_be_opened_while_the_gate_is_closed(root: str) -> None:
    with gate.offline(root, reason="a test"):
        assert "a test" in _refused(root).detail
    Transport.open(root).close()


def test_gate_waits_for_an_open_store_and_names_its_holder(root: str) -> None:
    with Transport.open(root) as transport:
        with (
            pytest.raises(gate.NotOffline, match=f"process {os.getpid()} "),
            gate.offline(root, reason="x", deadline=0.2),
        ):
            raise AssertionError("took the lock although the store is open")
        transport.run(op.Subscribe("ada@example.test", "Elsewhere"))  # the open store still works
    with gate.offline(root, reason="x", deadline=0.2):
        pass


def test_gate_stays_closed_if_the_marker_is_removed_by_hand(root: str) -> None:
    with gate.offline(root, reason="x"):
        os.unlink(f"{root}/maintenance/offline")
        _refused(root)


def test_interrupted_wait_restores_the_previous_state(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with Transport.open(root):
        monkeypatch.setattr(time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gate.turn_on(root, reason="disks")
    assert gate.status(root)[0] is None


def test_maintenance_lasts_until_it_is_turned_off(root: str) -> None:
    marker = gate.turn_on(root, reason="disks", until="noon")
    assert marker.lasting
    assert "disks" in _refused(root).detail
    with gate.offline(root, reason="repair"):
        pass
    current, holders = gate.status(root)
    assert current is not None
    assert current.why == "disks"
    assert holders == []
    assert gate.turn_off(root)
    assert not gate.turn_off(root)
    Transport.open(root).close()


def test_maintenance_turned_on_during_a_repair_outlasts_it(root: str) -> None:
    with ThreadPoolExecutor(1) as aside:
        with gate.offline(root, reason="repair"):
            with pytest.raises(gate.NotOffline):
                gate.turn_on(root, reason="too late", deadline=0.2)
            assert "repair" in str(gate.status(root)[0]), "the marker of the repair"
            waiting = aside.submit(gate.turn_on, root, reason="disks", deadline=PATIENCE)
            wait_until(lambda: "disks" in str(gate.status(root)[0]))
        assert waiting.result(PATIENCE).why == "disks"
    assert "disks" in _refused(root).detail, "maintenance on reported that mail is offline"
    assert gate.turn_off(root)


def test_two_repairs_run_one_after_the_other(root: str) -> None:
    with ThreadPoolExecutor(1) as aside, ExitStack() as second:
        with gate.offline(root, reason="first"):
            waiting = aside.submit(second.enter_context, gate.offline(root, reason="second", deadline=PATIENCE))
            wait_until(lambda: "second" in str(gate.status(root)[0]))
        waiting.result(PATIENCE)
        assert "second" in _refused(root).detail, "the marker of the second repair is in place"
    assert gate.status(root)[0] is None


def test_mail_comes_back_after_the_gate_is_killed(root: str) -> None:
    script = (
        "import sys, time\nfrom adapter.maintenance import gate\n"
        "with gate.offline(sys.argv[1], reason='dies'):\n    print('closed', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, root], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "closed\n"
        _refused(root)
        process.send_signal(signal.SIGKILL)
    assert os.path.exists(f"{root}/maintenance/offline")
    Transport.open(root).close()
    assert gate.status(root)[0] is None


def _sign_with(root: str, pid: int) -> None:
    marker = Path(root, "maintenance", "offline")
    marker.write_bytes(orjson.dumps({**orjson.loads(marker.read_bytes()), "pid": pid}))


def test_marker_does_not_depend_on_a_process_id(root: str) -> None:
    """In another container the process ID belongs to another process or to none."""
    with gate.offline(root, reason="from elsewhere"):
        _sign_with(root, 2**30)
        assert "from elsewhere" in str(gate.status(root)[0])
        left = Path(root, "maintenance", "offline").read_bytes()
    Path(root, "maintenance", "offline").write_bytes(left)
    _sign_with(root, os.getpid())
    assert gate.status(root)[0] is None
    Transport.open(root).close()


def test_running_server_releases_the_store_and_returns(root: str) -> None:
    command = [sys.executable, "-m", "adapter.cli", "serve", "--root", root, "--lmtp", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            while server.stdout.readline() not in ("ready\n", ""):
                pass
            with gate.offline(root, reason="x", deadline=PATIENCE):
                assert server.poll() is None
            wait_until(lambda: gate.status(root)[1])  # the server has opened the store again
        finally:
            server.terminate()


def test_unreadable_marker_keeps_mail_offline(root: str) -> None:
    Path(root, "maintenance", "offline").write_text("not JSON")
    assert "not JSON" in _refused(root).detail
