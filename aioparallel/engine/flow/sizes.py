"""About how many bytes of memory values take: cheap enough to be asked for each of them."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from sys import getsizeof
from types import FrameType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType
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
# From so many elements on, what a variable of a failed call holds was hardly made there, and is not looked at; nor is
# more than so many of all that one error keeps: a handler's own object may hold a cache.
_TOO_MANY: Final = 1_000
_MOST: Final = 20_000
# Errors behind one another, or in a group, that are looked at.
_ERRORS: Final = 100
# Classes of which it is known what to look at.
_KINDS: Final = 1_000
_BUILT_IN: Final = (list, tuple, set, frozenset, deque)


class _Seen(dict[int, object]):
    """What holds others, by its identity: it is counted once. It is kept, so that nothing else has that identity."""

    left = sys.maxsize
    """Elements that may be looked at."""


class Sized(list[T]):
    """A list of items, or of outcomes. ``size``: the bytes of all of them."""

    __slots__ = ("size",)

    def __init__(self, items: Iterable[T], size: int) -> None:
        super().__init__(items)
        self.size = size


def size_of(value: object) -> int:
    """Bytes of memory that it takes, with all that it holds. Never raises, and calls nothing of a user's class but its
    ``__sizeof__``: a property, or an attribute, may load what it stands for.

    Texts, bytes, dicts, lists, dataclasses and what resembles them are added up, each of them once; of other objects it
    is ``nbytes``, or what ``sys.getsizeof`` says, and their attributes that are texts or bytes.
    """
    try:
        kind = type(value)
        if kind is dict:
            return _size_of_dict(value, None)  # type: ignore[arg-type]
        if kind is str or kind is bytes:
            return getsizeof(value)
        return _SCALAR if kind in _SCALARS else _SCALAR + _size_beside(value, _Seen())
    except Exception:  # a class that cannot be looked up
        return _SCALAR


# For each result: the loop is written out, and the usual kinds are asked for by name, because every call would be paid
# for each of its fields.
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
            size += _size_beside(one, holders)
    return size


def size_of_error(error: BaseException | None) -> int:
    """The same, of an error, of those behind it, and of those in a group. Their tracebacks keep what the variables of
    the failed calls held: the body of an answer, say."""
    size, seen, errors = 0, _Seen(), [error]
    seen.left = _MOST
    for found in errors:
        if found is None or id(found) in seen:
            continue
        size += _SCALAR + _size_beside(found, seen)
        trace = found.__traceback__
        while trace is not None:
            frame, trace = trace.tb_frame, trace.tb_next
            if id(frame) not in seen:
                seen[id(frame)] = frame
                size += _size_of_frame(frame, seen)
        if len(errors) < _ERRORS:
            errors += (found.__cause__, found.__context__)
            if issubclass(type(found), BaseExceptionGroup):
                errors += _group_of(found)[:_ERRORS]
    return size


def _group_of(error: Any) -> tuple[BaseException, ...]:
    found: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(error)
    return found


def _size_of_frame(frame: FrameType, seen: _Seen) -> int:
    try:
        if _is_none_of_its_own(frame):
            return 0
        return sum([_size_of_variable(one, seen) for one in frame.f_locals.values()])
    except Exception:  # a class that cannot be looked up, or names of a kind of their own
        return 0


def _is_none_of_its_own(frame: FrameType) -> bool:
    """Whether it is of this package, or of a module's own code: its variables are all that is global there."""
    return frame.f_code.co_name == "<module>" or str(frame.f_globals.get("__name__")).startswith("aioparallel.")


def _size_of_variable(value: Any, seen: _Seen) -> int:
    kind = type(value)
    if kind in (str, bytes):
        return getsizeof(value)
    if kind in (dict, list, tuple, set, deque) and len(value) > _TOO_MANY:
        return getsizeof(value)
    if kind in _SCALARS or issubclass(kind, BaseException):
        return _SCALAR
    return _SCALAR + _size_beside(value, seen)


