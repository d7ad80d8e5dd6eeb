"""The configuration: one TOML file, checked strictly, overridden by the environment and by flags.

Every section is a frozen dataclass whose defaults are the documented ones. A key that does not exist or a value of the
wrong kind is an error that names the file, the line and the nearest right name; all of them are told at once. Sizes may
be written ``"50 MiB"``, times ``"5 min"``. A setting ``key`` of section ``[smtp]`` is overridden by the variable
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

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
TIMES = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*\Z")
_AT_LINE = re.compile(r" \(at line ([0-9]+), column ([0-9]+)\)\Z")
_PREFIX = "MARKPOST_"
#: What is more is a mistake, and trouble for whoever computes with it.
_MOST_OCTETS, _MOST_SECONDS = 1 << 53, 1e9

Section = TypeVar("Section")


class ConfigError(Exception):
    """What is wrong, one clear line for each: where, what, and what would be right."""

    def __init__(self, *problems: str) -> None:
        more = f" (and {len(problems) - 1} more: see markpost config check)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.problems = problems


class Origin(NamedTuple):
    """Where a value comes from; ``name`` is the file and line, the variable or the flag."""

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.kind == "environment" else self.name or self.kind


class Flag(NamedTuple):
    """An option of the command line and the value it was given."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Section]):
    """The settings, and where each of them comes from."""

    settings: Section
    origins: Mapping[SettingPath, Origin]

    def origin(self, path: SettingPath) -> Origin:
        return self.origins.get(path, Origin("default"))

    def error(self, problems: Iterable[tuple[SettingPath, str]]) -> ConfigError | None:
        """Troubles with values, found later, told with the place each value comes from."""
        lines = [f"{_place(self.origins, path)}{'.'.join(path)}: {text}" for path, text in problems]
        return ConfigError(*lines) if lines else None


def load(kind: type[Section], path: str | None, environment: Mapping[str, str] = os.environ) -> Section:
    """The settings alone."""
    return read(kind, path, environment).settings


