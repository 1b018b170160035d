"""Makes a play repeat: every clock is the event loop's, every set keeps its order, chance comes from the seed.

The one place here that reaches into the package's modules: it replaces what they have imported (``perf_counter``, the
module ``time``, the built-in ``set``), for as long as one play lasts.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, MutableSet
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

from aioparallel.event_loop.steady_clock import steady_time

__all__ = ["OrderedSet", "one_source_of_chance"]

T = TypeVar("T")

_EPOCH = 1_700_000_000.0
# Sets of these rooms are walked through in ways that decide what happens next.
_ORDERED = ("engine", "group", "delivery", "clients.producing", "testing.memory")


class OrderedSet(MutableSet[T]):
    """A set that is walked through in the order of entry, not of addresses or of a hash that differs by process."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __class_getitem__(cls, item: object) -> type[OrderedSet[Any]]:
        return cls

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self._items))}}}"

    def add(self, value: T) -> None:
        self._items[value] = None

    def discard(self, value: T) -> None:
        self._items.pop(value, None)

    def remove(self, value: T) -> None:
        del self._items[value]

    def update(self, *others: Iterable[T]) -> None:
        for item in itertools.chain(*others):
            self._items[item] = None

    def difference_update(self, *others: Iterable[T]) -> None:
        for item in itertools.chain(*others):
            self._items.pop(item, None)

    def copy(self) -> OrderedSet[T]:
        return OrderedSet(self._items)

    def union(self, *others: Iterable[T]) -> OrderedSet[T]:
        return OrderedSet(itertools.chain(self._items, *others))

    def difference(self, *others: Iterable[T]) -> OrderedSet[T]:
        gone = set(itertools.chain(*others))
        return OrderedSet(item for item in self._items if item not in gone)

    def intersection(self, *others: Iterable[T]) -> OrderedSet[T]:
        kept = [set(other) for other in others]
        return OrderedSet(item for item in self._items if all(item in each for each in kept))

    def issubset(self, other: Iterable[T]) -> bool:
        return set(self._items) <= set(other)


@contextlib.contextmanager
def one_source_of_chance(seed: int, now: Callable[[], float], pace: float) -> Iterator[None]:
    """Within this, a play of ``seed`` is the same each time.

    ``now``: the virtual loop's clock. ``pace``: seconds that each look at ``perf_counter`` takes, so that slices of
    quick handlers end where the seed says and not where the machine is busy.
    """
    looks = itertools.count()

    def perf_counter() -> float:
        return now() + next(looks) * pace

    clock = SimpleNamespace(time=lambda: _EPOCH + now(), monotonic=now, perf_counter=perf_counter)
    state = random.getstate()
    random.seed(seed)
    replaced: list[tuple[ModuleType, str, object]] = []
    for name, module in list(sys.modules.items()):
        if not name.startswith("aioparallel."):
            continue
        found = vars(module)
        if found.get("time") is time:
            replaced.append((module, "time", clock))
        if found.get("perf_counter") is time.perf_counter:
            replaced.append((module, "perf_counter", perf_counter))
        if name.removeprefix("aioparallel.").startswith(_ORDERED):
            replaced.append((module, "set", OrderedSet))
    began, steady_time._began = steady_time._began, _EPOCH
    before = [(module, name, vars(module).get(name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        steady_time._began = began
        for module, name, original in before:
            if original is None:
                delattr(module, name)
            else:
                setattr(module, name, original)
        random.setstate(state)