def _size_beside(value: Any, seen: _Seen) -> int:
    """Of what may hold others, beside its place."""
    try:
        if type(value) is dict:
            return _size_of_dict(value, seen)
        if id(value) in seen:
            return 0
        seen[id(value)] = value
        return _slowly(value, seen)
    except Exception:  # an object of the user's, whatever it does; or it is nested too deep
        return 0


class _Look:
    """What to look at in objects of a class: it is of ``base``, has elements, values, a buffer, fields, or is another
    object. ``names``: of the fields. ``attributes``, ``slots``: these read where Python keeps what an object has."""

    __slots__ = ("at", "attributes", "base", "names", "slots")

    def __init__(
        self,
        at: str,
        base: Any = None,
        names: Collection[str] | None = None,
        attributes: Callable[[object], object] | None = None,
        slots: Sequence[Callable[[object], object]] = (),
    ) -> None:
        self.at = at
        self.base = base
        self.names = names
        self.attributes = attributes
        self.slots = slots

    def held(self, value: object) -> list[object]:
        """The attributes that it has by itself."""
        held: list[object] = []
        own = self.attributes(value) if self.attributes is not None else None
        if type(own) is dict:
            held = [*own.values()] if self.names is None else [own[name] for name in self.names if name in own]
        for slot in self.slots:
            try:
                held.append(slot(value))
            except AttributeError:  # it has none there
                continue
        return held


def _slowly(value: Any, seen: _Seen) -> int:
    kind: Any = type(value)
    look = _look_of(kind)
    if look.at == "elements":
        return _SCALAR + _sum(value if kind is look.base else [*look.base.__iter__(value)], seen)
    if look.at == "values":
        values = [*look.base.values(value)]
        return _DICT + (_KEY * len(values) if len(values) <= seen.left else 0) + _sum(values, seen)
    if look.at == "buffer":
        beside = 2 * _SCALAR + max(0, int(value.nbytes))
        return beside + _sum(value.tolist(), seen) if str(getattr(value, "dtype", "")) == "object" else beside
    held = look.held(value)
    if look.at == "fields":
        return _SCALAR + _sum(held, seen)
    # What else an object refers to may be shared by all: a client, a whole program.
    if issubclass(kind, BaseException):
        held += vars(BaseException)["args"].__get__(value)
    return getsizeof(value) + sum([getsizeof(one) for one in held if type(one) is str or type(one) is bytes])


@lru_cache(_KINDS)
def _look_of(kind: type) -> _Look:
    base = next((one for one in kind.__mro__ if one in _BUILT_IN), None)
    if base is not None:
        return _Look("elements", base)
    if issubclass(kind, dict):
        return _Look("values", dict)
    if issubclass(kind, Mapping) and isinstance(getattr(kind, "values", None), MethodDescriptorType):
        return _Look("values", kind)  # not of Python code
    if _is_buffer(kind):
        return _Look("buffer")
    names = _fields_of(kind)
    attributes = [
        one.__get__ for of in kind.__mro__ if isinstance(one := vars(of).get("__dict__"), GetSetDescriptorType)
    ]
    slots = [
        one.__get__
        for of in kind.__mro__
        for name, one in vars(of).items()
        if isinstance(one, MemberDescriptorType) and ("__slots__" in vars(of) if names is None else name in names)
    ]
    # A mapping of Python code has in itself what it was made of, or what it loads that from.
    at = "object" if names is None and not issubclass(kind, Mapping) else "fields"
    return _Look(at, None, names, attributes[0] if attributes else None, slots)


def _is_buffer(kind: type) -> bool:
    """Arrays of NumPy, Arrow and pandas, a memoryview: not what has a field of that name."""
    for of in kind.__mro__:
        if "nbytes" in vars(of):
            return isinstance(vars(of)["nbytes"], GetSetDescriptorType) or of.__module__.partition(".")[0] == "pandas"
    return False


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
            size += _size_beside(one, seen)
    return size
