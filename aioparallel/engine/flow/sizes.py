"""Estimates how many bytes of memory values take. It is cheap enough to be done for each item."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from sys import getsizeof
from types import FrameType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType
from typing import Any, Final, TypeVar

__all__ = ["Sized", "size_of", "size_of_error"]

T = TypeVar("T")

# Bytes of a number or a date, with the reference to it.
_SCALAR: Final = 40
_SCALARS: Final = frozenset((int, float, bool, type(None), Decimal, datetime, date, timedelta))
# Bytes of a dict, and of each key if there are more than so many. A few keys are the names of columns, which all rows
# share.
_DICT: Final = 200
_NAMES: Final = 16
_KEY: Final = 100
# Texts with more characters are measured: a character takes 1, 2 or 4 bytes.
_LONG: Final = 256
# In lists with more elements, a few are checked first: a vector of numbers need not be added up.
_MANY: Final = 64
# A variable of a failed call with more elements was probably not made there, and is not added up.
_TOO_MANY: Final = 1_000
# The most elements that are added up for one error: an object of the handler may hold a cache.
_MOST: Final = 20_000
# The most errors of a chain or a group that are added up.
_ERRORS: Final = 100
# How many classes are remembered with the function that measures their objects.
_CLASSES: Final = 1_000
_BUILT_IN: Final = (list, tuple, set, frozenset, deque)


class _Seen(dict[int, object]):
    """Containers that were counted, by identity. It references them, so that no other object gets their identity."""

    left = sys.maxsize
    """How many more elements may be added up."""


_Measure = Callable[[Any, _Seen], int]


class Sized(list[T]):
    """A list of items or outcomes. ``size``: the bytes of all of them."""

    __slots__ = ("size",)

    def __init__(self, items: Iterable[T], size: int) -> None:
        super().__init__(items)
        self.size = size


def size_of(value: object) -> int:
    """Return how many bytes of memory a value takes, with everything that it contains.

    Texts, bytes, dicts, lists, dataclasses and similar objects are added up, each of them once. For other objects it is
    ``nbytes``, or ``sys.getsizeof`` and the size of their attributes that are texts or bytes. Never raises. Calls no
    method of a user's class except ``__sizeof__``: a property may load what it returns.
    """
    try:
        kind = type(value)
        if kind is dict:
            return _size_of_dict(value, None)  # type: ignore[arg-type]
        if kind is str or kind is bytes:
            return getsizeof(value)
        return _SCALAR if kind in _SCALARS else _SCALAR + _size_of_content(value, _Seen())
    except Exception:  # the class raises when it is looked up
        return _SCALAR


# The loop is written out and checks the usual classes by identity, because it runs for each field of each result.
def _size_of_dict(given: dict[Any, Any], seen: _Seen | None) -> int:
    size = _DICT + (_SCALAR if len(given) < _NAMES else _SCALAR + _KEY) * len(given)
    if seen is not None:
        seen.left -= len(given)
        if seen.left < 0:
            return _DICT
    holders = None
    for one in given.values():
        kind = type(one)
        if kind is str or kind is bytes:
            size += len(one) if len(one) < _LONG else getsizeof(one)
        elif kind is not int and kind is not float and kind not in _SCALARS:
            if holders is None:
                holders = _Seen() if seen is None else seen
                if id(given) in holders:
                    return 0
                holders[id(given)] = given
            size += _size_of_content(one, holders)
    return size


def size_of_error(error: BaseException | None) -> int:
    """Return the same for an error with its causes, contexts and the errors of a group. Their tracebacks reference the
    variables of the failed calls, for example the body of a response."""
    size, seen, errors = 0, _Seen(), [error]
    seen.left = _MOST
    for found in errors:
        if found is None or id(found) in seen:
            continue
        size += _SCALAR + _size_of_content(found, seen)
        trace = found.__traceback__
        while trace is not None:
            frame, trace = trace.tb_frame, trace.tb_next
            if id(frame) not in seen:
                seen[id(frame)] = frame
                size += _size_of_frame(frame, seen)
        if len(errors) < _ERRORS:
            errors += (found.__cause__, found.__context__)
            if issubclass(type(found), BaseExceptionGroup):
                errors += _errors_of(found)[:_ERRORS]
    return size


def _errors_of(group: Any) -> tuple[BaseException, ...]:
    found: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(group)
    return found


def _size_of_frame(frame: FrameType, seen: _Seen) -> int:
    try:
        # The variables of a module's own code are its globals. Frames of this package are not the user's.
        if frame.f_code.co_name == "<module>" or str(frame.f_globals.get("__name__")).startswith("aioparallel."):
            return 0
        return sum([_size_of_variable(one, seen) for one in frame.f_locals.values()])
    except Exception:  # a class, or the name of the module, raises when it is looked up
        return 0


def _size_of_variable(value: Any, seen: _Seen) -> int:
    kind = type(value)
    if kind in (str, bytes):
        return getsizeof(value)
    if kind in (dict, list, tuple, set, deque) and len(value) > _TOO_MANY:
        return getsizeof(value)
    if kind in _SCALARS or issubclass(kind, BaseException):
        return _SCALAR
    return _SCALAR + _size_of_content(value, seen)


def _size_of_content(value: Any, seen: _Seen) -> int:
    """Return the size of an object without the reference to it; 0 if it was counted before."""
    try:
        if type(value) is dict:
            return _size_of_dict(value, seen)
        if id(value) in seen:
            return 0
        seen[id(value)] = value
        kind: Any = type(value)
        return _measure_of(kind)(value, seen)
    except Exception:  # an object of the user may raise, or be nested too deeply
        return 0


@lru_cache(_CLASSES)
def _measure_of(kind: Any) -> _Measure:
    """Return the function that measures objects of this class."""
    base = next((one for one in kind.__mro__ if one in _BUILT_IN), None)
    if base is not None:
        return partial(_measure_elements, base)
    if issubclass(kind, dict):
        return partial(_measure_values, dict)
    if issubclass(kind, Mapping) and isinstance(getattr(kind, "values", None), MethodDescriptorType):
        return partial(_measure_values, kind)  # written in C
    if _is_buffer(kind):
        return _measure_buffer
    names = _fields_of(kind)
    # A mapping written in Python holds its data, or the place from which it loads them, in its attributes.
    measure = _measure_object if names is None and not issubclass(kind, Mapping) else _measure_fields
    return partial(measure, _attributes_of(kind, names))


def _measure_elements(base: Any, value: Any, seen: _Seen) -> int:
    return _SCALAR + _sum(value if type(value) is base else [*base.__iter__(value)], seen)


def _measure_values(base: Any, value: Any, seen: _Seen) -> int:
    values = [*base.values(value)]
    return _DICT + (_KEY * len(values) if len(values) <= seen.left else 0) + _sum(values, seen)


def _measure_buffer(value: Any, seen: _Seen) -> int:
    size = 2 * _SCALAR + max(0, int(value.nbytes))
    return size + _sum(value.tolist(), seen) if str(getattr(value, "dtype", "")) == "object" else size


def _measure_fields(attributes: Callable[[Any], list[object]], value: Any, seen: _Seen) -> int:
    return _SCALAR + _sum(attributes(value), seen)


def _measure_object(attributes: Callable[[Any], list[object]], value: Any, seen: _Seen) -> int:
    # Other objects that it references may be shared by the whole program, for example a client.
    found = attributes(value)
    if issubclass(type(value), BaseException):
        found += vars(BaseException)["args"].__get__(value)
    return getsizeof(value) + sum([getsizeof(one) for one in found if type(one) is str or type(one) is bytes])


def _attributes_of(kind: type, names: Collection[str] | None) -> Callable[[Any], list[object]]:
    """Return a function that reads the attributes that an object of this class stores itself, in its ``__dict__`` and
    its slots. ``names``: only these; None: all."""
    attributes = next(
        (one.__get__ for of in kind.__mro__ if isinstance(one := vars(of).get("__dict__"), GetSetDescriptorType)), None
    )
    slots = [
        one.__get__
        for of in kind.__mro__
        for name, one in vars(of).items()
        if isinstance(one, MemberDescriptorType) and ("__slots__" in vars(of) if names is None else name in names)
    ]

    def read(value: object) -> list[object]:
        found: list[object] = []
        own = attributes(value) if attributes is not None else None
        if type(own) is dict:
            found = [*own.values()] if names is None else [own[name] for name in names if name in own]
        for slot in slots:
            try:
                found.append(slot(value))
            except AttributeError:  # the slot is empty
                continue
        return found

    return read


def _is_buffer(kind: type) -> bool:
    """Whether it is an array of NumPy, Arrow or pandas, or a memoryview. Other classes may have a field ``nbytes``."""
    for of in kind.__mro__:
        if "nbytes" in vars(of):
            return isinstance(vars(of)["nbytes"], GetSetDescriptorType) or of.__module__.partition(".")[0] == "pandas"
    return False


def _fields_of(kind: type) -> list[str] | None:
    """Return the fields of a dataclass, or of a class of attrs, msgspec or Pydantic; None for other classes."""
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
    seen.left -= len(values)
    if seen.left < 0:
        return _SCALAR
    for one in values:
        kind = type(one)
        if kind is str or kind is bytes:
            size += len(one) if len(one) < _LONG else getsizeof(one)
        elif kind is dict:
            size += _size_of_dict(one, seen)
        elif kind is not int and kind is not float and kind not in _SCALARS:
            size += _size_of_content(one, seen)
    return size
