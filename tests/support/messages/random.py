"""Strategies of Hypothesis for our messages, made from their annotations."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from hypothesis import strategies as st

from aioparallel.clients.messages.schema import Int8, Int16, Int32, Int64, Records, Uuid
from tests.support.messages.as_json import kinds

__all__ = ["messages"]

_SIMPLE: Final[dict[Any, st.SearchStrategy[Any]]] = {
    Int8: st.integers(-(2**7), 2**7 - 1),
    Int16: st.integers(-(2**15), 2**15 - 1),
    Int32: st.integers(-(2**31), 2**31 - 1),
    Int64: st.integers(-(2**63), 2**63 - 1),
    Uuid: st.binary(min_size=16, max_size=16),
    Records: st.binary(max_size=300),
    bool: st.booleans(),
    str: st.text(st.characters(codec="utf-8"), max_size=20),
}


def messages(cls: type[Any], version: int) -> st.SearchStrategy[Any]:
    """Messages of this class; fields that the version lacks have their defaults."""
    return st.builds(cls, **{name: _values(kind, version) for name, kind in kinds(cls, version).items()})


def _values(kind: Any, version: int) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (inner,) = (one for one in arguments if one is not NoneType)
        return st.none() | _values(inner, version)
    if origin is tuple:
        return st.lists(_values(arguments[0], version), max_size=2).map(tuple)
    return _SIMPLE[kind] if kind in _SIMPLE else messages(kind, version)
