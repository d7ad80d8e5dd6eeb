"""Strategies for journal records that carry effects of every kind."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from adapter.store.effects import Actor, Effect, Octets
from adapter.store.journal import Record

#: Every kind of effect.
KINDS: tuple[type[Effect], ...] = typing.get_args(Effect)

_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**53),
    str: _TEXT,
    bool: st.booleans(),
    types.NoneType: st.none(),
    Octets: st.binary(max_size=20).map(Octets),
}


def _values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([_values(each) for each in arguments])
    if origin is tuple:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    return structs(annotation)


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Values of a type of :mod:`adapter.store.effects`, with any values in its fields."""
    fields = {field.name: _values(field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


def records() -> st.SearchStrategy[Record]:
    return st.builds(
        Record,
        seq=st.integers(1, 2**53),
        at=st.integers(0, 2**53),
        op=st.sampled_from(["deliver", "flags"]),
        actor=st.builds(Actor, _TEXT, _TEXT),
        effects=st.lists(st.one_of([structs(kind) for kind in KINDS]), max_size=3),
        aborted=st.none() | st.tuples(st.integers(1, 100), st.integers(1, 100)),
    )
