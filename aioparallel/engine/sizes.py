"""About how many bytes of memory values take: cheap enough to be asked for each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from sys import getsizeof
from typing import Any, Final, TypeVar

__all__ = ["Sized", "size_of"]

T = TypeVar("T")

# Of a number, a date, ...: with its place in what holds it.
_SCALAR: Final = 40
_SCALARS: Final = frozenset((int, float, bool, type(None), Decimal, datetime, date, timedelta))
# Of a dict, and of each of its keys where there are many: few are the names of columns, which all rows share.
_DICT: Final = 200
_NAMES: Final = 16
_KEY: Final = 100
# From so many characters on a text is measured: each of them takes 1, 2 or 4 bytes.
_LONG: Final = 256
# From so many elements on a few of a list are looked at first: a vector of numbers has nothing to add up.
_MANY: Final = 64
# What is nested deeper is not looked at.
_DEPTH: Final = 20


class Sized(list[T]):
    """A list of items, or of outcomes. ``size``: the bytes of all of them."""

    __slots__ = ("size",)

    def __init__(self, items: Iterable[T], size: int) -> None:
        super().__init__(items)
        self.size = size


# For each result: the loop is written out, because every call would be paid for each of its fields.
def size_of(value: object, depth: int = _DEPTH) -> int:
    """Bytes of memory that it takes, with all that it holds. Never raises.

    Texts, bytes, dicts, lists, dataclasses and what resembles them are added up; of other objects it is ``nbytes``, or
    what ``sys.getsizeof`` says, and their attributes that are texts or bytes.
    """
    kind = type(value)
    if kind in _SCALARS:
        return _SCALAR
    if kind is dict:
        given: dict[Any, Any] = value  # type: ignore[assignment]
        size = _DICT if len(given) < _NAMES else _DICT + _KEY * len(given)
        for one in given.values():
            kind = type(one)
            if kind in _SCALARS:
                size += _SCALAR
            elif (kind is str or kind is bytes) and len(one) < _LONG:
                size += _SCALAR + len(one)
            else:
                size += size_of(one, depth - 1)
        return size
    if kind is str or kind is bytes:
        return getsizeof(value)
    try:
        return _slowly(value, depth)
    except Exception:  # an object of the user's, whatever it does
        return _SCALAR


def _slowly(value: Any, depth: int) -> int:
    if not depth:
        return _SCALAR
    if isinstance(value, list | tuple | set | frozenset):
        return 2 * _SCALAR + _sum(value, depth)
    if isinstance(value, Mapping):
        return _DICT + _KEY * len(value) + _sum(value.values(), depth)
    if hasattr(type(value), "nbytes"):  # arrays of NumPy and Arrow, a memoryview
        return 3 * _SCALAR + int(value.nbytes)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        return 2 * _SCALAR + _sum(fields, depth)
    # What else an object refers to may be shared by all: a client, a whole program.
    attributes = value.__dict__.values() if type(getattr(value, "__dict__", None)) is dict else ()
    return getsizeof(value) + sum([getsizeof(one) for one in attributes if type(one) is str or type(one) is bytes])


def _sum(values: Any, depth: int) -> int:
    if (
        len(values) > _MANY
        and isinstance(values, list | tuple)
        and {*map(type, values[:: len(values) // 8])} <= _SCALARS
    ):
        return _SCALAR * len(values)
    return sum([_SCALAR if type(one) in _SCALARS else size_of(one, depth - 1) for one in values])
