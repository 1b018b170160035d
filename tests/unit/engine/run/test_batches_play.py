"""Batches in the whole engine, in virtual time: handlers and sinks that fail in every way they can."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioparallel import FailurePolicy, Options, RetryPolicy
from aioparallel.engine.run.processor import Processor
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import Abandoned, DeliveryListener, Done, Offered
from aioparallel.engine.sources import Source
from aioparallel.handlers.batches import Batch, By, batches
from aioparallel.handlers.stack import Batchings, Stack, together
from aioparallel.records.record import Record
from tests.support.examples import examples
from tests.support.virtual_time import VirtualLoop

AnyRecord = Record[Any, Any]
Action = tuple[str, frozenset[int], float]
"""What a call of the handler does, the places that it fails by themselves, and after how long."""
Fate = tuple[Literal["taken", "refused", "abandoned"], float]
"""What becomes of what leaves, and when."""

DELAYS = st.sampled_from([0.0, 0.1, 0.7])
ACTIONS = st.tuples(
    st.sampled_from(["ends", "raises", "hangs", "is cancelled", "returns for all", "returns for each"]),
    st.frozensets(st.integers(0, 3), max_size=2),
    DELAYS,
)
FATES = st.tuples(st.sampled_from(["taken", "refused", "abandoned"]), DELAYS)
LOGS = st.lists(st.lists(st.sampled_from([b"a", b"b", None]), max_size=8), min_size=2, max_size=2)
MOST_ATTEMPTS = 2


class Play:
    """One run, and what is noted of it. It is the output sink, and the dead-letter sink."""

    is_exact = False

    def __init__(self, actions: Sequence[Action], fates: Sequence[Fate], again: bool) -> None:
        self.actions, self.fates = iter(actions), iter(fates)
        if again:
            self.actions = itertools.cycle(actions)
            self.fates = itertools.cycle([fate for fate in fates if fate[0] != "abandoned"])
        self.unended: defaultdict[object, list[AnyRecord]] = defaultdict(list)
        """By lane."""
        self.begun: set[AnyRecord] = set()
        self.failed: defaultdict[AnyRecord, int] = defaultdict(int)
        self.own: dict[AnyRecord, bool] = {}
        """Whether what it has failed with last was surely its own."""
        self.succeeded: set[AnyRecord] = set()
        self.ended: list[AnyRecord] = []
        self.put_away: set[AnyRecord] = set()
        self.cancelling = False
        self.wrong: list[str] = []

    def check(self, holds: bool, what: str) -> None:
        """Raised here it would be the handler's failure, or vanish in a callback."""
        if not holds:
            self.wrong.append(what)

    async def handle(self, batch: Batch[AnyRecord]) -> object:
        call = list(batch)
        for record in call:
            self.check(record not in self.begun, "runs twice at once")
            lane = self.unended[_lane(record)]
            before = lane[: lane.index(record)] if record.key is not None else []
            self.check(all(one in call[: call.index(record)] for one in before), "I3")
            self.check(record.attempt == 1 + self.failed[record], "record.attempt == 1 + self.failed[record]")
        self.begun.update(call)
        what, own, delay = next(self.actions, ("ends", frozenset(), 0.0))
        failed = [record for place, record in enumerate(call) if place in own]
        for record in failed:
            batch.fail(record, ValueError("its own"))
        try:
            await asyncio.sleep(1000.0 if what == "hangs" else delay)
        except asyncio.CancelledError:
            if self.cancelling and any(record.partition == 0 for record in call):
                self.begun.difference_update(call)  # in a drain: no attempt
            else:
                self._over(call, failed, call)
            raise
        if what in ("raises", "is cancelled"):
            self._over(call, failed, call)
            raise ValueError("of the batch") if what == "raises" else asyncio.CancelledError
        left = [record for record in call if record not in self._out(call, failed)]
        if what == "returns for all" and left:
            return _Output(self, call, failed, whole=True)
        if what == "returns for each" and left:
            output = _Output(self, call, failed, whole=False, awaited=len(left))
            return dict.fromkeys(left, output)
        self._over(call, failed, ())
        return None

    def _out(self, call: Sequence[AnyRecord], failed: Sequence[AnyRecord]) -> list[AnyRecord]:
        """What has failed, and what is behind in its lane."""
        return [
            record
            for place, record in enumerate(call)
            if record in failed
            or (record.key is not None and any(_lane(one) == _lane(record) for one in failed if one in call[:place]))
        ]

    def _over(self, call: Sequence[AnyRecord], failed: Sequence[AnyRecord], all_failed: Sequence[AnyRecord]) -> None:
        """``failed`` by themselves, ``all_failed`` together."""
        self.begun.difference_update(call)
        first: set[object] = set()
        for record in call:
            if record.key is not None and _lane(record) in first:
                continue  # it goes back
            if record in failed or record in all_failed:
                first.add(_lane(record))
                self.failed[record] += 1
                self.own[record] = record in failed or len(set(all_failed) - set(failed)) == 1
            else:
                self.succeeded.add(record)

    def complete(self, source: Source, offset: int) -> None:
        record = next(one for lane in self.unended.values() for one in lane if _place(one) == (source.name, offset))
        self.check(not source.dropped, "not source.dropped")
        self.check(record not in self.ended, "it has ended twice")
        self.check(record not in self.begun, "record not in self.begun")
        self.ended.append(record)
        lane = self.unended[_lane(record)]
        self.check(record.key is None or lane[0] is record, "I3")
        lane.remove(record)
        if record not in self.succeeded:
            self.check(record in self.put_away, "record in self.put_away")
            self.check(self.own[record], "given up for an error that it had in company")
            self.check(self.failed[record] >= MOST_ATTEMPTS, "self.failed[record] >= MOST_ATTEMPTS")

    def complete_all(self, source: Source, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self.complete(source, offset)

    # -- as an output sink ------------------------------------------------------------------------------

    def offer(self, record: AnyRecord, value: object, listener: DeliveryListener) -> Offered | None:
        return None

    def collect(self, record: AnyRecord, value: object) -> object | None:
        return value

    def room(self) -> Awaitable[None] | None:
        return None

    def deliver(
        self, record: AnyRecord, collected: object, listener: DeliveryListener, together: Sequence[AnyRecord] = ()
    ) -> None:
        assert isinstance(collected, _Output)
        fate, delay = next(self.fates, ("taken", 0.0))
        asyncio.get_running_loop().call_later(delay, self._left, record, collected, listener, fate)

    def _left(self, record: AnyRecord, output: _Output, listener: DeliveryListener, fate: str) -> None:
        output.awaited -= 1
        if fate == "refused":
            output.refused += [one for one in output.call if output.whole or one is record]
        elif fate == "abandoned":
            output.abandoned.append(record)
        if not output.awaited:
            # Before it is told: what follows happens within that.
            output.over()
        if fate == "taken":
            listener.delivered([record])
        else:
            listener.undelivered(record, ValueError("refused") if fate == "refused" else Abandoned())

    def dispose(self, record: AnyRecord, error: Exception, retry_topic: str | None, done: Done) -> None:
        self.put_away.add(record)
        asyncio.get_running_loop().call_later(0.1, done, record, None)


class _Output:
    """Of one call."""

    def __init__(
        self,
        play: Play,
        call: Sequence[AnyRecord],
        failed: Sequence[AnyRecord],
        *,
        whole: bool,
        awaited: int = 1,
    ) -> None:
        self.play, self.call, self.failed, self.whole, self.awaited = play, call, failed, whole, awaited
        self.refused: list[AnyRecord] = []
        self.abandoned: list[AnyRecord] = []

    def over(self) -> None:
        play, call, failed = self.play, self.call, list(self.failed)
        if self.abandoned:
            # It goes back, and no attempt was made; of the whole batch, all of it that has not failed by itself.
            back = [one for one in call if self.whole or one in self.abandoned]
            back = [one for one in back if one not in failed]
            out = play._out(call, back)
            play.begun.difference_update(call)
            call = [one for one in call if one not in out]
        if self.whole:
            play._over(call, failed, self.refused)
        else:
            play._over(call, [*failed, *self.refused], ())


def _lane(record: AnyRecord) -> object:
    return (record.partition, record.key)


def _place(record: AnyRecord) -> object:
    return (record.partition, record.offset)


async def run(
    play: Play, logs: Sequence[Sequence[bytes | None]], handler: Any, dropped_at: float | None, seconds: float
) -> None:
    """All records of all partitions; the first partition is given away at some time."""
    retry = RetryPolicy(first_delay=0.2, multiplier=1, jitter=0, max_attempts=MOST_ATTEMPTS)

    async def put_away(record: AnyRecord, error: Exception) -> None:
        raise AssertionError("the output sink does")

    options = Options(max_concurrency=2, handler_timeout=1.0, failures=FailurePolicy(retry=retry, dead_letter=put_away))
    stack = Stack(handler, Batchings({}, together(handler, (), ())))
    fatal: list[BaseException] = []
    signals = Signals()
    signals.fatal = fatal.append
    processor = Processor(
        stack, options, options.failures.retry_budget, signals, output_sink=play, dead_letter_sink=play
    )
    sources = [Source(partition) for partition in range(len(logs))]
    for source, keys in zip(sources, logs, strict=True):
        source.complete = partial(play.complete, source)
        source.complete_all = partial(play.complete_all, source)
        records = [Record("t", source.name, offset, key, b"v") for offset, key in enumerate(keys)]  # type: ignore[arg-type]
        for record in records:
            play.unended[_lane(record)].append(record)
        for chunk in (records[:3], records[3:]):
            processor.admit(source, chunk)
            await asyncio.sleep(0.03)
    if dropped_at is not None:
        await asyncio.sleep(dropped_at)
        processor.scheduler.stop(sources[0])
        play.cancelling = not seconds
        await processor.drain(sources[:1], seconds, 1.0)
        play.cancelling = False
        processor.scheduler.drop(sources[0])
    for source in sources[1:]:
        processor.set_no_more_input(source, True)
    async with asyncio.timeout(1000):
        while processor.scheduler.unfinished and not fatal:
            await asyncio.sleep(0.05)
    assert not fatal
    assert not play.wrong
    await processor.close(1.0)
    left = {one for lane in play.unended.values() for one in lane}
    assert not play.begun
    assert {one.partition for one in left} <= ({0} if dropped_at is not None else set())


def play(
    logs: Sequence[Sequence[bytes | None]],
    actions: Sequence[Action],
    fates: Sequence[Fate] = (),
    again: bool = False,
    size: int = 2,
    linger: float = 0.0,
    by: By = "any",
    on_error: Literal["one_by_one", "together"] = "one_by_one",
    dropped_at: float | None = None,
    seconds: float = 0.0,
) -> None:
    """``again``: what handlers and sinks do, they do over and over."""
    one = Play(actions, fates, again)
    handler = batches(one.handle, size=size, linger=linger, by=by, on_error=on_error)
    logging.disable(logging.WARNING)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.get_loop().set_exception_handler(lambda loop, context: one.wrong.append(str(context)))
            runner.run(run(one, logs, handler, dropped_at, seconds))
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.hypothesis
@given(
    logs=LOGS,
    actions=st.lists(ACTIONS, max_size=12),
    fates=st.lists(FATES, max_size=6),
    again=st.booleans(),
    size=st.integers(1, 4),
    linger=st.sampled_from([0.0, 0.3]),
    by=st.sampled_from(["any", "any", "partition", "lane"]),
    on_error=st.sampled_from(["one_by_one", "together"]),
    dropped_at=st.none() | st.sampled_from([0.0, 0.15, 0.5, 1.5]),
    seconds=st.sampled_from([0.0, 50.0]),
)
@settings(max_examples=examples(300), deadline=None)
def test_each_record_has_one_outcome_of_its_own(**what: Any) -> None:
    """Whatever handlers and sinks do: keys in order, attempts as documented, and nothing is given up for another."""
    play(**what)


@pytest.mark.parametrize("on_error", ["one_by_one", "together"])
def test_who_has_failed_with_the_outputs_of_all_is_not_given_up_for_that(
    on_error: Literal["one_by_one", "together"],
) -> None:
    """Outputs of the batch as a whole are refused each time: each record runs by itself before its patience ends."""
    action: Action = ("returns for all", frozenset(), 0.0)
    play([[b"a", b"b"]], [action], [("refused", 0.0)], again=True, on_error=on_error)
