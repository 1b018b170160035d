"""Runs items of any kind in the engine. They are fed in lists, and their outcomes are read in lists. Plain methods on
one event loop.

The feeder checks :attr:`Flow.room` first. An item counts against the limits of items and of bytes until its outcome has
been read. So a slow reader slows the source down, and no handler waits for capacity.

The size of a result is unknown before its handler has returned. If unread outcomes alone reach the limit of bytes, no
item starts until some of them are read. With outcomes in the order of the input, all may wait for one item: then only
that item may start. Running handlers continue in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence, Set
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar, cast

from aioparallel.config.policies import RetryBudget, RetryPolicy
from aioparallel.engine.flow.sizes import Sized, size_of, size_of_error
from aioparallel.engine.flow.work import Label, OnError, Work
from aioparallel.engine.outcomes.failure_log import FailureLog
from aioparallel.engine.outcomes.failures import Decision
from aioparallel.engine.outcomes.gates import name_woken
from aioparallel.engine.run.processor import Processor
from aioparallel.engine.schedule.lanes import USUAL_KEYS, check_key, length_from
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import Done, NoOutputs
from aioparallel.engine.sources import NO_CEILING, Source
from aioparallel.handlers.batches import Batch, BatchHandler, Batching, Call
from aioparallel.handlers.stack import Batchings, Stack, around, around_batches, coroutine_handler
from aioparallel.records.errors import HandlerCancelled, InvalidValues, Reject, UnreadableRow, WorkCancelled
from aioparallel.records.record import Record
from aioparallel.records.user_errors import RAISED, repr_of
from aioparallel.records.wording import kind_of

__all__ = ["Flow", "FlowStats", "Outcome", "raisable"]

T = TypeVar("T")
R = TypeVar("R")

_MOST_NOTES = 10
# One call of take() returns at most one of so many parts of the limit of bytes. After the limit was reached, items
# start again only when one part is free, or they would stop and start with each outcome.
_PARTS = 8
# Measuring each value cost a tenth of the rate. So while outcomes fill less than one part of the limit, and so many
# values in a row were small, some values are not measured: they count as the last measured one. The number of skipped
# values varies, so that it matches no pattern in the data.
_SMALL = 1_024
_SMALL_ONES = 200
_GAPS = (1, 11, 4, 13, 7, 2, 9, 14, 5, 8)
_ONE_ATTEMPT = RetryPolicy(max_attempts=1)


class Outcome(NamedTuple, Generic[T, R]):
    """How one item ended."""

    item: T
    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    """Its place in the input, from 0."""
    value: R | None
    """What the handler returned; None if it failed."""
    error: Exception | None
    """What the last attempt failed with; None: it succeeded."""
    attempts: int
    """Calls of the handler; 0 where the key function failed already."""
    seconds: float
    """From the start of the first attempt to the end of the last one, with the delays between them."""

    def result(self) -> R:
        """The value. Raises the error of an item that has failed."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class FlowStats(NamedTuple):
    """Counts of items."""

    fed: int
    buffered: int
    """Not started yet."""
    in_flight: int
    parked: int
    """Waiting for their next attempt."""
    unread: int
    """Ended, and their outcomes not taken."""
    succeeded: int
    failed: int
    """For good."""
    failed_attempts: int
    longest_lane: int
    """Items of the key with most of them, ended ones not counted."""


class _Item(Record[Any, Any]):
    """An item as a record of the engine: ``offset`` is its index, ``value`` the item."""

    __slots__ = ()

    # Instead of slots, because they are equal for all items.
    topic = ""
    partition = 0
    headers = ()
    timestamp = -1

    @property
    def place(self) -> str:
        """The label of the item."""
        source = self._source
        assert isinstance(source, _Items)
        return source.name_of(self.value, self.offset)


class _Items(Source):
    __slots__ = ("_label",)

    def __init__(self, label: Label | None) -> None:
        super().__init__("items")
        self._label = label

    def name_of(self, item: object, index: int) -> str:
        """Return the name of an item in messages."""
        if self._label is not None:
            try:
                return str(self._label(item, index))
            except RAISED as error:
                return f"item {index} (its label raised {type(error).__name__})"
        return f"item {index}"


