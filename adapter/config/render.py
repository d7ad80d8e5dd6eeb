"""Render the effective settings as TOML, each with its origin.

Invariant: every possible secret is masked; only a masked setting could not be loaded back.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from adapter.config.loader import SIZE_UNITS, TIME_UNITS, Loaded, Seconds, Size, fields_of
from adapter.config.locations import SettingPath

MASK = "********"
_SECRET = re.compile(r"(password|secret|token)\Z")
_IN_URL = re.compile(r"(?<=://)[^/@\s]*(?=@)|(?<=\?).+")  # user and password; a query may contain a key
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_OCTAL = "socket_mode"


def render(loaded: Loaded[Any]) -> str:
    """Render the whole file, with tables last in every section."""
    return "\n".join(_section(loaded, loaded.settings, ())).strip() + "\n"


def _section(loaded: Loaded[Any], section: Any, path: SettingPath) -> Iterator[str]:
    kinds = fields_of(type(section))
    tables: list[tuple[str, Any]] = []
    lines: list[str] = []
    for name, kind in kinds.items():
        value = getattr(section, name)
        if dataclasses.is_dataclass(value) or isinstance(value, Mapping):
            tables.append((name, value))
        elif value is None:
            lines.append(f"# {name} is not set")
        else:
            lines.append(f"{name} = {_value(name, kind, value)}  # {loaded.origin((*path, name))}")
    if lines:
        yield from (["", _header(path), *lines] if path else lines)
    for name, value in tables:
        yield from _table(loaded, value, (*path, name))


def _table(loaded: Loaded[Any], value: Any, path: SettingPath) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        yield from _section(loaded, value, path)
        return
    scalars = {key: item for key, item in value.items() if not dataclasses.is_dataclass(item)}
    if scalars:
        yield from ("", _header(path))
        for key, item in scalars.items():
            yield f"{_key(key)} = {_value(key, None, item)}  # {loaded.origin((*path, key))}"
    for key, item in value.items():
        if key not in scalars:
            yield from _section(loaded, item, (*path, key))


def _header(path: SettingPath) -> str:
    return f"[{'.'.join(map(_key, path))}]"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(name: str, kind: Any, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if value and _SECRET.search(name):
            return _text(MASK)
        return _text(_IN_URL.sub(MASK, value) if "://" in value else value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(name, None, item) for item in value) + "]"
    if name == _OCTAL:
        return f"{value:#o}"
    if kind is Size:
        return _amount(value, {unit: SIZE_UNITS[unit] for unit in ("GiB", "MiB", "KiB")})
    if kind is Seconds:
        return _amount(value, {unit: TIME_UNITS[unit] for unit in ("d", "h", "min", "s")})
    return str(value)


def _amount(value: float, units: Mapping[str, float]) -> str:
    """Format an amount in the largest unit that gives a whole number."""
    for unit, size in units.items():
        if value and value % size == 0:
            return f'"{int(value / size)} {unit}"'
    return str(int(value) if value == int(value) else value)


def _text(value: str) -> str:
    """Quote a string as TOML: as in JSON, except for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
