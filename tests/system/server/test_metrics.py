"""The monitoring pages: readiness, health, and metrics in the Prometheus format."""

from __future__ import annotations

import http.client
import imaplib
import re
import smtplib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.maintenance import gate
from adapter.observability import metrics, prometheus
from adapter.observability.metrics import Sample
from adapter.server.metrics_shm import SharedMetrics
from tests.support.messages import message
from tests.support.processes.serve import Served, served
from tests.support.smtpd import PASSWORD, make_store
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE, wait_until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

_SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)\Z')
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\"n])*)"')


def parse(text: str) -> tuple[Samples, dict[str, str]]:
    """Return samples and types of an exposition, after checking every rule of the format."""
    assert text.endswith("\n")
    samples: Samples = {}
    types: dict[str, str] = {}
    helped: set[str] = set()
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            assert current not in helped  # the lines of a family are contiguous
            helped.add(current)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current
            types[name] = kind
        else:
            match = _SAMPLE.match(line)
            assert match, line
            name, labels, value = match.groups()
            assert re.fullmatch(rf"{current}(_bucket|_sum|_count)?" if types[current] == "histogram" else current, name)
            key = name, frozenset(_LABEL.findall(labels or ""))
            assert key not in samples, line
            samples[key] = float(value)
    for name in [name for name, kind in types.items() if kind == "histogram"]:
        for (sample, labels), count in samples.items():
            if sample == f"{name}_count":
                buckets = {
                    float(dict(bucket_labels)["le"]): value
                    for (bucket, bucket_labels), value in samples.items()
                    if bucket == f"{name}_bucket" and {pair for pair in bucket_labels if pair[0] != "le"} == labels
                }
                ordered = [buckets[bound] for bound in sorted(buckets)]
                assert ordered == sorted(ordered)
                assert ordered[-1] == buckets[float("inf")] == count
                assert (f"{name}_sum", labels) in samples
    return samples, types


