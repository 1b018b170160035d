"""Any mix of items, handlers, sources and readers against a model of what must come out, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from aioparallel.config.policies import RetryPolicy
from aioparallel.engine.flow.flow import Outcome
from aioparallel.mapping import parallel_map
from aioparallel.records.errors import HandlerTimeout, Reject, RetryLater
from tests.simulation.loop import RecordingLoop
from tests.support.examples import examples

TIMEOUT = 5.0
Behaviour = Literal["at once", "soon", "slow", "fails", "fails later", "rejects", "waits", "hangs", "shields"]
BEHAVIOURS: list[Behaviour] = [
    "at once",
    "soon",
    "slow",
    "fails",
    "fails later",
    "rejects",
    "waits",
    "hangs",
    "shields",
]


@dataclass
class Item:
    """What its handler does at each attempt (the last one again and again, but it never waits for ever)."""

    number: int
    key: object
    attempts: list[Behaviour]
    calls: int = 0
    failed: int = 0
    ended: bool = False


@dataclass
class Case:
    """One run."""

    items: list[Item]
    max_concurrency: int
    max_buffered: int
    max_buffered_bytes: int | None
    max_attempts: int
    on_error: Literal["raise", "emit", "skip"]
    in_order: bool
    with_key: bool
    source: Literal["list", "generator", "async", "slow async"]
    reader_delay: float
    leave_after: int | None
    closes: bool
    running: int = 0
    read: int = 0
    given: list[Outcome[Item, int]] = field(default_factory=list)


class Failed(Exception):
    """Of a handler."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small ones."""
    keys = st.sampled_from(["a", "b", "c", None, ["not hashable"]])
    items = [
        Item(number, draw(keys), draw(st.lists(st.sampled_from(BEHAVIOURS), min_size=1, max_size=3)))
        for number in range(draw(st.integers(0, 25)))
    ]
    return Case(
        items,
        max_concurrency=draw(st.integers(1, 6)),
        max_buffered=draw(st.integers(1, 12)),
        max_buffered_bytes=draw(st.sampled_from([None, 1, 500, 2_000, 5_000])),
        max_attempts=draw(st.integers(1, 3)),
        on_error=draw(st.sampled_from(["emit", "emit", "skip", "raise"])),
        in_order=draw(st.booleans()),
        with_key=draw(st.booleans()),
        source=draw(st.sampled_from(["list", "generator", "async", "slow async"])),
        reader_delay=draw(st.sampled_from([0.0, 0.0, 3.0])),
        leave_after=draw(st.none() | st.integers(1, 10)),
        closes=draw(st.booleans()),
    )


def expected(case: Case, item: Item) -> tuple[int, type[Exception] | None]:
    """Attempts, and what the last one failed with."""
    if case.with_key and isinstance(item.key, list):
        return 0, TypeError
    failed = call = 0
    while True:
        behaviour = item.attempts[min(call, len(item.attempts) - 1)]
        call += 1
        if behaviour in ("at once", "soon", "slow", "shields") or (behaviour == "waits" and call > 2):
            return failed + 1, None
        if behaviour == "waits":
            continue  # no attempt
        failed += 1
        if behaviour == "rejects":
            return failed, Reject
        if failed == case.max_attempts:
            return failed, HandlerTimeout if behaviour == "hangs" else Failed


async def handle(case: Case, item: Item) -> int:
    """Looks at the bounds and at the order, and does what the item says."""
    behaviour = item.attempts[min(item.calls, len(item.attempts) - 1)]
    item.calls += 1
    case.running += 1
    assert case.running <= case.max_concurrency
    if case.with_key and item.key is not None:
        before = [other for other in case.items[: item.number] if other.key == item.key]
        assert all(other.ended for other in before), f"{item.number} runs before {before}"
    try:
        await behave(item, behaviour)
    except RetryLater:
        raise
    except (Exception, asyncio.CancelledError) as error:
        item.failed += 1
        item.ended = isinstance(error, Reject) or item.failed == case.max_attempts
        raise
    finally:
        case.running -= 1
    item.ended = True
    return item.number * 10