class _ItemLog(FailureLog):
    def __init__(self, on_error: OnError) -> None:
        super().__init__()
        self._at_the_end = 'no more attempts: it is left out (on_error="skip")' if on_error == "skip" else None

    def following(self, decision: Decision) -> str | None:
        """Nothing at the end of an item, unless it is skipped: the outcome, or the raised error, reports it."""
        return self._at_the_end if decision.delay is None else super().following(decision)


def _values(values: object, count: int) -> Sequence[Any]:
    """Return the values that a batch handler returned, one for each item. Raises InvalidValues."""
    wanted = f"the handler of a batch of {count} must return one value for each, a list of {count}"
    if isinstance(values, str | bytes | Mapping | Set) or not (
        hasattr(values, "__len__") and hasattr(values, "__iter__")
    ):
        raise InvalidValues(f"{wanted}; it returned {'None' if values is None else kind_of(values)}")
    found = list(cast("Iterable[Any]", values))
    if len(found) != count:
        raise InvalidValues(f"{wanted}; it returned {len(found)}")
    return found


def _note(error: BaseException, text: str) -> None:
    """Add a note, if possible. Some exceptions accept none, and one object may be raised for many items."""
    with contextlib.suppress(Exception):
        notes = getattr(error, "__notes__", ())
        if len(notes) < _MOST_NOTES and text not in notes:
            error.add_note(text)


def raisable(failure: BaseException) -> BaseException:
    """Return the error, or a RuntimeError for one that a generator must not raise: the interpreter would hide it, or
    the reader would take it for the end of the generator."""
    if not isinstance(failure, StopIteration | StopAsyncIteration | GeneratorExit):
        return failure
    error = RuntimeError(f"the handler raised {repr_of(failure)}")
    error.__cause__ = failure
    for note in getattr(failure, "__notes__", ()):
        error.add_note(note)
    return error


def _note_exit(error: BaseException, item: Record[Any, Any] | Call) -> None:
    """Note the item in an error that ends the run. Nothing else would say where the error comes from."""
    if not isinstance(error, Exception | asyncio.CancelledError):
        _note(error, f"raised by the handler for {item.place}")


