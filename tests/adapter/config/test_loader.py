"""Configuration: every setting is documented with its default; errors name the line and the nearest name."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from adapter.config import loader
from adapter.config.loader import ConfigError
from adapter.config.schema import Account, Settings
from tests.support.paths import REPOSITORY

CONF = REPOSITORY / "conf" / "markpost.toml"
_SETTING = re.compile(r"^# (\w+ = .*)$", re.MULTILINE)


def _load(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> Settings:
    path = tmp_path / "markpost.toml"
    path.write_text(text)
    return loader.load(Settings, str(path), environment or {})


def test_shipped_file_equals_the_defaults(tmp_path: Path) -> None:
    assert _load(tmp_path, CONF.read_text()) == Settings()


def test_every_setting_is_documented_at_its_default(tmp_path: Path) -> None:
    text = re.sub(
        r"^# \[tls\.names.*?(?=^\[login\])|^# \[domains\.catch_all.*?(?=^\[)", "", CONF.read_text(), flags=re.M | re.S
    )
    head = text[: text.index("# Aliases: ")]
    assert _load(tmp_path, _SETTING.sub(r"\1", head)) == Settings()
    hints = typing.get_type_hints(Settings)
    for section, kind in hints.items():
        if dataclasses.is_dataclass(kind):
            block = re.search(rf"^\[{section}\]\n(.*?)(?=^\[|\Z)", CONF.read_text(), re.M | re.S)
            assert block is not None, section
            for setting in dataclasses.fields(typing.cast("Any", kind)):
                assert re.search(rf"^# (\[{section}\.)?{setting.name}\b", block[1], re.M), f"{section}.{setting.name}"
    account = CONF.read_text().partition("# [account.")[2]
    assert all(f"# {setting.name} = " in account for setting in dataclasses.fields(Account))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[smtp]\nline_end = 'keep'\n",
            r"markpost.toml:2: unknown setting 'smtp.line_end'; did you mean 'line_ends'\?",
        ),
        ("\n\n[smpt]\n", r"markpost.toml:3: unknown setting 'smpt'; did you mean 'smtp'\?"),
        ("[limits]\nrecipients = 'many'\n", r"markpost.toml:2: limits.recipients must be a whole number, not 'many'"),
        (
            "[limits]\nidle = '5 fortnights'\n",
            r"markpost.toml:2: limits.idle must be a number with one of ms, s, min, h, d",
        ),
        (
            "[smtp]\nline_ends = 'drop'\n",
            r"markpost.toml:2: smtp.line_ends must be one of 'reject', 'normalise', 'keep'",
        ),
        ("[listen]\nimap = '127.0.0.1:143'\n", r"markpost.toml:2: listen.imap must be a list"),
        ("[imap]\ncompress = 1\n", r"markpost.toml:2: imap.compress must be true or false"),
        ("[limits]\nmessage_size = inf\n", r"markpost.toml:2: limits.message_size must be a number with one of B, "),
        ("[limits]\nmessage_size = '%s GiB'\n" % ("9" * 400), r"markpost.toml:2: limits.message_size must be a number"),
        ("[limits]\nidle = nan\n", r"markpost.toml:2: limits.idle must be a number with one of ms, "),
        ("[limits]\nidle = '1000000 d'\n", r"markpost.toml:2: limits.idle must be a number with one of ms, "),
        ("[imap\n", r"markpost.toml:1: "),
    ],
)
def test_error_names_file_line_and_nearest_name(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        _load(tmp_path, text)


def test_sizes_and_times_have_units(tmp_path: Path) -> None:
    loaded = _load(tmp_path, "[limits]\nmessage_size = '10 MiB'\nidle = '5 min'\n")
    assert loaded.limits.message_size == 10 << 20
    assert loaded.limits.idle == 300.0


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    environment = {
        "MARKPOST_LIMITS_RECIPIENTS": "7",
        "MARKPOST_LIMITS_IDLE": "2 min",
        "MARKPOST_IMAP_COMPRESS": "no",
        "MARKPOST_LISTEN_IMAP": "127.0.0.1:1, 127.0.0.1:2",
    }
    loaded = _load(tmp_path, "[limits]\nrecipients = 9\n", environment)
    assert loaded.limits.recipients == 7
    assert loaded.limits.idle == 120.0
    assert loaded.imap.compress is False
    assert loaded.listen.imap == ("127.0.0.1:1", "127.0.0.1:2")
    assert _load(tmp_path, "", {"MARKPOST_ROOT": "x", "MARKPOST_MESSAGE_ID": "x"}) == Settings()  # not settings
    with pytest.raises(ConfigError, match="environment MARKPOST_LIMIT_IDLE: did you mean 'MARKPOST_LIMITS_IDLE'"):
        _load(tmp_path, "", {"MARKPOST_LIMIT_IDLE": "1"})


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        loader.load(Settings, str(tmp_path / "none.toml"), {})
