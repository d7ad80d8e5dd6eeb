"""The configuration: one TOML file, checked strictly, overridden by the environment and by flags.

Every section is a frozen dataclass whose defaults are the documented ones. A key that does not exist or a value of the
wrong kind is an error that names the file, the line and the nearest right name. Sizes may be written ``"50 MiB"``,
times ``"5 min"``. A setting ``key`` of section ``[smtp]`` is overridden by the variable ``MARKPOST_SMTP_KEY``.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Any, NewType, TypeVar

Size = NewType("Size", int)  # octets
Seconds = NewType("Seconds", float)

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
_TIMES = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*\Z")

Section = TypeVar("Section")


class ConfigError(Exception):
    """One clear line: where, what, and what would be right."""


class _Source:
    """A TOML text that can tell on which line a key stands."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._lines = text.splitlines()

    def at(self, path: tuple[str, ...]) -> str:
        table: tuple[str, ...] = ()
        for number, line in enumerate(self._lines, 1):
            if header := re.match(r"\s*\[+\s*(.+?)\s*\]+\s*(?:#.*)?\Z", line):
                table = tuple(part.strip().strip("\"'") for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.]+', header[1]))
                if table == path:
                    return f"{self.name}:{number}"
            elif (key := re.match(r"\s*[\"']?([^\"'=]+?)[\"']?\s*=", line)) and (*table, key[1]) == path:
                return f"{self.name}:{number}"
        return self.name


def load(kind: type[Section], path: str | None, environment: Mapping[str, str] = os.environ) -> Section:
    """Read a configuration file (or none: all defaults) and the environment into ``kind``."""
    text, name = "", "defaults"
    if path is not None:
        name = path
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from None
    source = _Source(name, text)
    _overlay_environment(kind, tree, environment)
    return _section(kind, tree, (), source)


def _fields(kind: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _overlay_environment(kind: type[Any], tree: dict[str, Any], environment: Mapping[str, str]) -> None:
    for section, hint in _fields(kind).items():
        if not dataclasses.is_dataclass(hint):
            continue
        for key, wanted in _fields(typing.cast("type[Any]", hint)).items():
            value = environment.get(f"MARKPOST_{section}_{key}".upper())
            if value is not None:
                tree.setdefault(section, {})[key] = _from_text(wanted, value)


def _from_text(wanted: Any, value: str) -> Any:
    if wanted is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(value.lower(), value)
    if wanted in (int, float) and re.fullmatch(r"-?[0-9.]+", value):
        return wanted(value)
    if typing.get_origin(wanted) is tuple:
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def _section(kind: type[Section], tree: Mapping[str, Any], path: tuple[str, ...], source: _Source) -> Section:
    known = _fields(kind)
    values = {}
    for key, value in tree.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(sorted(known))}"
            raise ConfigError(f"{source.at((*path, key))}: unknown setting {'.'.join((*path, key))!r}{hint}")
        values[key] = _value(known[key], value, (*path, key), source)
    return kind(**values)


def _value(wanted: Any, value: Any, path: tuple[str, ...], source: _Source) -> Any:
    origin = typing.get_origin(wanted)
    if origin in (typing.Union, types.UnionType):
        wanted = next(choice for choice in typing.get_args(wanted) if choice is not type(None))
        origin = typing.get_origin(wanted)
    if dataclasses.is_dataclass(wanted):
        if isinstance(value, dict):
            return _section(typing.cast("type[Any]", wanted), value, path, source)
    elif origin is dict:
        inner = typing.get_args(wanted)[1]
        if isinstance(value, dict):
            return {key: _value(inner, item, (*path, key), source) for key, item in value.items()}
    elif origin is tuple:
        inner = typing.get_args(wanted)[0]
        if isinstance(value, list):
            return tuple(_value(inner, item, path, source) for item in value)
    elif origin is typing.Literal:
        if value in typing.get_args(wanted):
            return value
    elif wanted is Size:
        return Size(int(_amount(value, _UNITS, path, source)))
    elif wanted is Seconds:
        return Seconds(_amount(value, _TIMES, path, source))
    elif wanted is float and type(value) in (int, float):
        return float(value)
    elif type(value) is wanted:
        return value
    raise ConfigError(f"{source.at(path)}: {'.'.join(path)} must be {_describe(wanted)}, not {value!r}")


def _amount(value: Any, units: Mapping[str, float], path: tuple[str, ...], source: _Source) -> float:
    if type(value) in (int, float) and value >= 0:
        return float(value)
    match = _AMOUNT.match(value) if isinstance(value, str) else None
    factor = {unit.lower(): size for unit, size in units.items()}.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ConfigError(
            f"{source.at(path)}: {'.'.join(path)} must be a number with one of {', '.join(units)}, not {value!r}"
        )
    return float(match[1]) * factor


def _describe(wanted: Any) -> str:
    origin = typing.get_origin(wanted)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(wanted))
    if origin is tuple:
        return "a list"
    if origin is dict or dataclasses.is_dataclass(wanted):
        return "a table"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}.get(wanted, str(wanted))
