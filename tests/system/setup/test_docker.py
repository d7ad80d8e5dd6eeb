"""The container files: what they name is there, nothing runs as root that need not, and their steps work."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml

from adapter.config.schema import Settings
from adapter.server.store_lifecycle import max_close_seconds
from adapter.server.supervisor import _COMMIT_SECONDS
from tests.support.paths import REPOSITORY

DOCKER = REPOSITORY / "docker"


def _instructions() -> dict[str, list[tuple[str, str]]]:
    """Stage -> its instructions with their arguments; a stage starts with its FROM."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            _, _, name = rest.partition(" AS ")
            assert name, f"a stage without a name: {line}"
            stages[name] = []
        stages[name].append((word, " ".join(rest.split())))
    return stages


STAGES = _instructions()


def _lineage(stage: str) -> list[tuple[str, str]]:
    """The instructions of a stage and of those it is built on, in order."""
    parent = STAGES[stage][0][1].partition(" ")[0]
    return [*(_lineage(parent) if parent in STAGES else []), *STAGES[stage]]


def test_the_file_is_made_of_known_instructions() -> None:
    allowed = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD", "HEALTHCHECK"}
    assert {word for stage in STAGES.values() for word, _ in stage} <= allowed
    assert list(STAGES)[-1] == "mail"  # the default target


def test_what_is_copied_is_there() -> None:
    for stage in STAGES.values():
        for arguments in (rest.split() for word, rest in stage if word == "COPY"):
            if arguments[0].startswith("--from="):
                assert arguments[0].removeprefix("--from=") in STAGES
            else:
                for source in arguments[:-1]:
                    assert (REPOSITORY / source).exists(), source


def test_the_builder_gets_what_is_copied_and_nothing_else() -> None:
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    passed = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        source
        for stage in STAGES.values()
        for word, rest in stage
        if word == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    }
    assert all(any(source == entry or source.startswith(f"{entry}/") for entry in passed) for source in copied)
    assert all(any(source == entry or source.startswith(f"{entry}/") for source in copied) for entry in passed)


@pytest.mark.parametrize("stage", ["mail", "spark"])
def test_nothing_of_ours_runs_as_root(stage: str) -> None:
    lineage = _lineage(stage)
    user = [rest for word, rest in lineage if word == "USER"][-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert all(word not in ("RUN", "COPY") for word, _ in lineage[lineage.index(("USER", user)) :])


def test_the_mail_server_has_a_health_check_and_no_java() -> None:
    lineage = _lineage("mail")
    (health,) = [rest for word, rest in lineage if word == "HEALTHCHECK"]
    assert "/healthz" in health
    assert not any("openjdk" in rest for _, rest in lineage)
    assert any("openjdk-17" in rest for _, rest in _lineage("spark"))


def test_images_are_pinned_to_a_release_and_come_from_nowhere_in_particular() -> None:
    for stage in STAGES.values():
        image = stage[0][1].partition(" ")[0]
        assert image in STAGES or re.fullmatch(r"[a-z]+:[a-z0-9.]*bookworm[a-z-]*|[a-z]+:3\.11-slim-bookworm", image)
    for name in ("Dockerfile", "compose.yaml"):
        assert not re.search(r"https?://(?!127\.0\.0\.1)|\b[\w-]+\.(io|com|org|dev)/", (DOCKER / name).read_text())


def test_packages_are_installed_with_their_hashes_and_lists_do_not_stay() -> None:
    runs = [rest for stage in STAGES.values() for word, rest in stage if word == "RUN"]
    assert any("--require-hashes" in run for run in runs)
    for run in runs:
        assert "apt-get install" not in run or "rm -rf /var/lib/apt/lists/*" in run
        assert not re.search(r"pip install(?!.*(--require-hashes|--no-deps))", run)


def _compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return loaded


def test_the_composition() -> None:
    composed = _compose()
    services = composed["services"]
    assert set(services) == {"markpost", "postfix", "spark-master", "spark-worker", "repair"}
    for service in services.values():
        build = service["build"]
        assert (DOCKER / build["context"] / build["dockerfile"]).is_file()
        assert build["target"] in STAGES
        assert set(service.get("depends_on", ())) <= services.keys()
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= composed["volumes"].keys()
        assert set(service["networks"]) <= composed["networks"].keys()
    assert services["markpost"]["cap_drop"] == ["ALL"]
    grace = float(services["markpost"]["stop_grace_period"].removesuffix("s"))
    assert grace > max_close_seconds(Settings().server.drain) + _COMMIT_SECONDS  # as for systemd
    assert services["postfix"]["build"]["target"] == "postfix"
    # The store is at the same place for all who read it, and Spark is started for repair alone.
    mounts = {name: service.get("volumes", []) for name, service in services.items()}
    assert mounts["markpost"] == mounts["spark-worker"] == mounts["repair"] == ["mail:/srv/mail"]
    assert services["repair"]["environment"]["SPARK_MASTER"] == f"spark://{services['spark-master']['hostname']}:7077"
    assert all(services[name]["profiles"] == ["repair"] for name in ("spark-master", "spark-worker", "repair"))


def test_ports_networks_and_names_agree() -> None:
    services, settings = _compose()["services"], (DOCKER / "markpost.toml").read_text()
    exposed = next(rest.split() for word, rest in STAGES["mail"] if word == "EXPOSE")
    for port in services["markpost"]["ports"]:
        inside = port.partition(":")[2]
        assert inside in exposed
        assert f"0.0.0.0:{inside}" in settings
    (subnet,) = (each["subnet"] for each in _compose()["networks"]["mail"]["ipam"]["config"])
    assert subnet in settings
    assert services["postfix"]["environment"]["NETWORK"] == subnet
    assert 'host = "postfix"' in settings
    commands = {word for service in services.values() for word in service.get("command", [])}
    entry = (DOCKER / "entry").read_text()
    assert all(f"\n{command})" in entry for command in commands)


@pytest.mark.parametrize("script", ["entry", "entry-postfix", "try"])
def test_scripts_are_well_formed_and_executable(script: str) -> None:
    path = DOCKER / script
    assert os.access(path, os.X_OK)
    shell = shlex.split(path.read_text().splitlines()[0].removeprefix("#!"))[-1]
    subprocess.run([shell.rpartition("/")[2], "-n", path], check=True)


@pytest.mark.needs("bash", "curl")
def test_the_steps_work_without_containers() -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([DOCKER / "try"], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("try: all steps passed\n")
    assert ("Postfix is configured" in done.stdout) == (shutil.which("postfix") is not None and os.geteuid() == 0)