class Flow(Generic[T, R]):
    """Processes items as ``work`` describes. Make it and use it within one event loop.

    ``on_ready()`` is called when there is something to take, or when nothing more will come. ``on_room()`` is called
    when items may be fed again. Both are called in the middle of the engine's work.
    """

    def __init__(self, work: Work[T, R], *, on_ready: Callable[[], None], on_room: Callable[[], None]) -> None:
        handling = work.handling
        self._on_error = work.on_error
        self._advice = work.advice
        self._on_ready = on_ready
        self._on_room = on_room
        self._key = handling.order_by
        self.bound = work.bound
        """The most items that may be fed while their outcomes are not read."""
        self._close_timeout = handling.drain_timeout
        self._source = _Items(work.label)
        self._ready: deque[Outcome[T, R]] = deque()  # to be taken
        self._sizes: deque[int] = deque()  # of these outcomes, each with its item
        # With in_order: outcomes, with their sizes, that ended before an earlier item. None: left out.
        self._early: dict[int, tuple[Outcome[T, R], int] | None] | None = {} if work.in_order else None
        self._next = 0  # the index of the next outcome, with in_order
        self._began: dict[int, float] = {}  # when the first attempt began, of items that have failed before
        self._fed = 0
        self._outstanding = 0  # items fed whose outcomes are not read
        self._taken = 0  # outcomes of the last take(), which count as unread until the next one
        self._is_measured = work.max_buffered_bytes is not None
        self._most_bytes = work.max_buffered_bytes or sys.maxsize
        self._part_bytes = self._most_bytes // _PARTS
        self._running_bytes = 0  # of items that have not ended
        self._ended_bytes = 0  # of unread outcomes and their items
        self._taken_bytes = 0
        self._usual_bytes = 1  # the mean size of the items that were fed last
        self._last_bytes = 0  # of the last measured value
        self._small_ones = 0  # values measured since the last large one
        self._unmeasured = 0  # how many of the next values count as the last measured one
        self._gaps = itertools.cycle(_GAPS)
        self._is_full = False  # outcomes have reached the limit of bytes: nothing starts
        self._failed = 0
        self.ended = False
        """Whether :meth:`end` was called."""
        self.failure: BaseException | None = None
        """The error that has ended the flow early."""
        signals = Signals()
        signals.fatal = self._fail
        self._log = _ItemLog(work.on_error)
        self._processor = Processor(
            self._stack(work),
            # All fed items may wait for their next attempt. The room bounds them.
            dataclasses.replace(handling, order_by=None, max_parked=self.bound + 2 * handling.max_concurrency),
            RetryBudget(work.retry or _ONE_ATTEMPT, "dead_letter"),
            signals,
            dead_letter_sink=_GivenUp(self),
            log=self._log,
        )
        self._scheduler = self._processor.scheduler

    # -- in ---------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many items may be fed now. A limit of bytes is divided by the mean size of the last items."""
        left = self._most_bytes - self._running_bytes - self._ended_bytes
        if self.failure is not None or left <= 0:
            return 0
        return min(self.bound - self._outstanding, max(1, left // self._usual_bytes))

    @property
    def bytes_left(self) -> int | None:
        """Bytes that may be fed now; None: no limit."""
        return self._most_bytes - self._running_bytes - self._ended_bytes if self._is_measured else None

    def feed(self, items: Sequence[T], size: int | None = None) -> None:
        """Run these items after those fed before. ``size``: bytes of each item; None: they are measured. Raises
        ValueError if there are more items than :attr:`bound` allows."""
        if self.ended:
            raise ValueError("no more items were to come: end() was called")
        if self.failure is not None:
            return  # no outcome will be read
        room = self.bound - self._outstanding
        if len(items) > room:  # bytes are not checked: results may have come while the items were read
            raise ValueError(f"{len(items)} items for a room of {room}")
        first, self._fed = self._fed, self._fed + len(items)
        self._outstanding += len(items)
        try:
            self._admit(items, first, size if self._is_measured else 0)
        except asyncio.CancelledError as error:  # raised by a key itself: nothing is awaited here
            failure = WorkCancelled("the key of an item, when it was compared with others,")
            self._fail(failure)
            raise failure from error
        except BaseException as error:  # the == of a key has raised, and the lanes are in an unknown state
            self._fail(error)
            raise

    def _admit(self, items: Sequence[T], first: int, size: int | None) -> None:
        records, new, key, before = [], _Item.__new__, self._key, self._running_bytes
        without_key: list[tuple[Record[Any, Any], Exception]] = []
        for index, item in enumerate(items, first):
            record: Record[Any, Any] = new(_Item)
            record.offset, record.value = index, item
            record._parks, record._history = 0, None
            record._size = size if size is not None else size_of(item)
            self._running_bytes += record._size
            if key is None:
                record.key = None
            else:
                try:
                    record.key = key(item)
                    if type(record.key) not in USUAL_KEYS:
                        check_key(record.key)
                except Exception as error:
                    without_key.append((record, error))
                    continue
                except asyncio.CancelledError:  # raised by the function itself: nothing is awaited here
                    without_key.append((record, HandlerCancelled()))
                    continue
                except BaseException as error:
                    record._source = self._source
                    _note(error, f"raised by the key function for {record.place}")
                    raise
            records.append(record)
        self._usual_bytes = max(1, (self._running_bytes - before) // max(1, len(items)))
        self._processor.admit(self._source, records)
        self._processor.set_no_more_input(self._source, not self.room)
        for record, failure in without_key:  # last, because the callbacks may feed more
            self._key_failed(record, failure)

    def end(self) -> None:
        """End the input: nothing more will be fed."""
        self.ended = True
        self._processor.set_no_more_input(self._source, True)
        if not self._outstanding:
            self._on_ready()

    def _key_failed(self, record: Record[Any, Any], error: Exception) -> None:
        record._source = self._source
        if isinstance(error, Reject | UnreadableRow):  # their messages are complete
            _note(error, f"for {record.place}; {self._advice}")
        else:
            _note(
                error, f"from the key function, for {record.place}: a key is any hashable value, or None for no order"
            )
        self._log.decided(record, error, Decision(end="dead_letter"), time.monotonic())
        self._give_up(record, error, attempts=0)

    # -- out --------------------------------------------------------------------------------------------

    def take(self, at_most: int = sys.maxsize) -> Sized[Outcome[T, R]]:
        """Return outcomes, as the items end or in the order of the input. They have at most an eighth of the limit of
        bytes. They count as read at the next call."""
        if self._taken:
            self._outstanding -= self._taken
            self._ended_bytes -= self._taken_bytes
            self._taken = self._taken_bytes = 0
            if self._is_full and self._ended_bytes < self._most_bytes - self._part_bytes:
                self._is_full = False
                self._set_ceiling()
            self._processor.set_no_more_input(self._source, self.ended or not self.room)
            self._on_room()
        ready, sizes = self._ready, self._sizes
        size, most = sum(sizes), self._part_bytes
        if at_most >= len(ready) and size <= most:
            taken = Sized(ready, size)
            ready.clear()
            sizes.clear()
        else:
            taken = Sized((), 0)
            while ready and len(taken) < at_most and (not taken or taken.size + sizes[0] <= most):
                taken.append(ready.popleft())
                taken.size += sizes.popleft()
        self._taken, self._taken_bytes = len(taken), taken.size
        if self._is_full:
            self._set_ceiling()
        return taken

    @property
    def finished(self) -> bool:
        """Whether all outcomes are taken and nothing more will come, or :attr:`failure` has ended the flow."""
        return self.failure is not None or (self.ended and not self._outstanding - self._taken)

    def stats(self) -> FlowStats:
        """Return a snapshot. Takes time in proportion to the number of keys in work."""
        scheduler = self._scheduler
        scheduler.flush_counters()
        early = sum(1 for outcome in (self._early or {}).values() if outcome is not None)
        return FlowStats(
            fed=self._fed,
            buffered=scheduler.buffered,
            in_flight=scheduler.counters.in_flight,
            parked=scheduler.parked,
            unread=len(self._ready) + early,
            succeeded=scheduler.counters.succeeded,
            failed=self._failed,
            failed_attempts=scheduler.counters.failed_attempts,
            longest_lane=max((length_from(head) for head in scheduler.heads()), default=0),
        )

    def pause(self) -> None:
        """Start nothing more."""
        self._scheduler.pause()

    async def close(self) -> None:
        """Start nothing more, cancel running handlers, and wait for them for ``drain_timeout`` seconds at most.

        Outcomes that were not taken are lost. No item is referenced afterwards: an error may outlive the flow, and
        refer to it."""
        self._scheduler.stop(self._source)
        await self._processor.close(self._close_timeout)
        self._scheduler.drop(self._source)
        self._ready.clear()
        self._sizes.clear()
        self._began.clear()
        if self._early:
            self._early.clear()

    # -- how items end ----------------------------------------------------------------------------------

    def _stack(self, work: Work[T, R]) -> Stack:
        handler, middleware = cast("Any", work.handler), work.handling.middleware
        if isinstance(handler, BatchHandler):
            run = self._batch_handler(around_batches(handler, middleware), work.copy)
            return Stack(handler, Batchings({}, Batching(handler, run)))
        handle = coroutine_handler(around(handler, middleware))
        return Stack(self._record_handler(cast("Callable[[T], Awaitable[R]]", handle), work.copy))

    def _batch_handler(
        self, handle: Callable[[Any], Awaitable[Any]], copy: Callable[[T], T] | None
    ) -> Callable[[Call], Coroutine[Any, Any, None]]:
        """Return the batch handler that the engine calls. It adds the outcomes of the items that succeeded."""

        async def run(call: Call) -> None:
            began, records = perf_counter(), call.records
            out: Collection[int] = range(len(records))  # places of the items that have no outcome yet
            values: Sequence[R] = ()
            try:
                items = [record.value if copy is None else copy(record.value) for record in records]
                values = _values(await handle(Batch(items, call)), len(records))
                out = call.blocked(call.failures) | call.failures.keys()
            except BaseException as error:
                _note_exit(error, call)
                raise
            finally:
                for place in out:
                    self._began.setdefault(records[place].offset, began)
            for place, record in enumerate(records):
                if place in out:
                    continue
                attempts, first = 1, began
                if record._history is not None:
                    attempts, first = record.attempt, self._began.pop(record.offset, began)
                self._add(record, values[place], None, attempts, perf_counter() - first)

        return run

    def _record_handler(
        self, handle: Callable[[T], Awaitable[R]], copy: Callable[[T], T] | None
    ) -> Callable[[Record[Any, Any]], Coroutine[Any, Any, None]]:
        """Return the handler that the engine calls. It adds the outcome itself and returns None, because an output sink
        would take three times as long for each item."""

        async def run(record: Record[Any, Any]) -> None:
            began = perf_counter()
            if record._parks:
                name_woken(record)
            try:
                value = await handle(record.value if copy is None else copy(record.value))
            except BaseException as error:
                self._began.setdefault(record.offset, began)
                _note_exit(error, record)
                raise
            attempts = 1
            if record._history is not None:
                attempts, began = record.attempt, self._began.pop(record.offset, began)
            self._add(record, value, None, attempts, perf_counter() - began)

        return run

    def _add(
        self, record: Record[Any, Any], value: R | None, error: Exception | None, attempts: int, seconds: float
    ) -> None:
        size = record._size
        self._running_bytes -= size
        if self._is_measured:
            ended = self._ended_bytes
            if self._unmeasured and error is None and ended < self._part_bytes:
                self._unmeasured -= 1
                size += self._last_bytes
            else:
                size += self._measured(value) if error is None else size_of_error(error)
            self._ended_bytes = ended = ended + size
            if ended >= self._most_bytes and not self._is_full:
                self._is_full = True
                self._set_ceiling()
                self._processor.set_no_more_input(self._source, True)
        outcome = Outcome(record.value, record.offset, value, error, attempts, seconds)
        if self._early is not None:
            self._add_in_order(record.offset, (outcome, size))
            return
        ready = self._ready
        ready.append(outcome)
        self._sizes.append(size)
        if len(ready) == 1:
            self._on_ready()

    def _measured(self, value: object) -> int:
        self._last_bytes = size_of(value)
        self._small_ones = self._small_ones + 1 if self._last_bytes < _SMALL else 0
        self._unmeasured = next(self._gaps) if self._small_ones > _SMALL_ONES else 0
        return self._last_bytes

    def _add_in_order(self, index: int, ended: tuple[Outcome[T, R], int] | None) -> None:
        early, ready = self._early, self._ready
        assert early is not None
        early[index] = ended
        count = len(ready)
        while self._next in early:
            following = early.pop(self._next)
            self._next += 1
            if following is not None:
                ready.append(following[0])
                self._sizes.append(following[1])
            else:
                self._leave_out()
        if self._is_full:
            self._set_ceiling()
        if not count and ready:
            self._on_ready()

    def _set_ceiling(self) -> None:
        """Let all items start. If outcomes have reached the limit of bytes: none while there is something to read, else
        only the item for which all others wait."""
        if not self._is_full:
            ceiling = NO_CEILING
        else:
            ceiling = -1 if self._early is None or self._ready or self._taken else self._next
        if ceiling != self._source.map_ceiling:
            self._scheduler.set_ceiling(self._source, ceiling)
            self._processor.notify()

    def _give_up(self, record: Record[Any, Any], error: Exception, attempts: int) -> None:
        began = self._began.pop(record.offset, None)
        self._failed += 1
        if self._on_error == "emit":
            self._add(record, None, error, attempts, 0.0 if began is None else perf_counter() - began)
        elif self._on_error == "skip":
            self._running_bytes -= record._size
            if self._early is not None:
                self._add_in_order(record.offset, None)
            else:
                self._leave_out()
        else:
            # If the key function failed, a note says so already. A batch fails with one error for all of its items.
            if attempts and self.failure is None:
                times = f"{attempts} attempt{'s' if attempts > 1 else ''}"
                _note(error, f"{record.place} failed for good after {times}; {self._advice}")
            self._fail(error)

    def _leave_out(self) -> None:
        """Count an item that gets no outcome."""
        self._outstanding -= 1
        self._on_room()
        if self.finished:
            self._on_ready()

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self._scheduler.pause()
            self._on_ready()


class _GivenUp(NoOutputs):
    """Takes the items that have failed for good."""

    def __init__(self, flow: Flow[Any, Any]) -> None:
        self._flow = flow

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """End the item. Its lane continues in the next turn of the loop."""
        self._flow._give_up(record, error, record.attempt)
        asyncio.get_running_loop().call_soon(done, record, None)
