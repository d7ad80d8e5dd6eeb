"""Every SQL statement of a package, collected from its syntax trees.

A statement is a string that begins with a verb of SQL. F-strings are evaluated with the names of their module, and
with the local names that ``LOCALS`` gives values to. A statement that is put together otherwise has to be given by
``BUILT``. A string that is only a part of statements has to occur in one that was collected, so nothing is left out
silently: what can neither be evaluated nor accounted for is a :class:`Unaccounted`.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.support.paths import REPOSITORY

ROOT = REPOSITORY

_VERB = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH)\s")
_PART = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|FROM|WHERE|AND|ORDER BY|LEFT JOIN|CROSS JOIN|JOIN)\s")
_PLACEHOLDER = re.compile(r"\\\{.*?\\\}")


class Statement(NamedTuple):
    module: str
    sql: str  # with single spaces


class Unaccounted(Exception):  # noqa: N818 - the finding of a test
    """SQL that was not collected: add its local names to LOCALS, or the whole statements to BUILT."""


Values = Mapping[str, Sequence[object]]
Build = Callable[[Any], Sequence[str]]


def plain(sql: str) -> str:
    """One spelling for white space."""
    return " ".join(sql.split())


def collect(module: str, local_names: Values | None = None, built: Build | None = None) -> list[Statement]:
    """The statements of a module, given by its path; raises :class:`Unaccounted`."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    namespace = importlib.import_module(module.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    collected = collect_from(tree, vars(namespace), local_names or {})
    whole = [plain(sql) for sql in built(namespace)] if built is not None else []
    statements = dict.fromkeys([*whole, *collected.statements])
    for part in collected.parts:
        pattern = re.compile(_PLACEHOLDER.sub(".*", re.escape(plain(part))))
        if not any(pattern.search(sql) for sql in statements):
            raise Unaccounted(f"{module}: {part}")
    return [Statement(module, sql) for sql in statements]


class Collected(NamedTuple):
    statements: list[str]
    parts: list[str]


def collect_from(tree: ast.AST, namespace: Mapping[str, object], local_names: Values) -> Collected:
    """Statements, and strings that are parts of statements only."""
    inside = {id(inner) for node in ast.walk(tree) if _is_built(node) for inner in ast.walk(node) if inner is not node}
    documentation = set(_docstrings(tree))
    building_blocks = set(_building_blocks(tree, inside))
    statements: list[str] = []
    parts: list[str] = []
    for node in ast.walk(tree):
        if id(node) in inside or id(node) in documentation:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in building_blocks or "{" in node.value:
                parts += [node.value] if _PART.match(node.value) else []
            elif _VERB.match(node.value):
                statements.append(plain(node.value))
            elif _PART.match(node.value):
                parts.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            for value in _evaluated(node, namespace, local_names):
                if value is None:
                    parts += _literals(node)
                elif _VERB.match(value):
                    statements.append(plain(value))
                elif _PART.match(value):
                    parts.append(value)
        elif isinstance(node, ast.BinOp):
            parts += [
                inner.value
                for inner in ast.walk(node)
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and _PART.match(inner.value)
            ]
    return Collected(statements, parts)


def _is_built(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add))


def _docstrings(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield id(first.value)


def _building_blocks(tree: ast.AST, inside: set[int]) -> Iterator[int]:
    """Strings with a private name that is used to build other strings, and in no other way."""
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    by_itself = {node.id for node in loads if id(node) not in inside}
    building = {node.id for node in loads if id(node) in inside}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.startswith("_") and name in building and name not in by_itself:
                yield id(node.value)


def _evaluated(node: ast.JoinedStr, namespace: Mapping[str, object], local_names: Values) -> Iterator[str | None]:
    code = compile(ast.fix_missing_locations(ast.Expression(node)), "<statement>", "eval")
    names = [name for name in code.co_names if name in local_names and name not in namespace]
    for chosen in itertools.product(*(local_names[name] for name in names)):
        try:
            yield str(eval(code, dict(namespace), dict(zip(names, chosen, strict=True))))
        except Exception:  # a name that only a running function knows
            yield None


def _literals(node: ast.JoinedStr) -> list[str]:
    """Return the SQL of an f-string that cannot be evaluated, with placeholders; None if it is not SQL."""
    text = "".join(str(value.value) if isinstance(value, ast.Constant) else "{}" for value in node.values)
    return [text] if _PART.match(text) or re.search(r"\b(SELECT|FROM|WHERE)\b.*\{\}|\{\}.*\bWHERE\b", text) else []