def total(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum over all workers."""
    return sum(
        value for (family, pairs), value in samples.items() if family == name and labels.items() <= dict(pairs).items()
    )


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("metrics") / "store"
    make_store(place)
    return place


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two workers"])
def server(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("served")
    config = directory / "conf.toml"
    config.write_text(f'[server]\nworkers = {request.param}\n[metrics]\nlisten = "127.0.0.1:0"\n')
    kinds = [option for kind in ("smtp", "imap", "lmtp") for option in (f"--{kind}", "127.0.0.1:0")]
    with served(root, "--config", str(config), *kinds, log=directory / "log") as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in (directory / "log").read_text()


def _samples(server: Served) -> Samples:
    status, text = get(server.ports["metrics"], "/metrics")
    assert status == 200
    return parse(text)[0]


def test_events_are_counted(server: Served) -> None:
    before = _samples(server)
    with smtplib.SMTP("127.0.0.1", server.ports["smtp"], timeout=PATIENCE) as client:
        client.sendmail("x@y.test", [ADA], message())
        client.docmd("NONSENSE secret")
    session = imaplib.IMAP4("127.0.0.1", server.ports["imap"])
    with pytest.raises(imaplib.IMAP4.error):
        session.login(ADA, "wrong")
    session.login(ADA, PASSWORD)
    session.select("INBOX")
    session.fetch("1:*", "(FLAGS)")
    # Each worker publishes in its own time: wait for the samples of each session's last command.
    for last in ({"protocol": "smtp", "command": "unknown"}, {"protocol": "imap", "command": "FETCH"}):
        count = total(before, "markpost_commands_total", **last)
        wait_until(lambda last=last, n=count: total(_samples(server), "markpost_commands_total", **last) > n)  # type: ignore[misc]
    applied = total(before, "markpost_applied_sequence")
    wait_until(lambda: total(_samples(server), "markpost_applied_sequence") > applied)
    after = _samples(server)
    session.logout()

    def grown(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    assert grown("markpost_connections_total", listener="smtp") == 1
    assert grown("markpost_connections_total", listener="imap") == 1
    assert total(after, "markpost_connections") >= 1
    assert grown("markpost_deliveries_total", service="smtp", outcome="accepted") == 1
    assert grown("markpost_delivered_octets_total") > 100
    assert grown("markpost_commands_total", protocol="smtp", command="unknown", status="5xx") == 1
    assert grown("markpost_commands_total", protocol="imap", command="LOGIN", status="NO") == 1
    assert grown("markpost_command_seconds_count", protocol="imap", command="SELECT") == 1
    assert grown("markpost_logins_total", outcome="success") == 1
    assert grown("markpost_logins_total", outcome="refused") == 1
    assert grown("markpost_commit_operations_count") >= 1
    assert grown("markpost_lock_wait_seconds_count") >= 1
    for name in ("journal_bytes", "index_bytes", "journal_segments", "free_bytes"):
        assert [value for (family, _), value in after.items() if family == f"markpost_{name}" and value > 0], name
    assert total(after, "markpost_queue_recipients", state="due") == 0
    assert total(after, "process_resident_memory_bytes") > 1 << 20
    assert abs(total(after, "process_start_time_seconds") / _workers(after) - time.time()) < 120


def _workers(samples: Samples) -> int:
    return len({dict(labels)["worker"] for name, labels in samples if name == "process_open_fds"})


def test_every_worker_has_its_own_samples(server: Served) -> None:
    workers = 2 if "workers = 2" in (server.log.parent / "conf.toml").read_text() else 1
    wait_until(lambda: _workers(_samples(server)) == workers)


@pytest.mark.setting("metrics.listen")
def test_monitoring_pages_respond_to_get_and_head_only(server: Served) -> None:
    port = server.ports["metrics"]
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz?verbose=1") == (200, "ready\n")
    assert get(port, "/readyz", "HEAD") == (200, "")
    assert get(port, "/")[0] == get(port, "/../etc/passwd")[0] == 404
    assert get(port, "/metrics", "POST")[0] == 405
    for nonsense, answer in ((b"hello\r\n\r\n", b"400"), (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, b"431")):
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.sendall(nonsense)
            assert client.recv(100).split()[1] == answer


def test_server_in_maintenance_is_healthy_but_not_ready(server: Served, root: Path) -> None:
    port = server.ports["metrics"]
    gate.turn_on(str(root), reason="test", deadline=PATIENCE)
    try:
        for _ in range(4):
            assert get(port, "/readyz") == (503, "offline for maintenance\n")
        assert get(port, "/healthz")[0] == 200
        wait_until(lambda: total(_samples(server), "markpost_offline") == _workers(_samples(server)))
    finally:
        gate.turn_off(str(root))
    wait_until(lambda: [get(port, "/readyz")[0] for _ in range(4)] == [200] * 4)


def test_draining_server_is_not_ready(root: Path, tmp_path: Path) -> None:
    (tmp_path / "conf.toml").write_text('[metrics]\nlisten = "127.0.0.1:0"\n')
    arguments = ("--config", str(tmp_path / "conf.toml"), "--smtp", "127.0.0.1:0")
    with served(root, *arguments, log=tmp_path / "log") as server:
        client = socket.create_connection(("127.0.0.1", server.ports["smtp"]))
        client.sendall(b"HELO c\r\nMAIL FROM:<x@y.test>\r\n")
        with client.makefile("rb") as reader:
            assert [reader.readline()[:3] for _ in range(3)] == [b"220", b"250", b"250"]
        server.process.terminate()
        wait_until(lambda: get(server.ports["metrics"], "/readyz") == (503, "draining\n"))
        assert get(server.ports["metrics"], "/healthz")[0] == 200
        client.sendall(b"QUIT\r\n")
        assert server.process.wait(PATIENCE) == 0
        client.close()


def test_labels_are_escaped_and_store_samples_come_once() -> None:
    shared = SharedMetrics(3)
    odd = 'a"b\\c\nd'
    for number in (0, 2):
        shared.number = number
        shared.publish(
            [
                Sample(metrics.CONNECTIONS.name, (odd,), 2.5 + number),
                Sample(metrics.BATCH.name, (), 7.0, (1, 2, 0, 0, 0, 0, 0, 0, 0, 1)),
                Sample(metrics.INDEX_BYTES.name, (), 100.0 + number),
            ]
        )
    samples, types = parse(prometheus.render(shared.read()))
    assert types["markpost_commit_operations"] == "histogram"
    assert total(samples, "markpost_connections_total", worker="2") == 4.5
    assert total(samples, "markpost_commit_operations_bucket", worker="0", le="2") == 3
    assert total(samples, "markpost_commit_operations_count") == 8
    assert total(samples, "markpost_index_bytes") == 102.0  # once, the latest
    shared.clear(2)
    assert total(parse(prometheus.render(shared.read()))[0], "markpost_index_bytes") == 100.0
    shared.publish([Sample(metrics.CONNECTIONS.name, ("x" * (300 << 10),), 1.0)])  # too large: dropped
    parse(prometheus.render(shared.read()))
