"""Every setting takes effect: each is claimed by a test that proves it.

A test claims settings with ``@pytest.mark.setting("limits.idle", …)``; an IMAP transcript by the settings it sets. A
setting of a section named by the user is claimed without the name: ``account.over``, ``hook.url``.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from collections.abc import Iterator

from adapter.config import loader
from adapter.config.schema import Settings
from tests.support.paths import TESTS

_TRANSCRIPT_SETTING = re.compile(r"^@ set ([a-z]+\.[a-z_]+) = ", re.MULTILINE)


def _settings() -> Iterator[str]:
    for section, kind in loader.fields_of(Settings).items():
        inner = typing.get_args(kind)[1] if typing.get_origin(kind) is dict else kind
        if dataclasses.is_dataclass(inner):
            yield from (f"{section}.{key}" for key in loader.fields_of(typing.cast("type", inner)))
        else:
            yield section


def _marked(decorators: list[ast.expr]) -> Iterator[str]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.setting":
            for argument in decorator.args:
                assert isinstance(argument, ast.Constant), ast.unparse(decorator)
                yield str(argument.value)


def _words(tree: ast.Module) -> Iterator[str]:
    """Yield the keywords of calls, and all strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _claims() -> Iterator[tuple[str, str, str]]:
    """Yield the setting, the test that claims it, and the words of its module without decorators."""
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "mark.setting(" not in source:
            continue
        tree = ast.parse(source)
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        claimed = [(name, function) for function in functions for name in _marked(function.decorator_list)]
        for function in functions:
            function.decorator_list = []
        words = "\n".join(_words(tree))
        for name, function in claimed:
            assert function.name.startswith("test_"), f"{path.name}: {function.name}"
            yield name, f"{path.name}::{function.name}", words


def _in_transcripts() -> set[str]:
    return {
        name
        for path in (TESTS / "imap_transcripts").glob("*.txt")
        for name in _TRANSCRIPT_SETTING.findall(path.read_text(encoding="utf-8"))
    }


def test_every_setting_is_claimed_by_a_test() -> None:
    claimed = {name for name, _, _ in _claims()} | _in_transcripts()
    assert sorted(set(_settings()) - claimed) == []


def test_claimed_setting_exists_and_is_used_by_its_module() -> None:
    settings = set(_settings())
    for name, test, words in _claims():
        assert name in settings, f"{test} claims {name}"
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", words), f"{test} claims {name} and never mentions it"
