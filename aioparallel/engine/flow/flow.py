"""Items of any kind through the engine: fed in lists, their outcomes taken in lists. Plain methods on one event loop.

Whoever feeds it asks for :attr:`Flow.room` first. What is fed counts against the bounds, of items and of bytes, until
its outcome has been read, so a slow reader slows the source down and no handler ever waits for room.

What handlers will return nobody knows. So where outcomes that nobody has read fill the bound of bytes by themselves,
nothing is started until some of them are read. In the order of the input they may all wait for one item: then that one
may start; and whatever runs goes on.
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
# One call of take() gives one of so many parts of the bytes that outcomes may have; nothing starts again before one of
# them is free: not to and fro with each.
_PARTS = 8
# Measuring each value took a tenth of the rate. So while outcomes fill less than one of these parts, and so many values
# in a row were small, some are not measured, and count as the last one that was. How many changes, to fit no pattern.
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
    """An item in the engine's clothes: ``offset`` is its index, ``value`` the item."""

    __slots__ = ()

    # In place of the slots: every item has the same.
    topic = ""
    partition = 0
    headers = ()
    timestamp = -1

    @property
    def place(self) -> str:
        """What the label says."""
        source = self._source
        assert isinstance(source, _Items)
        return source.name_of(self.value, self.offset)


class _Items(Source):
    __slots__ = ("_label",)

    def __init__(self, label: Label | None) -> None:
        super().__init__("items")
        self._label = label

    def name_of(self, item: object, index: int) -> str:
        """In messages."""
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
        """An outcome, and what is raised, tell of the end by themselves."""
        return self._at_the_end if decision.delay is None else super().following(decision)


def _values(values: object, count: int) -> Sequence[Any]:
    """One for each item. Raises InvalidValues."""
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
    """Some exceptions take no notes, and one object may be raised for many items."""
    with contextlib.suppress(Exception):
        notes = getattr(error, "__notes__", ())
        if len(notes) < _MOST_NOTES and text not in notes:
            error.add_note(text)


def raisable(failure: BaseException) -> BaseException:
    """A generator may not raise some: the interpreter would say so, and not of which item they are; or whoever iterates
    would take it for the generator's end."""
    if not isinstance(failure, StopIteration | StopAsyncIteration | GeneratorExit):
        return failure
    error = RuntimeError(f"the handler raised {repr_of(failure)}")
    error.__cause__ = failure
    for note in getattr(failure, "__notes__", ()):
        error.add_note(note)
    return error


def _note_exit(error: BaseException, item: Record[Any, Any] | Call) -> None:
    """What is no failure of an item ends all: nothing else will say where it comes from."""
    if not isinstance(error, Exception | asyncio.CancelledError):
        _note(error, f"raised by the handler for {item.place}")


