"""Retry topics by whatever clocks: the delay is the option's, by the reader's own time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.delivery.letters import Letter, write_letter
from aioparallel.delivery.retry_topics import due_at
from aioparallel.records.record import Failure, Origin
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import consumer_of, produce
from tests.support.waiting import until

ONCE = RetryPolicy(max_attempts=1)
DELAY = 0.6
SLACK = 0.35
"""Seconds by which a reader may know less when a record was written."""

whole = st.integers(0, 10_000)
wrong = st.integers(-1_000_000, 1_000_000)


@given(whole, wrong, wrong, st.booleans(), whole, whole, whole)
def test_it_is_due_after_the_delay_from_when_it_was_written(
    delay: int, ahead: int, brokers: int, has_stamp: bool, until_written: int, until_seen: int, until_now: int
) -> None:
    """Whatever clocks say: as near as the reader knows. Nobody waits longer than the delay from reading it on. Where
    clocks are right, to the point."""
    absent, written = 10**9, 10**9 + until_written
    seen, now = written + until_seen, written + until_seen + until_now
    stamp = written + brokers if has_stamp else -1
    found = due_at(written + ahead + delay, stamp, delay, seen, absent)
    assert absent + delay <= found <= seen + delay
    assert found - now <= delay
    unknown = due_at(written + ahead + delay, stamp, delay, seen, -math.inf)
    assert unknown <= found
    if has_stamp and brokers >= 0:
        assert unknown >= written + delay  # a writer that is behind takes nothing away
    if not has_stamp or brokers <= 0:
        assert due_at(written + delay, stamp, delay, seen, -math.inf) == written + delay


def broker() -> InMemoryBroker:
    """With a topic, and its retry topic."""
    made = InMemoryBroker()
    for topic in ("t", "later", "dead"):
        made.create_topic(topic)
    return made


class Retried:
    """Notes when records of the retry topic run."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    async def __call__(self, record: Record) -> None:
        if record.topic == "t":
            raise ValueError("once")
        self.at[record.offset] = time.monotonic()


@asynccontextmanager
async def running(broker: InMemoryBroker, handler: Retried) -> AsyncIterator[ParallelConsumer]:
    """Until the block ends."""
    failures = FailurePolicy(retry=ONCE, retry_topics={"later": DELAY}, dead_letter="dead")
    async with consumer_of(broker, failures=failures) as consumer:
        task = asyncio.create_task(consumer.run({"t": handler}))
        await until(lambda: consumer.health().ready or task.done())
        yield consumer
        consumer.stop()
        await task


def letter(broker: InMemoryBroker, ahead: float, *, stamped: bool = False) -> None:
    """A record that another process writes into the retry topic, whose clock is wrong by so much; the broker stamps it
    by a right one."""
    now = time.time()
    failure = Failure(now + ahead, "a.B", "no")
    due = now + ahead + DELAY
    headers = write_letter((), Letter(Origin("t", 0, 7, -1), "g", 1, failure, failure, "", due))
    stamp = now if stamped else now + ahead
    broker.append("later", b"v", key=b"k", headers=headers, timestamp=int(stamp * 1_000))


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("ahead", [120.0, -120.0, 0.0])
async def test_the_delay_of_a_writer_whose_clock_is_wrong(ahead: float, stamped: bool) -> None:
    """Ahead it does not last longer, behind it does not vanish. Records of one key wait together, and not in turn."""
    kafka, handler = broker(), Retried()
    async with running(kafka, handler):
        await asyncio.sleep(SLACK)  # the reader has seen that the topic is empty
        began = time.monotonic()
        for _ in range(5):
            letter(kafka, ahead, stamped=stamped)
        await until(lambda: len(handler.at) == 5, 10)
    assert all(DELAY - SLACK < at - began < DELAY + 0.5 for at in handler.at.values())


@pytest.mark.parametrize(
    ("ahead", "stamped", "waits"), [(120.0, False, True), (-120.0, True, True), (-9.0, False, False)]
)
async def test_what_stands_there_at_the_start(ahead: float, stamped: bool, waits: bool) -> None:
    """The broker's stamp tells better than a slow clock; what has waited for long by both is due; none waits for longer
    than the delay."""
    kafka, handler = broker(), Retried()
    began = time.monotonic()
    for _ in range(5):
        letter(kafka, ahead, stamped=stamped)
    async with running(kafka, handler):
        ready = time.monotonic()
        await until(lambda: len(handler.at) == 5, 10)
    for at in handler.at.values():
        assert (at - began >= DELAY - 0.01) is waits
        assert at - ready < (DELAY if waits else 0.0) + 0.4


@pytest.mark.parametrize("put", [3_600.0, -3_600.0])
async def test_the_wall_clock_is_put_while_records_wait(put: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait as long as they would have, and so does what fails then."""
    wall, kafka, handler = time.time, broker(), Retried()
    async with running(kafka, handler) as consumer:
        produce(kafka, [b"before"])
        await until(lambda: kafka.records("later"))
        first = time.monotonic()
        monkeypatch.setattr(time, "time", lambda: wall() + put)
        produce(kafka, [b"after"])
        await until(lambda: len(kafka.records("later")) == 2)
        second = time.monotonic()
        await until(lambda: len(handler.at) == 2, 10)
        assert consumer.health().healthy
    assert DELAY - SLACK < handler.at[0] - first < DELAY + 0.5
    assert DELAY - SLACK < handler.at[1] - second < DELAY + 0.5
