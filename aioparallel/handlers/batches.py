"""Batches: handlers that get many records or items in one call.

::

    async def save(batch: Batch) -> None:
        await database.executemany(INSERT, [(record.key, record.value) for record in batch])

    await consumer.run(batches(save, size=500))
"""

from __future__ import annotations

import functools
import pickle
import sys
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, overload

from aioparallel.config.callables import check_async
from aioparallel.config.handling import check_choice, check_count, check_time
from aioparallel.config.unknown_options import refuses_others
from aioparallel.handlers.running_out import out_of_resources
from aioparallel.records.errors import ConfigurationError, ConsumerStateError, FailedInProcess, NotAHandler
from aioparallel.records.record import Record, TopicPartition
from aioparallel.records.user_errors import repr_of, text_of
from aioparallel.records.wording import kind_of

__all__ = ["Batch", "BatchHandler", "Batching", "By", "Call", "batches"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")

By = Literal["any", "partition", "lane"]
"""What the records of a batch share, see :func:`batches`."""


class Batch(Sequence[T_co]):
    """The records or items of one call of a batch handler; those of one key are in order.

    A sequence: ``len(batch)``, ``batch[0]``, ``for record in batch``.
    """

    __slots__ = ("_call", "_items", "_places", "_places_of")

    def __init__(self, items: Sequence[T_co], call: Call, places: Sequence[int] | None = None) -> None:
        self._items = items
        self._call = call
        self._places = places  # indices in the call; None: the same as in the batch
        self._places_of: dict[int, list[int]] | None = None  # indices by id() of the item, made when needed

    @classmethod
    def of(cls, items: Iterable[T_co]) -> Batch[T_co]:
        """A batch for tests of a handler: ``await save(Batch.of([record, ...]))``."""
        return cls(list(items), Call({}))

    def fail(self, item: object, error: Exception) -> None:
        """Let one record of the batch fail by the failure policy, while the others complete. Later records of the batch
        with its key are returned to their lane, as if they had not been in the batch.

        ``item``: the object in the batch. ``error``: its error; Reject and RetryLater have their usual meaning. The
        first of several errors for one record counts.

        Raises ValueError for an item that is not in the batch, or is in it several times (see :meth:`fail_at`),
        TypeError if ``error`` is no exception, ConsumerStateError after the call has ended.
        """
        if self._places_of is None:
            found: dict[int, list[int]] = {}
            for index, one in enumerate(self._items):
                found.setdefault(id(one), []).append(index)
            self._places_of = found
        places = self._places_of.get(id(item), ())
        if len(places) != 1:
            what = "is not in this batch" if not places else f"is there {len(places)} times: use fail_at(index, error)"
            raise ValueError(f"{repr_of(item)} {what}")
        self.fail_at(places[0], error)

    def fail_at(self, index: int, error: Exception) -> None:
        """:meth:`fail` for the item at an index, from 0. Raises IndexError if there is none."""
        if not 0 <= index < len(self._items):
            raise IndexError(f"a batch of {len(self._items)} has no index {index}")
        if not isinstance(error, Exception):
            raise TypeError(f"an item fails with an exception, not with {kind_of(error)}")
        if self._call.is_over:
            raise ConsumerStateError("the call of this batch has ended: its handler can no longer fail records")
        self._call.failures.setdefault(index if self._places is None else self._places[index], error)

    @property
    def is_run(self) -> bool:
        """Whether it belongs to a running call of the engine; False in tests."""
        return self._call.batching is not None and not self._call.is_over

    @property
    def failures(self) -> Mapping[int, Exception]:
        """Errors given to :meth:`fail`, by index in the batch."""
        failures = self._call.failures
        if self._places is None:
            return MappingProxyType(failures)
        return {index: failures[place] for index, place in enumerate(self._places) if place in failures}

    def __cross__(self) -> object:
        """See :class:`aioparallel.handlers.blocking.crossing.Crossing`."""
        return _Crossed(list(self._items))

    def __returned__(self, reply: tuple[object, bool, dict[int, Exception]]) -> object:
        """See :class:`aioparallel.handlers.blocking.crossing.Crossing`."""
        value, by_place, failures = reply
        for place, error in failures.items():
            self.fail_at(place, error)
        if by_place:
            return {self._items[place]: outputs for place, outputs in cast("dict[int, object]", value).items()}
        return value

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._items)

    def __repr__(self) -> str:
        # No record: there may be many, and what is in them may be secret.
        return f"<Batch of {len(self._items)}>"


