"""Configuration loader: one TOML file, checked strictly, overridden by the environment and by flags.

Every section is a frozen dataclass with the documented defaults. An unknown key or a value of the wrong type is an
error that names the file, the line and the nearest valid name; all errors are reported at once. Sizes may be written
``"50 MiB"``, times ``"5 min"``. A setting ``key`` of section ``[smtp]`` is overridden by the variable
``MARKPOST_SMTP_KEY``, and that by the flag of a command.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, NewType, TypeVar

from adapter.config.locations import SettingPath, key_lines

Size = NewType("Size", int)  # octets
Seconds = NewType("Seconds", float)

SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
TIME_UNITS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*\Z")
_AT_LINE = re.compile(r" \(at line ([0-9]+), column ([0-9]+)\)\Z")
_PREFIX = "MARKPOST_"
#: Larger values are typos and would overflow later arithmetic.
_MAX_BYTES, _MAX_SECONDS = 1 << 53, 1e9

Section = TypeVar("Section")


class ConfigError(Exception):
    """Errors of the configuration, one clear line for each: the place, the error, and the correction."""

    def __init__(self, *problems: str) -> None:
        more = f" (and {len(problems) - 1} more: see markpost config check)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.problems = problems


class Origin(NamedTuple):
    """The source of a value; ``name`` is the file and line, the variable or the flag."""

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.kind == "environment" else self.name or self.kind


class CommandFlag(NamedTuple):
    """An option of the command line and its value."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Section]):
    """The settings, and the origin of each."""

    settings: Section
    origins: Mapping[SettingPath, Origin]

    def origin(self, path: SettingPath) -> Origin:
        return self.origins.get(path, Origin("default"))

    def error(self, problems: Iterable[tuple[SettingPath, str]]) -> ConfigError | None:
        """Make the error for problems of values, each with the origin of its setting; None without problems."""
        lines = [f"{_place(self.origins, path)}{'.'.join(path)}: {text}" for path, text in problems]
        return ConfigError(*lines) if lines else None


def load(kind: type[Section], path: str | None, environment: Mapping[str, str] = os.environ) -> Section:
    """Load the settings without their origins."""
    return read(kind, path, environment).settings


