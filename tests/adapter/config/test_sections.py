"""Sections named by the user: every setting is documented with its default; problems name the path."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from adapter.config import loader
from adapter.config.schema import HookSettings, Settings, UpstreamSettings
from adapter.server.settings import problems as settings_problems
from tests.support.paths import REPOSITORY

CONF = REPOSITORY / "conf" / "markpost.toml"


def _section(name: str) -> str:
    text = CONF.read_text()
    start = text.index(f"# [{name}]")
    return re.sub(r"^# ", "", text[start:].partition("\n\n")[0], flags=re.M)


@pytest.mark.parametrize(("name", "kind"), [("upstream.work", UpstreamSettings), ("hook.agent", HookSettings)])
def test_every_setting_is_documented_at_its_default(tmp_path: Path, name: str, kind: Any) -> None:
    text = _section(name)
    for setting in dataclasses.fields(kind):
        assert re.search(rf"^(\[{re.escape(name)}\.)?{setting.name}\b", text, re.M), setting.name
    path = tmp_path / "markpost.toml"
    path.write_text(text.partition("[upstream.work.folders]")[0])
    section, _, own = name.partition(".")
    assert getattr(loader.load(Settings, str(path), {}), section)[own] == kind()


def test_problem_names_the_path_of_its_setting() -> None:
    settings = Settings(upstream={"work": UpstreamSettings(port=0)}, hook={"a b": HookSettings()})
    paths = {".".join(path) for path, _ in settings_problems(settings)}
    assert {"upstream.work.host", "upstream.work.port", "hook.a b", "hook.a b.command"} <= paths
