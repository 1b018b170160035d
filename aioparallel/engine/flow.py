"""Items of any kind through the engine: fed in lists, their outcomes taken in lists. Plain methods on one event loop.

Whoever feeds it asks for :attr:`Flow.room` first. What is fed counts against the bound until its outcome has been read,
so a slow reader slows the source down and no handler ever waits for room.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence, Set
from time import perf_counter
from types import CoroutineType
from typing import Any, Generic, NamedTuple, TypeVar, cast

from aioparallel.batches import Batch, BatchHandler, Batching, Call
from aioparallel.engine.failure_log import FailureLog
from aioparallel.engine.failures import Decision
from aioparallel.engine.gates import name_woken
from aioparallel.engine.lanes import length_from
from aioparallel.engine.outlets import Done, NoOutlet
from aioparallel.engine.processor import Processor
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.engine.work import Label, OnError, Work
from aioparallel.errors import HandlerCancelled, InvalidValues, WorkCancelled
from aioparallel.handlers import Batchings, Stack, around, around_batches, coroutine_handler
from aioparallel.policies import Patience, RetryPolicy
from aioparallel.records import Record
from aioparallel.user_errors import RAISED
from aioparallel.wording import kind_of

__all__ = ["Flow", "FlowStats", "Outcome"]

T = TypeVar("T")
R = TypeVar("R")

_MOST_NOTES = 10
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
    _size = 0

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
        # With in_order: those that have ended before one in front of them; None in the place of one left out.
        self._early: dict[int, Outcome[T, R] | None] | None = {} if work.in_order else None
        self._next = 0  # the index of the next outcome, with in_order
        self._began: dict[int, float] = {}  # of items that have failed before: start of the first attempt
        self._fed = 0
        self._outstanding = 0  # fed, and the outcome not read
        self._lent = 0  # outcomes of the last take()
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
            Patience(work.retry or _ONE_ATTEMPT, "dead_letter"),
            signals,
            disposal=_Failed(self),
            log=self._log,
        )
        self._scheduler = self._processor.scheduler

    # -- in ---------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Items that may be fed now."""
        return 0 if self.failure is not None else self.bound - self._outstanding

    def feed(self, items: Sequence[T]) -> None:
        """Run these, after those before. Raises ValueError where there is no room for them."""
        if self.ended:
            raise ValueError("no more items were to come: end() was called")
        if self.failure is not None:
            return  # nobody will read of them
        if len(items) > self.room:
            raise ValueError(f"{len(items)} items for a room of {self.room}")
        first, self._fed = self._fed, self._fed + len(items)
        self._outstanding += len(items)
        try:
            self._admit(items, first)
        except asyncio.CancelledError as error:  # of its own: nothing is awaited there
            failure = WorkCancelled("the key of an item, when it was compared with others,")
            self._fail(failure)
            raise failure from error
        except BaseException as error:  # a key whose == raises, amid the lanes: nobody can tell what is where
            self._fail(error)
            raise

    def _admit(self, items: Sequence[T], first: int) -> None:
        records, new, key = [], _Item.__new__, self._key
        without_key: list[tuple[Record[Any, Any], Exception]] = []
        for index, item in enumerate(items, first):
            record: Record[Any, Any] = new(_Item)
            record.offset, record.value = index, item
            record._parks, record._history = 0, None
            if key is None:
                record.key = None
            else:
                try:
                    record.key = key(item)
                    if type(record.key) is CoroutineType:  # each would be a key of its own
                        record.key.close()
                        raise TypeError("the key function gave a coroutine: it must be a plain function")  # noqa: TRY301
                    hash(record.key)
                except Exception as error:
                    without_key.append((record, error))
                    continue
                except asyncio.CancelledError:  # nothing is awaited here, so it is the function's own
                    without_key.append((record, HandlerCancelled()))
                    continue
            records.append(record)
        self._processor.admit(self._source, records)
        self._processor.set_sated(self._source, not self.room)
        for record, failure in without_key:  # last: who hears of it may feed more
            self._key_failed(record, failure)

    def end(self) -> None:
        """Nothing more will be fed."""
        self.ended = True
        self._processor.set_sated(self._source, True)
        if not self._outstanding:
            self._on_ready()

    def _key_failed(self, record: Record[Any, Any], error: Exception) -> None:
        record._source = self._source
        _note(error, f"from the key function, for {record.place}: a key is any hashable value, or None for no order")
        self._log.decided(record, error, Decision(end="dead_letter"), time.monotonic())
        self._end_badly(record, error, attempts=0, seconds=0.0)

    # -- out --------------------------------------------------------------------------------------------

    def take(self, at_most: int = sys.maxsize) -> list[Outcome[T, R]]:
        """Outcomes, as the items end, or in the order of the input. What one call gives is read when the next comes."""
        if self._lent:
            self._outstanding -= self._lent
            self._lent = 0
            self._processor.set_sated(self._source, self.ended)
            self._on_room()
        ready = self._ready
        if at_most >= len(ready):
            taken = list(ready)
            ready.clear()
        else:
            taken = [ready.popleft() for _ in range(at_most)]
        self._lent = len(taken)
        return taken

    @property
    def finished(self) -> bool:
        """Whether all that was fed has been read, and nothing more will come; or :attr:`failure` has ended it."""
        return self.failure is not None or (self.ended and not self._outstanding - self._lent)

    def stats(self) -> FlowStats:
        """A snapshot. Takes time by the number of keys in work."""
        scheduler = self._scheduler
        scheduler.keep_books()
        early = sum(1 for outcome in (self._early or {}).values() if outcome is not None)
        return FlowStats(
            fed=self._fed,
            buffered=scheduler.buffered,
            in_flight=scheduler.tally.in_flight,
            parked=scheduler.parked,
            unread=len(self._ready) + early,
            succeeded=scheduler.tally.succeeded,
            failed=self._failed,
            failed_attempts=scheduler.tally.failed_attempts,
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
            finally:
                for place in out:
                    self._began.setdefault(records[place].offset, began)
            for place, record in enumerate(records):
                if place in out:
                    continue
                attempts, first = 1, began
                if record._history is not None:
                    attempts, first = record.attempt, self._began.pop(record.offset, began)
                self._give(Outcome(record.value, record.offset, values[place], None, attempts, perf_counter() - first))

        return run

    def _told(
        self, handle: Callable[[T], Awaitable[R]], copy: Callable[[T], T] | None
    ) -> Callable[[Record[Any, Any]], Coroutine[Any, Any, None]]:
        """The handler of the record around an item. It tells of success itself and returns None: an outlet would take
        three times as long for each."""

        async def run(record: Record[Any, Any]) -> None:
            began = perf_counter()
            if record._parks:
                name_woken(record)
            try:
                value = await handle(record.value if copy is None else copy(record.value))
            except BaseException as error:
                self._began.setdefault(record.offset, began)
                if isinstance(error, SystemExit | KeyboardInterrupt):  # nothing else will say where it comes from
                    _note(error, f"raised by the handler for {record.place}")
                raise
            attempts = 1
            if record._history is not None:
                attempts, began = record.attempt, self._began.pop(record.offset, began)
            self._give(Outcome(record.value, record.offset, value, None, attempts, perf_counter() - began))

        return run

    def _give(self, outcome: Outcome[T, R]) -> None:
        if self._early is not None:
            self._give_in_order(outcome.index, outcome)
            return
        ready = self._ready
        ready.append(outcome)
        if len(ready) == 1:
            self._on_ready()

    def _give_in_order(self, index: int, outcome: Outcome[T, R] | None) -> None:
        early, ready = self._early, self._ready
        assert early is not None
        early[index] = outcome
        count = len(ready)
        while self._next in early:
            following = early.pop(self._next)
            self._next += 1
            if following is not None:
                ready.append(following)
            else:
                self._left_out()
        if not count and ready:
            self._on_ready()

    def _end_badly(self, record: Record[Any, Any], error: Exception, *, attempts: int, seconds: float) -> None:
        """This item has failed for good."""
        self._failed += 1
        if self._on_error == "emit":
            self._give(Outcome(record.value, record.offset, None, error, attempts, seconds))
        elif self._on_error == "skip":
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


class _Failed(NoOutlet):
    """Takes items that have failed for good."""

    def __init__(self, flow: Flow[Any, Any]) -> None:
        self._flow = flow

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Tell of it; its lane goes on in the next turn."""
        self._flow._put_away(record, error)
        asyncio.get_running_loop().call_soon(done, record, None)