def read(
    kind: type[Section],
    path: str | None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[SettingPath, CommandFlag] | None = None,
) -> Loaded[Section]:
    """Load a configuration file (None: defaults only), the environment and flags into ``kind``."""
    text = "" if path is None else _text(path)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = _AT_LINE.search(str(error))
        line = f":{where[1]}" if where else ""
        raise ConfigError(f"{path}{line}: {_AT_LINE.sub('', str(error))}") from None
    origins = {key: Origin("file", f"{path}:{line}") for key, line in key_lines(text).items()}
    checker = _Checker(origins)
    _overlay_environment(kind, tree, environment, checker)
    for key, flag in (flags or {}).items():
        _set(tree, key, flag.value)
        origins[key] = Origin("flag", flag.name)
    settings = checker.section(kind, tree, ())
    if checker.problems or settings is None:
        raise ConfigError(*checker.problems)
    return Loaded(settings, origins)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def fields_of(kind: type[Any]) -> dict[str, Any]:
    """Return the settings of a section with their types."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _place(origins: Mapping[SettingPath, Origin], path: SettingPath) -> str:
    """Return the origin of a setting, or of the section that contains it, as a prefix."""
    for length in range(len(path), 0, -1):
        origin = origins.get(path[:length])
        if origin is not None:
            return f"{origin}: "
    return ""


def _set(tree: dict[str, Any], path: SettingPath, value: Any) -> None:
    section = tree.setdefault(path[0], {})
    if isinstance(section, dict):  # otherwise section() reports the type error
        section[path[1]] = value


def _overlay_environment(
    kind: type[Any], tree: dict[str, Any], environment: Mapping[str, str], checker: _Checker
) -> None:
    sections = {name: hint for name, hint in fields_of(kind).items() if dataclasses.is_dataclass(hint)}
    for variable, value in environment.items():
        if not variable.startswith(_PREFIX):
            continue
        section, _, key = variable.removeprefix(_PREFIX).lower().partition("_")
        if section not in sections:
            # MARKPOST_ROOT and others are not settings; a name close to a section is a typo.
            for near in difflib.get_close_matches(section, sections, 1, 0.8) if key else ():
                suggestion = f"{_PREFIX}{near}_{key}".upper()
                checker.problems.append(f"environment {variable}: did you mean {suggestion!r}?")
            continue
        fields = fields_of(typing.cast("type[Any]", sections[section]))
        checker.origins[section, key] = Origin("environment", variable)
        if key in fields:
            _set(tree, (section, key), _from_text(fields[key], value))
        else:
            checker.unknown((section, key), fields, f"{_PREFIX}{section}_".upper())


def _from_text(kind: Any, value: str) -> Any:
    kind = _without_none(kind)
    if kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(value.lower(), value)
    if kind in (int, float, Size, Seconds) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        return float(value) if "." in value else int(value)
    if typing.get_origin(kind) is tuple:
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(choice for choice in typing.get_args(kind) if choice is not type(None))
    return kind


class _Invalid(Exception):  # noqa: N818 - a signal inside this module
    """A value with a problem that has been recorded."""


class _Checker:
    """Converts the TOML tree to sections, and collects all problems."""

    def __init__(self, origins: dict[SettingPath, Origin]) -> None:
        self.origins = origins
        self.problems: list[str] = []

    def _report(self, path: SettingPath, text: str) -> None:
        self.problems.append(f"{_place(self.origins, path)}{text}")

    def unknown(self, path: SettingPath, valid: Iterable[str], variable: str = "") -> None:
        """Report an unknown name; ``variable`` is the prefix of the environment variables of the valid names."""
        spelled = {name: variable + name.upper() if variable else name for name in sorted(valid)}
        near = difflib.get_close_matches(path[-1], spelled, 1)
        hint = f"; did you mean {spelled[near[0]]!r}?" if near else f"; known here: {', '.join(spelled.values())}"
        self._report(path, f"unknown setting {'.'.join(path)!r}{hint}")

    def section(self, kind: type[Section], tree: Mapping[str, Any], path: SettingPath) -> Section | None:
        """Convert a section; None if it has a problem."""
        fields = fields_of(kind)
        values, is_valid = {}, True
        for key, value in tree.items():
            if key not in fields:
                self.unknown((*path, key), fields)
                is_valid = False
                continue
            try:
                values[key] = self._value(fields[key], value, (*path, key))
            except _Invalid:
                is_valid = False
        for field in dataclasses.fields(typing.cast("Any", kind)):
            if field.name not in tree and field.default is field.default_factory is dataclasses.MISSING:
                self._report((*path, field.name), f"{'.'.join((*path, field.name))} is missing")
                is_valid = False
        return kind(**values) if is_valid else None

    def _value(self, kind: Any, value: Any, path: SettingPath) -> Any:
        kind = _without_none(kind)
        origin = typing.get_origin(kind)
        if dataclasses.is_dataclass(kind):
            if isinstance(value, dict):
                section = self.section(typing.cast("type[Any]", kind), value, path)
                if section is None:
                    raise _Invalid
                return section
        elif origin is dict:
            inner = typing.get_args(kind)[1]
            if isinstance(value, dict):
                return {key: self._value(inner, item, (*path, key)) for key, item in value.items()}
        elif origin is tuple:
            inner = typing.get_args(kind)[0]
            if isinstance(value, list):
                return tuple(self._value(inner, item, path) for item in value)
        elif origin is typing.Literal:
            if value in typing.get_args(kind):
                return value
        elif kind is Size:
            return Size(int(self._amount(value, SIZE_UNITS, _MAX_BYTES, path)))
        elif kind is Seconds:
            return Seconds(self._amount(value, TIME_UNITS, _MAX_SECONDS, path))
        elif kind is float and type(value) in (int, float) and value >= 0:
            return float(value)
        elif type(value) is kind and not (kind is int and value < 0):
            return value
        self._report(path, f"{'.'.join(path)} must be {_describe(kind)}, not {value!r}")
        raise _Invalid

    def _amount(self, value: Any, units: Mapping[str, float], maximum: float, path: SettingPath) -> float:
        if type(value) in (int, float) and 0 <= value <= maximum:
            return float(value)
        match = _AMOUNT.match(value) if isinstance(value, str) else None
        factor = {unit.lower(): size for unit, size in units.items()}.get(match[2].lower()) if match else None
        amount = float(match[1]) * factor if match is not None and factor is not None else -1.0
        if not 0 <= amount <= maximum:
            self._report(path, f"{'.'.join(path)} must be a number with one of {', '.join(units)}, not {value!r}")
            raise _Invalid
        return amount


def _describe(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(kind))
    if origin is tuple:
        return "a list"
    if origin is dict or dataclasses.is_dataclass(kind):
        return "a table"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}.get(kind, str(kind))