async def behave(item: Item, behaviour: Behaviour) -> None:
    match behaviour:
        case "soon":
            await asyncio.sleep(0.1)
        case "slow":
            await asyncio.sleep(4.0)
        case "fails":
            raise Failed
        case "fails later":
            await asyncio.sleep(1.0)
            raise Failed
        case "rejects":
            raise Reject("never")
        case "waits" if item.calls <= 2:
            raise RetryLater(2.0)
        case "hangs":
            await asyncio.Event().wait()
        case "shields":  # it ends well, after a time-out that it ignores
            try:
                await asyncio.sleep(TIMEOUT + 3)
            except asyncio.CancelledError:
                await asyncio.sleep(0.5)


def source(case: Case) -> Any:
    """The items, and how many of them were read."""

    def plain() -> Iterator[Item]:
        for item in case.items:
            count(case)
            yield item

    async def asynchronous() -> AsyncIterator[Item]:
        for item in case.items:
            if case.source == "slow async":
                await asyncio.sleep(0.7)
            count(case)
            yield item

    if case.source == "list":
        return case.items
    return plain() if case.source == "generator" else asynchronous()


def count(case: Case) -> None:
    case.read += 1
    assert case.read - len(case.given) - skipped(case) <= case.max_buffered + case.max_concurrency


def skipped(case: Case) -> int:
    if case.on_error != "skip":
        return 0
    return sum(1 for item in case.items if expected(case, item)[1] is not None)  # at most


async def run(case: Case) -> BaseException | None:
    def key(item: Item) -> Any:
        return item.key

    mapped = parallel_map(
        lambda_for(case),
        source(case),
        key=key if case.with_key else None,
        max_concurrency=case.max_concurrency,
        max_buffered=case.max_buffered,
        max_buffered_bytes=case.max_buffered_bytes,
        timeout=TIMEOUT,
        retry=RetryPolicy(max_attempts=case.max_attempts, first_delay=0.5, jitter=0),
        on_error=case.on_error,
        in_order=case.in_order,
    )
    try:
        if case.closes:
            async with mapped:
                await read(case, mapped)
        else:
            await read(case, mapped)
            del mapped
            await asyncio.sleep(0)
    except (Failed, Reject, HandlerTimeout, TypeError) as error:
        return error
    return None


def lambda_for(case: Case) -> Any:
    async def handler(item: Item) -> int:
        return await handle(case, item)

    return handler


async def read(case: Case, mapped: Any) -> None:
    async for outcome in mapped:
        case.given.append(outcome)
        if case.leave_after is not None and len(case.given) >= case.leave_after:
            return
        if case.reader_delay:
            await asyncio.sleep(case.reader_delay)


@settings(max_examples=examples(200))
@given(cases())
def test_each_item_has_one_outcome_whatever_happens(case: Case) -> None:
    """One outcome each, as the model says; order within a key, input order where asked for; bounds; nothing left."""
    with asyncio.Runner(loop_factory=RecordingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, RecordingLoop)

        async def main() -> BaseException | None:
            error = await run(case)
            async with asyncio.timeout(60):  # whoever left early leaves the closing to the loop
                while loop.tasks():
                    await asyncio.sleep(0.1)
            return error

        error = runner.run(main())
        assert not loop.uncaught
        assert not loop.timers()
    assert not case.running
    compare(case, error)


def compare(case: Case, error: BaseException | None) -> None:
    """What was given with what should be."""
    wanted = {item.number: expected(case, item) for item in case.items}
    bad = {number for number, (_, kind) in wanted.items() if kind is not None}
    indices = [outcome.index for outcome in case.given]
    assert len(set(indices)) == len(indices)
    if case.in_order:
        assert indices == sorted(indices)
    for outcome in case.given:
        attempts, kind = wanted[outcome.index]
        assert outcome.item is case.items[outcome.index]
        assert (outcome.attempts, type(outcome.error) if outcome.error else None) == (attempts, kind)
        assert outcome.value == (None if kind else outcome.index * 10)
        assert case.on_error == "emit" or kind is None
    if error is not None:
        assert case.on_error == "raise"
        assert type(error) in {wanted[number][1] for number in bad}
    elif case.leave_after is None or len(case.given) < case.leave_after:
        assert case.on_error != "raise" or not bad
        assert set(indices) == set(wanted) - (bad if case.on_error == "skip" else set())