class _Crossed:
    """A batch sent to a process, see :class:`aioparallel.handlers.blocking.crossing.Payload`."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __run__(self, function: Callable[[Any], object]) -> tuple[object, bool, dict[int, Exception]]:
        """Returns the handler's result, whether it is by index instead of by record, and errors by index."""
        batch = Batch.of(self._items)
        value = function(batch)
        failures = {place: _picklable(error) for place, error in batch.failures.items()}
        if not isinstance(value, Mapping) or not all(isinstance(key, Record) for key in value):
            return value, False, failures
        places = {record: place for place, record in enumerate(batch)}
        if any(record not in places for record in value):
            return value, False, failures  # unknown records: refused after the return
        return {places[record]: outputs for record, outputs in value.items()}, True, failures


def _picklable(error: Exception) -> Exception:
    if (short := out_of_resources(error)) is not None:
        return short  # pickling drops its causes
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:
        pass
    return FailedInProcess(type(error).__qualname__, text_of(error), "".join(traceback.format_exception(error)))


class Call:
    """Records taken together, as the engine sees them: one call of a batch handler."""

    __slots__ = ("batching", "failures", "is_over", "mates", "parts", "records", "was_drained")

    _history = None
    """Code that drives handlers reads this of records and calls alike; a call has no history."""

    def __init__(
        self,
        parts: Mapping[Any, list[Record[Any, Any]]],
        mates: set[Record[Any, Any]] | None = None,
        batching: Batching | None = None,
    ) -> None:
        self.parts = parts
        """Records by source, each lane in order."""
        self.mates = mates or ()
        """Records that follow another one of their lane in this call."""
        self.batching = batching
        first, *others = parts.values() if parts else ([],)
        self.records: list[Record[Any, Any]] = first if not others else list(chain(first, *others))
        self.failures: dict[int, Exception] = {}
        """Errors by index in ``records``."""
        self.is_over = False
        self.was_drained = False
        """Whether its handler was cancelled because a partition is revoked."""

    def blocked(self, failed: Iterable[int]) -> set[int]:
        """Indices of records after a failed one of their lane: they return to it. Empty without ``mates``."""
        if not self.mates:
            return set()
        failed = set(failed)
        closed: set[tuple[object, object]] = set()
        blocked = set()
        for place, record in enumerate(self.records):
            lane = record._source, record._lane
            if record._lane is None:
                continue
            if lane in closed:
                blocked.add(place)
            elif place in failed:
                closed.add(lane)
        return blocked

    @property
    def topic_partition(self) -> TopicPartition:
        """That of the first record."""
        return self.records[0].topic_partition

    @property
    def offset(self) -> int:
        """That of the first record."""
        return self.records[0].offset

    @property
    def place(self) -> str:
        """The first record's place, and how many more there are."""
        more = len(self.records) - 1
        return self.records[0].place + (f" (and {more} more in its batch)" if more else "")


_Handler = Callable[[Batch[T]], Awaitable[object] | AsyncIterable[object]]


@dataclass(frozen=True, slots=True, eq=False)
class Batching:
    """A batch handler with its middleware, as the engine runs it. Compares by identity."""

    terms: BatchHandler[Any, Any]
    run: Callable[[Call], Coroutine[Any, Any, object]]


class BatchHandler(Generic[T, R]):
    """The result of :func:`batches`. Its type is that of a handler of single records."""

    def __init__(
        self,
        handler: _Handler[T],
        size: int,
        linger: float,
        by: By,
        max_bytes: int | None,
        on_error: Literal["one_by_one", "together"],
    ) -> None:
        functools.update_wrapper(self, handler, updated=())
        self.__wrapped__ = handler
        self.size = size
        self.linger = linger
        self.by = by
        self.max_bytes = max_bytes
        self.on_error = on_error

    async def __call__(self, item: T) -> R:
        """Calls the handler with a Batch, for tests. Raises NotAHandler for a single record, which means that another
        wrapper hides the batch handler from the engine."""
        if isinstance(item, Batch):
            made = self.__wrapped__(item)
            return cast("R", [one async for one in made] if isinstance(made, AsyncIterable) else await made)
        raise NotAHandler(
            f"{self!r} got a single {type(item).__name__}: another wrapper is around it; batches(...) must be the "
            "outermost, e.g. batches(wrapper(handler))"
        )

    def __repr__(self) -> str:
        name = getattr(self.__wrapped__, "__qualname__", repr(self.__wrapped__))
        return f"<batches of {name}, {self.size} at most, linger {self.linger:g} s, by {self.by}>"

    def with_handler(self, handler: _Handler[T]) -> BatchHandler[T, Any]:
        """The same options with another handler."""
        return BatchHandler(handler, self.size, self.linger, self.by, self.max_bytes, self.on_error)

    def __reduce__(self) -> str | tuple[object, ...]:
        """Pickled by name where possible, like functions: the decorated function's name refers to this object."""
        name: str = getattr(self.__wrapped__, "__qualname__", "")
        found: object = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self and self.__module__ != "__main__":
            return name
        return BatchHandler, (self.__wrapped__, self.size, self.linger, self.by, self.max_bytes, self.on_error)


