"""About how many bytes of memory values take: cheap enough to be asked for each of them."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from sys import getsizeof
from types import FrameType
from typing import Any, Final, TypeVar

__all__ = ["Sized", "size_of", "size_of_error"]

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
# From so many elements on, what a variable of a failed call holds was hardly made there, and is not looked at.
_TOO_MANY: Final = 1_000
# Exceptions behind one another that are looked at.
_ERRORS: Final = 10
# Classes of which it is known what to look at.
_KINDS: Final = 1_000

_Seen = dict[int, object]
"""What holds others, by its identity: it is counted once. It is kept, so that nothing else has that identity."""


class Sized(list[T]):
    """A list of items, or of outcomes. ``size``: the bytes of all of them."""

    __slots__ = ("size",)

    def __init__(self, items: Iterable[T], size: int) -> None:
        super().__init__(items)
        self.size = size


# For each result: the loop is written out, and the usual kinds are asked for by name, because every call would be paid
# for each of its fields.
def size_of(value: object, seen: _Seen | None = None) -> int:
    """Bytes of memory that it takes, with all that it holds. Never raises. Leave ``seen`` out.

    Texts, bytes, dicts, lists, dataclasses and what resembles them are added up, each of them once; of other objects it
    is ``nbytes``, or what ``sys.getsizeof`` says, and their attributes that are texts or bytes.
    """
    kind = type(value)
    if kind is dict:
        given: dict[Any, Any] = value  # type: ignore[assignment]
        size = _DICT + (_SCALAR if len(given) < _NAMES else _SCALAR + _KEY) * len(given)
        holders = None
        for one in given.values():
            kind = type(one)
            if kind is str or kind is bytes:
                size += len(one) if len(one) < _LONG else getsizeof(one)
            elif kind is not int and kind is not float and kind not in _SCALARS:
                if holders is None:
                    holders = {} if seen is None else seen
                    if id(given) in holders:
                        return 0
                    holders[id(given)] = given
                size += _size_beside(one, holders)
        return size
    if kind is str or kind is bytes:
        return getsizeof(value)
    return _SCALAR if kind in _SCALARS else _SCALAR + _size_beside(value, {})


def size_of_error(error: BaseException | None) -> int:
    """The same, of an error and of those behind it. Their tracebacks keep what the variables of the failed calls held:
    the body of an answer, say."""
    size, seen = 0, _Seen()
    for _ in range(_ERRORS):
        if error is None or id(error) in seen:
            break
        size += _SCALAR + _size_beside(error, seen)
        trace = error.__traceback__
        while trace is not None:
            frame, trace = trace.tb_frame, trace.tb_next
            if id(frame) not in seen and not _is_none_of_its_own(frame):
                seen[id(frame)] = frame
                size += sum([_size_of_variable(one, seen) for one in frame.f_locals.values()])
        error = error.__cause__ or error.__context__
    return size


def _is_none_of_its_own(frame: FrameType) -> bool:
    """Whether it is of this package, or of a module's own code: its variables are all that is global there."""
    return frame.f_code.co_name == "<module>" or str(frame.f_globals.get("__name__")).startswith("aioparallel.")


def _size_of_variable(value: Any, seen: _Seen) -> int:
    kind = type(value)
    if kind in (str, bytes):
        return getsizeof(value)
    if kind in (dict, list, tuple, set, deque) and len(value) > _TOO_MANY:
        return getsizeof(value)
    return _SCALAR if kind in _SCALARS or isinstance(value, BaseException) else _SCALAR + _size_beside(value, seen)


def _size_beside(value: Any, seen: _Seen) -> int:
    """Of what may hold others, beside its place."""
    try:
        if type(value) is dict:
            return size_of(value, seen)
        if id(value) in seen:
            return 0
        seen[id(value)] = value
        return _slowly(value, seen)
    except Exception:  # an object of the user's, whatever it does; or it is nested too deep
        return 0


def _slowly(value: Any, seen: _Seen) -> int:
    kind: Any = type(value)
    look, names = _look_of(kind)
    if look == "elements":
        return _SCALAR + _sum(value, seen)
    if look == "values":
        return _DICT + _KEY * len(value) + _sum(value.values(), seen)
    if look == "buffer":
        beside = 2 * _SCALAR + int(value.nbytes)
        return beside + _sum(value.tolist(), seen) if str(getattr(value, "dtype", "")) == "object" else beside
    attributes = [getattr(value, name, None) for name in names]
    if look == "fields":
        return _SCALAR + _sum(attributes, seen)
    # What else an object refers to may be shared by all: a client, a whole program.
    if type(getattr(value, "__dict__", None)) is dict:
        attributes += value.__dict__.values()
    if isinstance(value, BaseException):
        attributes += value.args
    return getsizeof(value) + sum([getsizeof(one) for one in attributes if type(one) is str or type(one) is bytes])


@lru_cache(_KINDS)
def _look_of(kind: type) -> tuple[str, Sequence[str]]:
    """What to look at in objects of this class, and which of their attributes."""
    if issubclass(kind, list | tuple | set | frozenset | deque):
        return "elements", ()
    if issubclass(kind, Mapping):
        return "values", ()
    if hasattr(kind, "nbytes"):  # arrays of NumPy and Arrow, a memoryview
        return "buffer", ()
    if (fields := _fields_of(kind)) is not None:
        return "fields", fields
    slots = [vars(one).get("__slots__", ()) for one in kind.__mro__]
    return "object", [name for names in slots for name in ((names,) if isinstance(names, str) else names)]


def _fields_of(kind: type) -> list[str] | None:
    """Of a dataclass, or of one of attrs', msgspec's or Pydantic's; None: it is none."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if (attributes := getattr(kind, "__attrs_attrs__", None)) is not None:
        return [attribute.name for attribute in attributes]
    fields = getattr(kind, "__struct_fields__", None) or getattr(kind, "__pydantic_fields__", None)
    return None if fields is None else [*fields]


def _sum(values: Any, seen: _Seen) -> int:
    size = _SCALAR * len(values)
    if (
        len(values) > _MANY
        and isinstance(values, list | tuple)
        and {*map(type, values[:: len(values) // 8])} <= _SCALARS
    ):
        return size
    for one in values:
        kind = type(one)
        if kind is str or kind is bytes:
            size += len(one) if len(one) < _LONG else getsizeof(one)
        elif kind is dict:
            size += size_of(one, seen)
        elif kind is not int and kind is not float and kind not in _SCALARS:
            size += _size_beside(one, seen)
    return size