def read(
    kind: type[Section],
    path: str | None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[SettingPath, Flag] | None = None,
) -> Loaded[Section]:
    """Read a configuration file (or none: all defaults), the environment and flags into ``kind``."""
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
        raise ConfigError(f"{path}: this is not UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def fields_of(kind: type[Any]) -> dict[str, Any]:
    """The settings of a section with their types."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _place(origins: Mapping[SettingPath, Origin], path: SettingPath) -> str:
    """Where the nearest thing stands that the file, the environment or a flag says about it."""
    for length in range(len(path), 0, -1):
        origin = origins.get(path[:length])
        if origin is not None:
            return f"{origin}: "
    return ""


def _set(tree: dict[str, Any], path: SettingPath, value: Any) -> None:
    section = tree.setdefault(path[0], {})
    if isinstance(section, dict):  # else it is told as the mistake it is
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
            # MARKPOST_ROOT and others are no settings; what nearly is one is a slip.
            for near in difflib.get_close_matches(section, sections, 1, 0.8) if key else ():
                right = f"{_PREFIX}{near}_{key}".upper()
                checker.problems.append(f"environment {variable}: did you mean {right!r}?")
            continue
        known = fields_of(typing.cast("type[Any]", sections[section]))
        checker.origins[section, key] = Origin("environment", variable)
        if key in known:
            _set(tree, (section, key), _from_text(known[key], value))
        else:
            checker.unknown((section, key), known, f"{_PREFIX}{section}_".upper())


def _from_text(wanted: Any, value: str) -> Any:
    wanted = _without_none(wanted)
    if wanted is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(value.lower(), value)
    if wanted in (int, float, Size, Seconds) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        return float(value) if "." in value else int(value)
    if typing.get_origin(wanted) is tuple:
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def _without_none(wanted: Any) -> Any:
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return next(choice for choice in typing.get_args(wanted) if choice is not type(None))
    return wanted


class _Invalid(Exception):  # noqa: N818 - a signal inside this module
    """A value that has been complained about."""


class _Checker:
    """Turns a tree into sections and collects what is wrong with it."""

    def __init__(self, origins: dict[SettingPath, Origin]) -> None:
        self.origins = origins
        self.problems: list[str] = []

    def _complain(self, path: SettingPath, text: str) -> None:
        self.problems.append(f"{_place(self.origins, path)}{text}")

    def unknown(self, path: SettingPath, known: Iterable[str], variable: str = "") -> None:
        """``variable``: how names of environment variables for these begin."""
        spelled = {name: variable + name.upper() if variable else name for name in sorted(known)}
        near = difflib.get_close_matches(path[-1], spelled, 1)
        hint = f"; did you mean {spelled[near[0]]!r}?" if near else f"; known here: {', '.join(spelled.values())}"
        self._complain(path, f"unknown setting {'.'.join(path)!r}{hint}")

    def section(self, kind: type[Section], tree: Mapping[str, Any], path: SettingPath) -> Section | None:
        """None: something in it is wrong."""
        known = fields_of(kind)
        values, right = {}, True
        for key, value in tree.items():
            if key not in known:
                self.unknown((*path, key), known)
                right = False
                continue
            try:
                values[key] = self._value(known[key], value, (*path, key))
            except _Invalid:
                right = False
        for field in dataclasses.fields(typing.cast("Any", kind)):
            if field.name not in tree and field.default is field.default_factory is dataclasses.MISSING:
                self._complain((*path, field.name), f"{'.'.join((*path, field.name))} is missing")
                right = False
        return kind(**values) if right else None

    def _value(self, wanted: Any, value: Any, path: SettingPath) -> Any:
        wanted = _without_none(wanted)
        origin = typing.get_origin(wanted)
        if dataclasses.is_dataclass(wanted):
            if isinstance(value, dict):
                section = self.section(typing.cast("type[Any]", wanted), value, path)
                if section is None:
                    raise _Invalid
                return section
        elif origin is dict:
            inner = typing.get_args(wanted)[1]
            if isinstance(value, dict):
                return {key: self._value(inner, item, (*path, key)) for key, item in value.items()}
        elif origin is tuple:
            inner = typing.get_args(wanted)[0]
            if isinstance(value, list):
                return tuple(self._value(inner, item, path) for item in value)
        elif origin is typing.Literal:
            if value in typing.get_args(wanted):
                return value
        elif wanted is Size:
            return Size(int(self._amount(value, UNITS, _MOST_OCTETS, path)))
        elif wanted is Seconds:
            return Seconds(self._amount(value, TIMES, _MOST_SECONDS, path))
        elif wanted is float and type(value) in (int, float) and value >= 0:
            return float(value)
        elif type(value) is wanted and not (wanted is int and value < 0):
            return value
        self._complain(path, f"{'.'.join(path)} must be {_describe(wanted)}, not {value!r}")
        raise _Invalid

    def _amount(self, value: Any, units: Mapping[str, float], most: float, path: SettingPath) -> float:
        if type(value) in (int, float) and 0 <= value <= most:
            return float(value)
        match = _AMOUNT.match(value) if isinstance(value, str) else None
        factor = {unit.lower(): size for unit, size in units.items()}.get(match[2].lower()) if match else None
        amount = float(match[1]) * factor if match is not None and factor is not None else -1.0
        if not 0 <= amount <= most:
            self._complain(path, f"{'.'.join(path)} must be a number with one of {', '.join(units)}, not {value!r}")
            raise _Invalid
        return amount


def _describe(wanted: Any) -> str:
    origin = typing.get_origin(wanted)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(wanted))
    if origin is tuple:
        return "a list"
    if origin is dict or dataclasses.is_dataclass(wanted):
        return "a table"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}.get(wanted, str(wanted))