class Flow(Generic[T, R]):
    """Does ``work`` on items. Made, and used, within one event loop.

    ``on_ready()`` hears that there is something to take, or nothing more to come, and ``on_room()`` that there is room
    again; both are called amid the engine's work.
    """

    def __init__(self, work: Work[T, R], *, on_ready: Callable[[], None], on_room: Callable[[], None]) -> None:
        handling = work.handling
        self._on_error = work.on_error
        self._advice = work.advice
        self._on_ready = on_ready
        self._on_room = on_room
        self._key = handling.order_by
        self.bound = work.bound
        """Items fed whose outcomes are not read, at most."""
        self._closing_time = handling.drain_timeout
        self._source = _Items(work.label)
        self._ready: deque[Outcome[T, R]] = deque()  # to be taken
        self._sizes: deque[int] = deque()  # of these, with their items
        # With in_order: those that have ended before one in front of them, and their sizes; None for one left out.
        self._early: dict[int, tuple[Outcome[T, R], int] | None] | None = {} if work.in_order else None
        self._next = 0  # the index of the next outcome, with in_order
        self._began: dict[int, float] = {}  # of items that have failed before: start of the first attempt
        self._fed = 0
        self._outstanding = 0  # fed, and the outcome not read
        self._lent = 0  # outcomes of the last take()
        self._is_measured = work.max_buffered_bytes is not None
        self._most_bytes = work.max_buffered_bytes or sys.maxsize
        self._part_bytes = self._most_bytes // _PARTS
        self._running_bytes = 0  # of items that have not ended
        self._ended_bytes = 0  # of outcomes that are not read, and of their items
        self._lent_bytes = 0
        self._usual_bytes = 1  # of an item
        self._last_bytes = 0  # of the last value that was measured
        self._small_ones = 0  # that were measured since a larger one
        self._unmeasured = 0  # values that count as the last one
        self._gaps = itertools.cycle(_GAPS)
        self._is_full = False  # of outcomes: nothing starts
        self._failed = 0
        self.ended = False
        """Whether :meth:`end` was called."""
        self.failure: BaseException | None = None
        """What has ended it before its time."""
        signals = Signals()
        signals.fatal = self._fail
        self._log = _ItemLog(work.on_error)
        self._processor = Processor(
            self._stack(work),
            # All that is fed may wait for its next attempt: what bounds it is the room.
            dataclasses.replace(handling, order_by=None, max_parked=self.bound + 2 * handling.max_concurrency),
            RetryBudget(work.retry or _ONE_ATTEMPT, "dead_letter"),
            signals,
            dead_letter_sink=_Failed(self),
            log=self._log,
        )
        self._scheduler = self._processor.scheduler

    # -- in ---------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Items that may be fed now; where bytes are bounded, by the mean size of those that were fed last."""
        left = self._most_bytes - self._running_bytes - self._ended_bytes
        if self.failure is not None or left <= 0:
            return 0
        return min(self.bound - self._outstanding, max(1, left // self._usual_bytes))

    @property
    def bytes_left(self) -> int | None:
        """Until nothing may be fed; None: bytes are not bounded."""
        return self._most_bytes - self._running_bytes - self._ended_bytes if self._is_measured else None

    def feed(self, items: Sequence[T], size: int | None = None) -> None:
        """Run these, after those before. ``size``: bytes of each; None: they are measured. Raises ValueError where
        there is no room for them."""
        if self.ended:
            raise ValueError("no more items were to come: end() was called")
        if self.failure is not None:
            return  # nobody will read of them
        room = self.bound - self._outstanding
        if len(items) > room:  # bytes are not looked at: results may have come while the items were read
            raise ValueError(f"{len(items)} items for a room of {room}")
        first, self._fed = self._fed, self._fed + len(items)
        self._outstanding += len(items)
        try:
            self._admit(items, first, size if self._is_measured else 0)
        except asyncio.CancelledError as error:  # of its own: nothing is awaited there
            failure = WorkCancelled("the key of an item, when it was compared with others,")
            self._fail(failure)
            raise failure from error
        except BaseException as error:  # a key whose == raises, amid the lanes: nobody can tell what is where
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
                except asyncio.CancelledError:  # nothing is awaited here, so it is the function's own
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
        for record, failure in without_key:  # last: who hears of it may feed more
            self._key_failed(record, failure)

    def end(self) -> None:
        """Nothing more will be fed."""
        self.ended = True
        self._processor.set_no_more_input(self._source, True)
        if not self._outstanding:
            self._on_ready()

    def _key_failed(self, record: Record[Any, Any], error: Exception) -> None:
        record._source = self._source
        if isinstance(error, Reject | UnreadableRow):  # these say what is wrong
            _note(error, f"for {record.place}; {self._advice}")
        else:
            _note(
                error, f"from the key function, for {record.place}: a key is any hashable value, or None for no order"
            )
        self._log.decided(record, error, Decision(end="dead_letter"), time.monotonic())
        self._end_badly(record, error, attempts=0, seconds=0.0)

    # -- out --------------------------------------------------------------------------------------------

    def take(self, at_most: int = sys.maxsize) -> Sized[Outcome[T, R]]:
        """Outcomes, as the items end, or in the order of the input, an eighth of the bytes at most that there may be of
        them. What one call gives is read when the next comes."""
        if self._lent:
            self._outstanding -= self._lent
            self._ended_bytes -= self._lent_bytes
            self._lent = self._lent_bytes = 0
            if self._is_full and self._ended_bytes < self._most_bytes - self._part_bytes:
                self._start_again()
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
        self._lent, self._lent_bytes = len(taken), taken.size
        if self._is_full:
            self._set_ceiling()
        return taken

    @property
    def finished(self) -> bool:
        """Whether all that was fed has been read, and nothing more will come; or :attr:`failure` has ended it."""
        return self.failure is not None or (self.ended and not self._outstanding - self._lent)

    def stats(self) -> FlowStats:
        """A snapshot. Takes time by the number of keys in work."""
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
        """Cancel what runs and wait for it, ``drain_timeout`` seconds at most; start nothing more. Outcomes that nobody
        has taken are lost, and nothing of the items is kept: an error may outlive the flow, and hold it."""
        self._scheduler.stop(self._source)
        await self._processor.close(self._closing_time)
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
            run = self._told_together(around_batches(handler, middleware), work.copy)
            return Stack(handler, Batchings({}, Batching(handler, run)))
        handle = coroutine_handler(around(handler, middleware))
        return Stack(self._told(cast("Callable[[T], Awaitable[R]]", handle), work.copy))

    def _told_together(
        self, handle: Callable[[Any], Awaitable[Any]], copy: Callable[[T], T] | None
    ) -> Callable[[Call], Coroutine[Any, Any, None]]:
        """The batch handler of the records around items. It tells of those that have succeeded."""

        async def run(call: Call) -> None:
            began, records = perf_counter(), call.records
            out: Collection[int] = range(len(records))  # of the call, and not to be told of
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
                outcome = Outcome(record.value, record.offset, values[place], None, attempts, perf_counter() - first)
                self._give(outcome, record._size)

        return run

    def _told(
        self, handle: Callable[[T], Awaitable[R]], copy: Callable[[T], T] | None
    ) -> Callable[[Record[Any, Any]], Coroutine[Any, Any, None]]:
        """The handler of the record around an item. It tells of success itself and returns None: a sink would take
        three times as long for each."""

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
            self._give(
                Outcome(record.value, record.offset, value, None, attempts, perf_counter() - began), record._size
            )

        return run

    def _give(self, outcome: Outcome[T, R], size: int) -> None:
        """``size``: of its item."""
        self._running_bytes -= size
        if self._is_measured:
            ended = self._ended_bytes
            if self._unmeasured and outcome.error is None and ended < self._part_bytes:
                self._unmeasured -= 1
                size += self._last_bytes
            elif outcome.error is None:
                size += self._measured(outcome.value)
            else:
                size += size_of_error(outcome.error)
            self._ended_bytes = ended = ended + size
            if ended >= self._most_bytes and not self._is_full:
                self._start_no_more()
        if self._early is not None:
            self._give_in_order(outcome.index, (outcome, size))
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

    def _give_in_order(self, index: int, given: tuple[Outcome[T, R], int] | None) -> None:
        early, ready, sizes = self._early, self._ready, self._sizes
        assert early is not None
        early[index] = given
        count = len(ready)
        while self._next in early:
            following = early.pop(self._next)
            self._next += 1
            if following is not None:
                ready.append(following[0])
                sizes.append(following[1])
            else:
                self._left_out()
        if self._is_full:
            self._set_ceiling()
        if not count and ready:
            self._on_ready()

    def _start_no_more(self) -> None:
        """Outcomes fill the bound of bytes."""
        self._is_full = True
        self._set_ceiling()
        self._processor.set_no_more_input(self._source, True)

    def _start_again(self) -> None:
        self._is_full = False
        self._set_ceiling()

    def _set_ceiling(self) -> None:
        """All may start; or none, while there is something to read; or only that which all others wait for."""
        if not self._is_full:
            ceiling = NO_CEILING
        else:
            ceiling = -1 if self._early is None or self._ready or self._lent else self._next
        if ceiling != self._source.map_ceiling:
            self._scheduler.set_ceiling(self._source, ceiling)
            self._processor.notify()

    def _end_badly(self, record: Record[Any, Any], error: Exception, *, attempts: int, seconds: float) -> None:
        """This item has failed for good."""
        self._failed += 1
        if self._on_error == "emit":
            self._give(Outcome(record.value, record.offset, None, error, attempts, seconds), record._size)
        elif self._on_error == "skip":
            self._running_bytes -= record._size
            if self._early is not None:
                self._give_in_order(record.offset, None)
            else:
                self._left_out()
        else:
            # Without attempts it was the key function, and a note says so; a batch fails with one error for all.
            if attempts and self.failure is None:
                times = f"{attempts} attempt{'s' if attempts > 1 else ''}"
                more = self._advice
                _note(error, f"{record.place} failed for good after {times}; {more}")
            self._fail(error)

    def _left_out(self) -> None:
        """An item whose outcome nobody will read."""
        self._outstanding -= 1
        self._on_room()
        if self.finished:
            self._on_ready()

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self._scheduler.pause()
            self._on_ready()

    def _put_away(self, record: Record[Any, Any], error: Exception) -> None:
        began = self._began.pop(record.offset, None)
        seconds = 0.0 if began is None else perf_counter() - began
        self._end_badly(record, error, attempts=record.attempt, seconds=seconds)


class _Failed(NoOutputs):
    """Takes items that have failed for good."""

    def __init__(self, flow: Flow[Any, Any]) -> None:
        self._flow = flow

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Tell of it; its lane goes on in the next turn."""
        self._flow._put_away(record, error)
        asyncio.get_running_loop().call_soon(done, record, None)