class _Decorator(Protocol):
    def __call__(self, handler: _Handler[T], /) -> BatchHandler[T, Any]: ...


@overload
def batches(
    handler: Callable[[Batch[T]], Awaitable[Sequence[R]]],
    *,
    size: int = ...,
    linger: float = ...,
    by: By = ...,
    max_bytes: int | None = ...,
    on_error: Literal["one_by_one", "together"] = ...,
) -> BatchHandler[T, R]: ...
@overload
def batches(
    handler: _Handler[T],
    *,
    size: int = ...,
    linger: float = ...,
    by: By = ...,
    max_bytes: int | None = ...,
    on_error: Literal["one_by_one", "together"] = ...,
) -> BatchHandler[T, Any]: ...
@overload
def batches(
    handler: None = None,
    *,
    size: int = ...,
    linger: float = ...,
    by: By = ...,
    max_bytes: int | None = ...,
    on_error: Literal["one_by_one", "together"] = ...,
) -> _Decorator: ...
@refuses_others
def batches(
    handler: _Handler[T] | None = None,
    *,
    size: int = 500,
    linger: float = 0.05,
    by: By = "any",
    max_bytes: int | None = None,
    on_error: Literal["one_by_one", "together"] = "one_by_one",
) -> BatchHandler[T, Any] | _Decorator:
    """Make a handler of many records at once: ``run(batches(save, size=500))``. Also a decorator:
    ``@batches(size=500)``.

    Use it like any handler: by topic, in ``parallel_map``, in Spark. ``handler`` gets a :class:`Batch`. Records of one
    key are in it in order, and are never in two batches at once. ``max_concurrency`` counts calls.

    For a consumer it returns None, outputs of the batch as a whole, or outputs by record: ``{record: outputs}``. For
    items of ``parallel_map`` and rows of Spark it returns a list with one value for each.

    ``size``: most records in a batch.
    ``linger``: seconds that records of a batch that is not full wait for more. They hold no worker meanwhile, and do
    not wait if no more can come (the end of the input, a full buffer). 0: no waiting.
    ``by``: records of a batch are from any partitions of its topics (``"any"``), from one (``"partition"``), or of one
    key (``"lane"``; records without order are batched by partition).
    ``max_bytes``: most bytes of keys, values and headers in a batch of Kafka records; a single record may be larger.
    ``on_error``: an exception fails all records of the batch, each by the failure policy. They run again one by one
    (``"one_by_one"``) or as one batch (``"together"``). RetryLater delays the whole batch. A record is never given up
    for an error of a batch with others: before its retries end it runs alone.

    Raises ConfigurationError.
    """
    check_count("batches size", size)
    check_time("batches linger", linger, zero=True)
    check_choice("batches by", by, ("any", "partition", "lane"))
    if max_bytes is not None:
        check_count("batches max_bytes", max_bytes)
    check_choice("batches on_error", on_error, ("one_by_one", "together"))
    make = functools.partial(_batch_handler, size=size, linger=linger, by=by, max_bytes=max_bytes, on_error=on_error)
    return make if handler is None else make(handler)


def _batch_handler(handler: _Handler[T], **options: Any) -> BatchHandler[T, Any]:
    if isinstance(handler, Mapping):
        raise ConfigurationError(
            "batches handler", handler, 'must be one function; by topic use {"a topic": batches(function)}'
        )
    if isinstance(handler, BatchHandler):
        raise ConfigurationError("batches handler", handler, "is batches(...) already")
    check_async(handler, "batches handler", "one argument, the batch", 1)
    return BatchHandler(handler, **options)
