"""A consumer in a share group: how records end, what becomes of locks, and how it stops."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

import pytest

from aioparallel import (
    Batch,
    NotCommitted,
    Outgoing,
    ParallelConsumer,
    ProblemKind,
    Record,
    Reject,
    RetryLater,
    RetryPolicy,
    TopicPartition,
    batches,
)
from aioparallel.delivery.letters import original_headers, read_letter
from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.records.errors import ClientError, LockLost, NotSkipped
from aioparallel.testing.memory import InMemoryBroker
from tests.support.share_group import FakeShareClient, ShareGroup
from tests.support.virtual_time import VirtualLoop
from tests.unit.queues.share.conftest import Handler, consumer_of, running, until

VALUES = [b"%d" % number for number in range(10)]


def raising(error: Exception) -> Any:
    def does(record: Record) -> None:
        raise error

    return does


def values_in(broker: InMemoryBroker, topic: str) -> list[bytes | None]:
    log = broker.log(TopicPartition(topic, 0))
    assert log is not None
    return [one.value for one in log.read(log.start_offset, 10**6, read_committed=False).records]


# -- how records end ------------------------------------------------------------------------------------


async def test_a_record_is_accepted_when_its_handler_has_succeeded(group: ShareGroup) -> None:
    """Each by itself, however long another one takes."""
    group.produce(VALUES)
    gate, handler = asyncio.Event(), Handler()
    handler.does = lambda record: gate.wait() if record.value == b"0" else None
    async with running(consumer_of(group), handler) as consumer:
        await until(lambda: group.states() == ["acquired"] + ["accepted"] * 9)
        gate.set()
        await until(lambda: group.states() == ["accepted"] * 10)
        await until(lambda: consumer.stats().share.accepted == 10)
    assert set(handler.seen.values()) == {1}
    assert set(handler.counts) == {1}


async def test_a_failed_record_is_released_at_once(group: ShareGroup) -> None:
    """It is delivered again, with a higher count, until the group gives it up."""
    group.produce([b"a", b"b"])
    handler = Handler(lambda record: raising(ValueError())(record) if record.value == b"a" else None)
    async with running(consumer_of(group), handler):
        await until(lambda: group.states() == ["given up", "accepted"])
    assert handler.seen == {b"a": 5, b"b": 1}
    assert sorted(handler.counts) == [1, 1, 2, 3, 4, 5]


async def test_a_rejected_record_is_not_delivered_again(group: ShareGroup) -> None:
    """Nor is one that a retry function skips."""
    group.produce([b"a", b"b"])
    handler = Handler(lambda record: raising(Reject("no") if record.value == b"a" else ValueError())(record))
    async with running(consumer_of(group, retry=lambda record, error, attempts: "skip"), handler) as consumer:
        await until(lambda: group.states() == ["rejected", "rejected"])
        await until(lambda: consumer.stats().share.rejected == 2)
        assert consumer.stats().skipped == 2
    assert set(handler.seen.values()) == {1}


async def test_a_record_that_waits_for_its_retry_keeps_its_lock(group: ShareGroup) -> None:
    """Much longer than a lock lasts: it is renewed, and delivered once."""
    group.produce([b"a"])
    attempts: list[int] = []

    def does(record: Record) -> None:
        attempts.append(record.attempt)
        if len(attempts) < 3:
            raise ValueError

    retry = RetryPolicy(first_delay=100, multiplier=1, max_delay=100, max_attempts=5)
    async with running(consumer_of(group, retry=retry), Handler(does)) as consumer:
        await until(lambda: group.states() == ["accepted"], 1_000)
        assert consumer.stats().share.renewed >= 10
    assert attempts == [1, 2, 3]
    assert group.counts() == [1]


async def test_a_handler_that_takes_longer_than_a_lock_keeps_it(group: ShareGroup) -> None:
    """The lock is renewed each half of its time."""
    group.produce([b"a"])
    handler = Handler(lambda record: asyncio.sleep(300))
    async with running(consumer_of(group), handler) as consumer:
        await until(lambda: group.states() == ["accepted"], 1_000)
        assert 10 <= consumer.stats().share.renewed <= 40
        assert not consumer.health().problems
    assert group.counts() == [1]


async def test_locks_may_become_much_shorter(group: ShareGroup) -> None:
    """The group's configuration has changed while a handler runs: it keeps its lock."""
    group.produce([b"a"])
    async with running(consumer_of(group), Handler(lambda record: asyncio.sleep(60))) as consumer:
        await asyncio.sleep(5)
        group.lock_seconds = 1
        await until(lambda: group.states() == ["accepted"])
        assert consumer.stats().share.lost == 0
    assert group.counts() == [1]


async def test_a_loop_that_was_blocked_until_locks_had_ended(
    group: ShareGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """The next record is not handled, and delivered again. It counts as lost, and is a problem."""
    group.produce([b"a", b"b"])
    handled: list[object] = []

    async def handle(record: Record) -> None:
        handled.append(record.value)
        if handled == [b"a"]:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            await until(lambda: consumer.stats().buffered == 1)
            loop.block(40)

    client = FakeShareClient(group)
    consumer: Any = consumer_of(group, client=client, max_concurrency=1)
    async with running(consumer, handle):
        client._kept += client._acquire(5, asyncio.get_running_loop().time())
        await until(lambda: len(handled) > 1 or consumer.stats().share.lost)
        assert [one.kind for one in consumer.health().problems] == ["lock_lost"]
        await until(lambda: group.states() == ["accepted"] * 2)
        assert consumer.stats().share.lost == 1
        assert consumer.stats().share.late == 1
    assert "t-0 offset 1: its lock had ended before its handler could be called" in caplog.text
    assert "it is delivered again, unless this was its last delivery" in caplog.text
    assert "it is released" not in caplog.text


async def test_a_requested_delay_is_a_wait(group: ShareGroup) -> None:
    """It does not count as an attempt, and the lock is renewed meanwhile."""
    group.produce([b"a"])
    handler = Handler(lambda record: raising(RetryLater(100))(record) if sum(handler.seen.values()) < 3 else None)
    async with running(consumer_of(group), handler):
        await until(lambda: group.states() == ["accepted"], 1_000)
    assert (handler.seen[b"a"], group.counts()) == (3, [1])


async def test_outputs_come_before_the_acknowledgement(group: ShareGroup, broker: InMemoryBroker) -> None:
    """A record is accepted when its outputs are acknowledged."""
    group.produce(VALUES)
    broker.hang(1)

    async def copy(record: Record) -> Outgoing:
        return Outgoing("out", record.value)

    async with running(consumer_of(group, broker), copy) as consumer:
        await until(lambda: consumer.stats().producing == 10)
        assert set(group.states()) == {"acquired"}
        broker.unhang(1)
        await until(lambda: group.states() == ["accepted"] * 10)
    assert set(values_in(broker, "out")) == set(VALUES)


async def test_dead_letters(group: ShareGroup, broker: InMemoryBroker) -> None:
    """A rejected record is dead-lettered at once, a failing one after its last delivery. Both are accepted then."""
    group.produce([b"rejected", b"failing"])
    handler = Handler(lambda record: raising(Reject("no") if record.value == b"rejected" else ValueError())(record))
    async with running(consumer_of(group, broker, dead_letter="dead", max_deliveries=3), handler) as consumer:
        await until(lambda: group.states() == ["accepted", "accepted"])
        assert consumer.stats().dead_lettered == 2
    assert handler.seen == {b"rejected": 1, b"failing": 3}
    assert values_in(broker, "dead") == [b"rejected", b"failing"]


@pytest.mark.parametrize("ends", [False, True])
async def test_a_last_failure_is_dead_lettered_also_when_no_attempt_may_follow(
    group: ShareGroup, broker: InMemoryBroker, ends: bool
) -> None:
    """In a pause, and at a stop. The group would give the record up if it were released."""
    group.limit = 2
    group.produce([b"a"])
    gate = asyncio.Event()

    async def fails(record: Record) -> None:
        if record.delivery_count == 2:
            await gate.wait()
        raise ValueError

    options: dict[str, Any] = {"retry": RetryPolicy(max_attempts=2, first_delay=20), "max_deliveries": 2}
    async with running(consumer_of(group, broker, dead_letter="dead", **options), fails) as consumer:
        await until(lambda: group.counts() == [2] and consumer.stats().in_flight == 1)
        if ends:
            consumer.stop()
        else:
            consumer.pause()
        gate.set()
        await until(lambda: group.states() != ["acquired"])
        assert group.states() == ["accepted"]
    assert values_in(broker, "dead") == [b"a"]


async def test_a_stop_dead_letters_what_waits_for_a_retry_in_its_last_delivery(
    group: ShareGroup, broker: InMemoryBroker
) -> None:
    """The group would give it up if it were released. What is delivered once more is released."""
    group.limit = 2
    group.produce(VALUES)
    for place in group.places[TopicPartition("t", 0)][:4]:
        place.count = 1
    options: dict[str, Any] = {"retry": RetryPolicy(first_delay=1_000), "max_deliveries": 2}
    async with running(consumer_of(group, broker, dead_letter="dead", **options), Handler(raising(ValueError()))) as it:
        await until(lambda: it.stats().parked == 10)
        it.stop()
    assert group.states() == ["accepted"] * 4 + ["available"] * 6
    assert (values_in(broker, "dead"), it.stats().dead_lettered) == (VALUES[:4], 4)


async def test_a_stop_dead_letters_what_was_not_begun_in_its_last_delivery(
    group: ShareGroup, broker: InMemoryBroker
) -> None:
    """Without dead letters it is lost."""
    given: list[dict[str, Any]] = [{"dead_letter": "dead", "max_deliveries": 1}, {}]
    for options in given:
        group.limit = 1
        group.places.clear()
        group.produce([b"x"] * 100)
        handler = Handler(lambda _: asyncio.sleep(0.5))
        async with running(consumer_of(group, broker, max_concurrency=10, **options), handler) as consumer:
            await until(lambda: consumer.stats().buffered > 10)
            waited = consumer.stats().buffered
            consumer.stop()
        assert len(handler.seen) == 1
        assert consumer.stats().dead_lettered == (waited if options else 0)
        assert group.states().count("given up") == (0 if options else waited)
    assert len(values_in(broker, "dead")) > 10


@pytest.mark.parametrize("is_down", [False, True])
async def test_a_stop_dead_letters_what_it_cuts_off_in_its_last_delivery(
    group: ShareGroup, broker: InMemoryBroker, is_down: bool
) -> None:
    """If that can be written in time."""
    group.limit = 1
    group.produce([b"a"])
    options: dict[str, Any] = {"max_deliveries": 1, "drain_timeout": 10, "commit_timeout": 5}
    handler = Handler(lambda _: asyncio.sleep(1_000))
    async with running(consumer_of(group, broker, dead_letter="dead", **options), handler) as consumer:
        await until(lambda: consumer.stats().in_flight == 1)
        if is_down:
            broker.hang(1)
        consumer.stop()
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 20
    assert handler.cancelled[b"a"] == 1
    if is_down:
        assert group.states() == ["given up"]
        broker.unhang(1)
    else:
        assert (group.states(), values_in(broker, "dead")) == (["accepted"], [b"a"])
        stats = consumer.stats()
        assert (stats.dead_lettered, stats.dropped, stats.admitted) == (1, 0, 1)


@pytest.mark.parametrize("drain", [10, 100])
async def test_what_comes_in_its_last_delivery_while_the_run_ends_is_dead_lettered(
    group: ShareGroup, broker: InMemoryBroker, drain: float
) -> None:
    """However long the drain lasts. What is delivered again is released."""
    group.limit = 2
    group.produce([b"a", b"b", b"c"])
    group.places[TopicPartition("t", 0)][1].count = 1
    client = FakeShareClient(group)
    options: dict[str, Any] = {"max_deliveries": 2, "drain_timeout": drain, "max_concurrency": 1}
    handler = Handler(lambda _: asyncio.sleep(drain - 5))
    async with running(consumer_of(group, broker, client=client, dead_letter="dead", **options), handler) as consumer:
        await until(lambda: consumer.stats().in_flight == 1)
        await asyncio.sleep(1)
        assert group.states() == ["acquired", "available", "available"]
        group.produce([b"d"], partition=1)
        group.places[TopicPartition("t", 1)][0].count = 1
        client._kept += client._acquire(5, asyncio.get_running_loop().time())
        consumer.stop()
    assert group.states() == ["accepted", "accepted", "available"]
    assert group.states(1) == ["accepted"]
    assert set(values_in(broker, "dead")) == {b"b", b"d"}
    stats = consumer.stats()
    assert (stats.admitted, stats.succeeded, stats.dead_lettered, stats.dropped) == (3, 1, 2, 0)


async def test_a_lock_that_ends_while_a_stop_dead_letters_its_record(
    group: ShareGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """The group gives the record up. If the dead letter is not written either, this is counted and logged."""
    group.limit, group.lock_seconds = 1, 5
    group.produce([b"a"])
    client = FakeShareClient(group)
    client.fault = lambda kind, offset: Acknowledged.NOT_SENT if kind is AcknowledgeType.RENEW else None
    options: dict[str, Any] = {"max_deliveries": 1, "drain_timeout": 1, "commit_timeout": 20}
    dead, handler = lambda_dead(asyncio.Event()), Handler(lambda _: asyncio.sleep(1_000))
    async with running(consumer_of(group, client=client, dead_letter=dead, **options), handler) as consumer:
        await until(lambda: consumer.stats().in_flight == 1)
        consumer.stop()
    assert group.states() == ["given up"]
    assert consumer.stats().share.given_up == 1
    assert "t-0 offset 0 did not end in delivery 1, the last one" in caplog.text


@pytest.mark.parametrize("hurried", [False, True])
async def test_a_dead_letter_that_is_written_after_the_stop_has_released_its_record(
    group: ShareGroup, hurried: bool
) -> None:
    """The record is not acknowledged a second time."""
    group.limit = 1
    group.produce([b"a"])
    late, letters, client = list[Record](), list[bytes | None](), FakeShareClient(group)

    async def dead(record: Record, error: Exception) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1_000)
        letters.append(record.value)

    options: dict[str, Any] = {"max_deliveries": 1, "drain_timeout": 1, "commit_timeout": 5, "on_late": late.append}
    handler = Handler(lambda _: asyncio.sleep(1_000))
    async with running(consumer_of(group, client=client, dead_letter=dead, **options), handler) as consumer:
        await until(lambda: consumer.stats().in_flight == 1)
        consumer.stop()
        if hurried:
            await asyncio.sleep(3)
            consumer.stop(drain=False)
    assert (letters, group.states(), late) == ([b"a"], ["given up"], [])
    assert client.sent == [(AcknowledgeType.RELEASE, 0)]
    stats = consumer.stats()
    assert (stats.dead_lettered, stats.dropped) == (0, 1)


@pytest.mark.parametrize("seconds", [0.3, 3.0])
async def test_a_stop_waits_for_dead_letters_of_last_deliveries_also_after_the_drain(
    group: ShareGroup, seconds: float
) -> None:
    """Up to ``commit_timeout``: the group would give up what is released."""
    group.limit = 1
    group.produce([b"a", b"b"])
    letters = list[bytes | None]()

    async def dead(record: Record, error: Exception) -> None:
        await asyncio.sleep(seconds)
        letters.append(record.value)

    options: dict[str, Any] = {"max_deliveries": 1, "drain_timeout": 0, "commit_timeout": 5, "max_concurrency": 1}
    retry = RetryPolicy(first_delay=1_000)
    async with running(consumer_of(group, dead_letter=dead, retry=retry, **options), Handler(raising(OSError()))) as it:
        await until(lambda: it.stats().parked == 2)
        it.stop()
    assert set(letters) == {b"a", b"b"}
    assert group.states() == ["accepted", "accepted"]
    stats = it.stats()
    assert (stats.dead_lettered, stats.dropped) == (2, 0)
    assert (stats.share.given_up, stats.share.released) == (0, 0)


async def test_what_is_on_its_way_at_a_stop_is_waited_for(group: ShareGroup, broker: InMemoryBroker) -> None:
    """In its last delivery it is dead-lettered. Nothing is released for a second: a request of another member that
    stops as well would acquire it only to release it, and so on."""
    group.limit = 2
    group.produce([b"a", b"b"])
    places = group.places[TopicPartition("t", 0)]
    places[1].count = 1
    client = FakeShareClient(group)
    client.exclude({TopicPartition("t", 0)})
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"max_deliveries": 2, "dead_letter": "dead"}
    async with running(consumer_of(group, broker, client=client, **options), Handler()) as consumer:
        client.excluded, client.on_its_way = set(), 1
        client._kept += client._acquire(1, loop.time())
        consumer.stop()
        await asyncio.sleep(0.4)
        assert group.states() == ["acquired", "available"]
        client._kept += client._acquire(1, loop.time())
        client.on_its_way = 0
        await asyncio.sleep(0.5)
        assert group.states() == ["acquired", "acquired"]
        began = loop.time()
    assert loop.time() - began < 0.2
    assert (group.states(), group.counts()) == (["available", "accepted"], [1, 2])
    assert values_in(broker, "dead") == [b"b"]


async def test_a_stop_that_is_cancelled_while_it_waits_for_what_is_on_its_way(
    group: ShareGroup, broker: InMemoryBroker
) -> None:
    """What has come is dead-lettered in its last delivery all the same."""
    group.limit = 1
    client = FakeShareClient(group)
    async with consumer_of(group, broker, client=client, dead_letter="dead", max_deliveries=1) as consumer:
        run = asyncio.create_task(consumer.run(Handler()))
        await until(lambda: consumer.health().ready)
        client.on_its_way = 1
        group.produce([b"a"])
        client._kept += client._acquire(1, asyncio.get_running_loop().time())
        consumer.stop()
        await asyncio.sleep(0.3)
        client.on_its_way = 0
        run.cancel()
        await asyncio.wait([run])
    assert (group.states(), values_in(broker, "dead")) == (["accepted"], [b"a"])
    stats = consumer.stats()
    assert stats.share is not None
    assert (stats.share.locked, stats.dead_lettered) == (0, 1)


async def test_a_record_that_comes_again_while_the_run_ends(group: ShareGroup) -> None:
    """Its lock has ended: its handler is cancelled, and the record is released once."""
    group.produce([b"a"])
    client, handler = FakeShareClient(group), Handler(lambda _: asyncio.sleep(1_000))
    async with running(consumer_of(group, client=client), handler) as consumer:
        await until(lambda: consumer.stats().in_flight == 1)
        group.expire(1e9)
        client.on_its_way = 1
        consumer.stop()
        client._kept += client._acquire(1, asyncio.get_running_loop().time())
        client.on_its_way = 0
        await until(lambda: handler.cancelled[b"a"], 1)
    assert (group.states(), group.counts()) == (["available"], [2])
    assert client.sent == [(AcknowledgeType.RELEASE, 0)]
    assert consumer.stats().share.lost == 1


@pytest.mark.parametrize("seconds", [None, 1.0], ids=["hurried", "slow"])
async def test_a_stop_does_not_wait_long_for_what_is_on_its_way(group: ShareGroup, seconds: float | None) -> None:
    """What has come already is released by the run, and counted if the group gives it up."""
    group.limit = 1
    client = FakeShareClient(group)
    async with running(consumer_of(group, client=client), Handler()) as consumer:
        client.on_its_way = 1
        group.produce([b"a"])
        client._kept += client._acquire(1, asyncio.get_running_loop().time())
        began = asyncio.get_running_loop().time()
        consumer.stop(drain=seconds is not None)
    assert seconds or 0 <= asyncio.get_running_loop().time() - began < (seconds or 0) + 0.3
    assert group.states() == ["given up"]
    assert consumer.stats().share.given_up == 1


@pytest.mark.parametrize("error", [None, ValueError(), Reject("no")], ids=["success", "failure", "rejection"])
async def test_a_handler_that_ends_after_its_record_was_dead_lettered(
    group: ShareGroup, caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    """It has ignored its cancellation, and a stop has dead-lettered its record. The record is done already."""
    group.limit = 1
    group.produce([b"a", b"b"])
    letters = list[bytes | None]()

    async def dead(record: Record, error: Exception) -> None:
        letters.append(record.value)
        await asyncio.sleep(10 if record.value == b"b" else 0)

    async def work(record: Record) -> None:
        if record.value == b"b":
            await asyncio.sleep(1_000)
        ends = asyncio.get_running_loop().time() + 5
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(left)
        if error is not None:
            raise error

    options: dict[str, Any] = {"max_deliveries": 1, "drain_timeout": 1, "commit_timeout": 20, "max_concurrency": 2}
    async with running(consumer_of(group, dead_letter=dead, **options), Handler(work)) as consumer:
        await until(lambda: consumer.stats().in_flight == 2)
        consumer.stop()
    stats = consumer.stats()
    assert group.states() == ["accepted", "accepted"]
    assert letters == [b"a", b"b"]
    assert stats.admitted == stats.ended + stats.dropped + stats.in_flight == 2
    assert "after the end of the run" not in caplog.text


async def test_five_stops_during_a_long_job(
    group: ShareGroup, broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It is released four times, and the fifth stop dead-letters it, as the log says. A member that starts with as many
    deliveries as the group has warns that a crash in the last one loses records."""
    group.produce([b"a"])
    handler = Handler(lambda _: asyncio.sleep(180))
    options: dict[str, Any] = {"dead_letter": "dead", "max_deliveries": 5, "drain_timeout": 20}
    for number in range(1, 6):
        async with running(consumer_of(group, broker, **options), handler) as consumer:
            await until(lambda: consumer.stats().in_flight == 1)
            consumer.stop()
        assert group.states() == ["available" if number < 5 else "accepted"]
    assert (handler.seen[b"a"], values_in(broker, "dead")) == (5, [b"a"])
    assert (
        "t-0 offset 0 failed (delivery 5, attempt 1): LastDelivery('it has not ended in its last delivery"
        in caplog.text
    )
    assert "max_deliveries=5 is the group's share.delivery.count.limit" in caplog.text


async def killed(consumer: ParallelConsumer[Any, Any], group: ShareGroup) -> None:
    """Let a member die: it acknowledges nothing more, and its locks end."""
    client = consumer._membership._client  # type: ignore[attr-defined]
    client.away = True
    for places in group.places.values():
        for place in places:
            if place.member is client:
                group._free(place)


@pytest.mark.parametrize(("limit", "max_deliveries"), [(5, None), (3, None), (5, 2)])
async def test_a_record_whose_processes_die(
    group: ShareGroup, broker: InMemoryBroker, limit: int, max_deliveries: int | None
) -> None:
    """And those that were there with it: in the last delivery they are dead-lettered without their handlers."""
    group.limit = limit
    group.produce([b"deadly", b"beside"])
    handler = Handler(lambda _: asyncio.sleep(1_000))
    options: dict[str, Any] = {"dead_letter": "dead", "max_deliveries": max_deliveries, "drain_timeout": 0}
    for number in range(1, limit):
        async with running(consumer_of(group, broker, commit_timeout=0.1, **options), handler) as consumer:
            await until(lambda: consumer.stats().in_flight == 2)
            await killed(consumer, group)
            consumer.stop()
        assert group.counts() == [number, number]
    async with running(consumer_of(group, broker, **options), handler) as consumer:
        await until(lambda: group.states() == ["accepted"] * 2)
        assert consumer.stats().share.given_up == 0
    assert set(handler.seen.values()) == {limit - 1}
    assert values_in(broker, "dead") == [b"deadly", b"beside"]
    letter = read_letter(broker.records("dead")[0])
    assert letter is not None
    assert letter.deliveries == limit
    assert "it has come in its last delivery, in which it is not begun" in letter.last.message


async def test_brokers_that_write_dead_letters_do_so_for_processes_that_die(
    group: ShareGroup, broker: InMemoryBroker
) -> None:
    """So the last delivery is begun as well."""
    group.produce([b"a"])
    group.places[TopicPartition("t", 0)][0].count = 4
    client = FakeShareClient(group)
    client.dead_letter_topic = "dlq.t"
    handler = Handler()
    async with running(consumer_of(group, broker, client=client, dead_letter="dead"), handler):
        await until(lambda: group.states() == ["accepted"])
    assert handler.seen[b"a"] == 1


async def test_the_limit_of_deliveries_is_lowered_while_a_member_runs(
    group: ShareGroup, broker: InMemoryBroker
) -> None:
    """What fails in the last delivery by the new limit is dead-lettered."""
    group.produce([b"a"])
    gate = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.delivery_count == 3:
            await gate.wait()
        raise ValueError

    async with running(consumer_of(group, broker, dead_letter="dead", max_deliveries=5), handle) as consumer:
        await until(lambda: group.counts() == [3] and consumer.stats().in_flight == 1)
        group.limit = 3
        gate.set()
        await until(lambda: group.states() == ["accepted"])
    assert values_in(broker, "dead") == [b"a"]


async def test_a_hurried_stop_names_what_it_cancels(group: ShareGroup, caplog: pytest.LogCaptureFixture) -> None:
    """As a drain that has lasted too long does."""
    group.produce([b"a", b"b"])
    async with running(consumer_of(group), Handler(lambda _: asyncio.sleep(180))) as consumer:
        await until(lambda: consumer.stats().in_flight == 2)
        consumer.stop()
        await asyncio.sleep(0.1)
        consumer.stop(drain=False)
    (line,) = [one for one in caplog.records if getattr(one, "action", "") == "stop_hurried"]
    assert "2 running handlers are cancelled, the first of them for t-0 offset 0" in line.getMessage()
    assert "at any member, unless this was their last delivery" in line.getMessage()


@pytest.mark.parametrize("topic", [None, "dlq.t"])
async def test_records_that_the_group_gives_up_are_counted_and_logged(
    group: ShareGroup, caplog: pytest.LogCaptureFixture, topic: str | None
) -> None:
    """As lost, unless the brokers write dead letters. A member that starts says that this may happen."""
    group.produce([b"a", b"b"])
    client = FakeShareClient(group)
    client.dead_letter_topic = topic
    async with running(consumer_of(group, client=client), Handler(raising(ValueError()))) as consumer:
        await until(lambda: group.states() == ["given up"] * 2)
        await asyncio.sleep(1)
        share = consumer.stats().share
        assert share is not None
        assert (share.released, share.given_up) == (10, 2)
    found = [(one.levelname, one.getMessage()) for one in caplog.records if "share_" in getattr(one, "action", "")]
    if topic is None:
        assert [level for level, _ in found] == ["WARNING", "ERROR"]
        assert "Share group g: a record that fails in all its deliveries" in found[0][1]
        assert "t-0 offset 0 did not end in delivery 5, the last one" in found[1][1]
        assert "it is LOST" in found[1][1]
    else:
        assert [level for level, _ in found] == ["WARNING"]
        assert "a broker writes it to dlq.t" in found[0][1]


async def test_what_the_retry_function_releases_in_the_last_delivery(group: ShareGroup, broker: InMemoryBroker) -> None:
    """It is dead-lettered: nobody would get it."""
    group.produce([b"a"])
    retry = lambda record, error, attempts: "release"  # noqa: E731
    async with running(
        consumer_of(group, broker, dead_letter="dead", max_deliveries=4, retry=retry), Handler(raising(ValueError()))
    ) as consumer:
        await until(lambda: group.states() == ["accepted"])
        assert consumer.stats().share.given_up == 0
    assert (group.counts(), values_in(broker, "dead")) == ([5], [b"a"])
    (letter,) = map(read_letter, broker.records("dead"))
    assert letter is not None
    assert (letter.attempts, letter.deliveries) == (1, 5)
    assert not [name for name, _ in original_headers(broker.records("dead")[0].headers)]


async def test_a_lock_that_ends_in_the_last_delivery_gives_the_record_up(group: ShareGroup) -> None:
    group.produce([b"a"])
    group.may_renew, group.limit = False, 1
    async with running(consumer_of(group), Handler(lambda _: asyncio.sleep(1_000))) as consumer:
        await until(lambda: group.states() == ["given up"])
        assert consumer.stats().share.given_up == 1


async def test_a_stop_dead_letters_a_batch_that_is_not_full_in_its_last_delivery(
    group: ShareGroup, broker: InMemoryBroker
) -> None:
    """Its records wait in it."""
    group.limit = 1
    group.produce(VALUES[:3])

    @batches(size=10, linger=1_000)
    async def handle(batch: Batch[Record]) -> None:
        raise AssertionError

    async with running(consumer_of(group, broker, dead_letter="dead", max_deliveries=1), handle) as consumer:
        await until(lambda: consumer.stats().buffered == 3)
        consumer.stop()
    assert group.states() == ["accepted"] * 3
    assert values_in(broker, "dead") == VALUES[:3]


async def test_what_is_late_in_its_last_delivery_is_renewed(group: ShareGroup) -> None:
    """What cannot begin before its lock ends is released to other members, unless nobody would get it."""
    group.limit = 1
    group.produce([b"x"] * 100)
    hang = asyncio.Event()
    is_hanging = False

    async def handle(record: Record) -> None:
        await (hang.wait() if is_hanging else asyncio.sleep(0.5))

    async with running(consumer_of(group, max_concurrency=10), handle) as consumer:
        await until(lambda: consumer.stats().buffered > 20)
        is_hanging = True
        await asyncio.sleep(200)
        assert "given up" not in group.states()
        hang.set()
        is_hanging = False
        await until(lambda: group.states() == ["accepted"] * 100)


@pytest.mark.parametrize("parts", [(), (TopicPartition("t", 0),)])
async def test_a_pause_keeps_what_waits_in_its_last_delivery(
    group: ShareGroup, parts: tuple[TopicPartition, ...]
) -> None:
    """Released, it would be lost."""
    group.limit = 1
    group.produce([b"a"])
    handler = Handler(lambda record: raising(ValueError())(record) if record.attempt == 1 else None)
    async with running(consumer_of(group, retry=RetryPolicy(first_delay=20)), handler) as consumer:
        await until(lambda: consumer.stats().parked == 1)
        consumer.pause(*parts)
        await asyncio.sleep(200)
        assert (group.states(), handler.seen[b"a"]) == (["acquired"], 1)
        consumer.resume(*parts)
        await until(lambda: group.states() == ["accepted"])


async def test_a_dead_letter_that_is_not_written_is_not_acknowledged(group: ShareGroup, broker: InMemoryBroker) -> None:
    """Its lock is renewed until it is."""
    group.produce([b"a"])
    broker.hang(1)
    handler = Handler(raising(Reject("no")))
    consumer = consumer_of(group, broker, dead_letter=lambda_dead(is_open := asyncio.Event()))
    async with running(consumer, handler):
        await asyncio.sleep(200)
        assert group.states() == ["acquired"]
        is_open.set()
        await until(lambda: group.states() == ["accepted"])
    broker.unhang(1)
    assert group.counts() == [1]


def lambda_dead(is_open: asyncio.Event) -> Any:
    async def dead(record: Record, error: Exception) -> None:
        await is_open.wait()

    return dead


async def test_batches(group: ShareGroup) -> None:
    """Each record of a batch is acknowledged by itself."""
    group.produce(VALUES)

    async def handle(batch: Batch[Record]) -> None:
        for record in batch:
            if record.value == b"3" and record.delivery_count == 1:
                batch.fail(record, ValueError())

    async with running(consumer_of(group), batches(handle, size=5, linger=0.1)):
        await until(lambda: group.states() == ["accepted"] * 10)
    assert group.counts() == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1]


async def test_results(group: ShareGroup) -> None:
    """A record is accepted when the next result is asked for."""
    group.produce(VALUES)
    seen = []
    async with consumer_of(group, until="end") as consumer:
        async for record, value in consumer.results(Handler(lambda record: record.value)):
            assert record.value == value
            seen.append(value)
    assert (sorted(seen), set(group.states())) == (VALUES, {"accepted"})


async def test_deserializers_and_topics(group: ShareGroup) -> None:
    """As in other consumers; what cannot be deserialised is released."""
    group.produce([b"1", b"x"])
    seen = []

    async def handle(record: Record[Any, int]) -> None:
        seen.append(record.value)

    async with running(consumer_of(group, value_deserializer=int), {"t": handle}):
        await until(lambda: group.states() == ["accepted", "given up"])
    assert seen == [1]


async def test_unreadable_offsets_are_released_late(group: ShareGroup) -> None:
    """Another replica may be intact by then. They are reported, and the others go on."""
    group.produce([b"a", None, b"c"])
    async with running(consumer_of(group), Handler()) as consumer:
        await until(lambda: group.states() == ["accepted", "acquired", "accepted"])
        assert [one.kind for one in consumer.health().problems] == [ProblemKind.UNREADABLE]
        began = asyncio.get_running_loop().time()
        await until(lambda: group.states()[1] == "given up", 1_000)
        assert asyncio.get_running_loop().time() - began > 4 * 25
        assert consumer.stats().share.unreadable == 5


# -- locks ----------------------------------------------------------------------------------------------


async def test_a_lock_that_cannot_be_renewed_cancels_its_handler(
    group: ShareGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """Shortly before its end, so that the record can still be released. That is a problem, and no ACCEPT is sent."""
    group.may_renew, group.limit = False, 2
    group.produce([b"a"])
    client, handler = FakeShareClient(group), Handler(lambda record: asyncio.sleep(100))
    async with running(consumer_of(group, client=client), handler) as consumer:
        await until(lambda: handler.cancelled)
        assert 27 < asyncio.get_running_loop().time() < 30
        await until(lambda: handler.seen[b"a"] == 2)
        (problem,) = consumer.health().problems
        assert problem.kind is ProblemKind.LOCK_LOST
        assert problem.message.startswith("1 lock has ended within the last minute before their handlers, and the")
        assert "share.renew.acknowledge.enable" in problem.message
        await until(lambda: group.states() == ["given up"])
        assert consumer.stats().share.lost == 2
        assert consumer.health().problems[0].message.startswith("2 locks have ended")
    assert "its outputs were sent: handlers that run are cancelled, and the records are delivered again" in caplog.text
    assert AcknowledgeType.ACCEPT not in {kind for kind, _ in client.sent}


async def test_a_record_is_dead_lettered_if_its_handler_is_too_slow_for_each_delivery(
    group: ShareGroup, broker: InMemoryBroker
) -> None:
    """Otherwise the group would give it up, and nobody would know."""
    group.may_renew = False
    group.produce([b"a"])
    handler = Handler(lambda record: asyncio.sleep(100))
    async with running(consumer_of(group, broker, dead_letter="dead", max_deliveries=2), handler):
        await until(lambda: group.states() == ["accepted"], 1_000)
    assert (handler.cancelled[b"a"], values_in(broker, "dead")) == (2, [b"a"])


async def test_without_renewals_a_retry_must_fit_the_lock(group: ShareGroup) -> None:
    """Otherwise the record is released at once."""
    group.may_renew = False
    group.produce([b"a"])
    client = FakeShareClient(group)
    client._refused_renew = True
    retry = RetryPolicy(first_delay=10, multiplier=10, max_delay=100, jitter=0, max_attempts=5)
    handler = Handler(lambda record: raising(ValueError())(record) if record.delivery_count == 1 else None)
    async with running(consumer_of(group, client=client, retry=retry), handler):
        await until(lambda: group.states() == ["accepted"])
        assert asyncio.get_running_loop().time() < 15
    assert handler.counts == [1, 1, 2]


async def test_a_handler_that_ends_after_its_lock_is_late(group: ShareGroup) -> None:
    """The lock has ended at the broker although the member did not know."""
    group.produce([b"a"])
    client, late = FakeShareClient(group, delay=0.01), list[Record]()
    client.fault = lambda kind, offset: Acknowledged.NOT_HELD if kind is AcknowledgeType.ACCEPT else None
    async with running(consumer_of(group, client=client, on_late=late.append), Handler()) as consumer:
        await until(lambda: late)
        client.fault = lambda kind, offset: None
        await until(lambda: group.states() == ["accepted"], 100)  # its lock has ended, and it was delivered again
        assert (consumer.stats().share.late, [record.value for record in late]) == (1, [b"a"])
    assert group.counts() == [2]


async def test_a_handler_that_ignores_its_lost_lock_is_late(group: ShareGroup) -> None:
    """A renewal has been refused because the lock had ended. The handler is cancelled, and goes on. Its record is
    delivered again meanwhile, also here, and both end by themselves."""
    group.produce([b"a"])
    client, late = FakeShareClient(group, delay=0.01), list[Record]()
    client.fault = lambda kind, offset: Acknowledged.NOT_HELD if kind is AcknowledgeType.RENEW else None

    async def stubborn(record: Record) -> None:
        if record.delivery_count > 1:
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    async with running(consumer_of(group, client=client, on_late=late.append), stubborn) as consumer:
        await until(lambda: group.states() == ["accepted"], 100)
        assert not late
        await until(lambda: late, 100)
        share = consumer.stats().share
        assert (share.lost, share.late, share.accepted) == (1, 1, 1)
    assert group.counts() == [2]


async def test_an_acknowledgement_sent_after_the_end_of_the_lock_is_late_whatever_the_answer(
    group: ShareGroup,
) -> None:
    """Below the group's start offset the broker answers each acknowledgement like one that it has applied."""
    group.produce([b"a"])
    client, late = FakeShareClient(group), list[Record]()

    async def block(record: Record) -> None:
        group.places[TopicPartition("t", 0)][0].ends += 100
        loop: Any = asyncio.get_running_loop()
        loop._virtual.now += 40  # the handler blocks the event loop

    async with running(consumer_of(group, client=client, on_late=late.append), block) as consumer:
        await until(lambda: late)
        assert consumer.stats().share.late == 1


async def test_an_acknowledgement_answered_after_the_end_of_the_lock_is_late_whatever_the_answer(
    group: ShareGroup,
) -> None:
    """The process hangs after its handler has ended, before the request is sent."""
    group.produce([b"a"])
    client, late = FakeShareClient(group, delay=0.01), list[Record]()

    async def hang_soon(record: Record) -> None:
        loop: Any = asyncio.get_running_loop()
        group.places[TopicPartition("t", 0)][0].ends += 100
        loop.call_later(0.005, lambda: setattr(loop._virtual, "now", loop.time() + 40))

    async with running(consumer_of(group, client=client, on_late=late.append), hang_soon) as consumer:
        await until(lambda: late)
        assert (consumer.stats().share.late, consumer.stats().share.accepted) == (1, 1)


@pytest.mark.parametrize("fails", [True, False])
async def test_a_record_that_comes_again_before_its_handler_has_ended(group: ShareGroup, fails: bool) -> None:
    """The broker has lost the lock, and nobody knows: the earlier handler is cancelled. If it does not listen, its
    failure does not release the later delivery, and its success is late."""
    group.produce([b"a"])
    gate, handler = asyncio.Event(), Handler()
    late: list[int] = []

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                handler.cancelled[b"a"] += 1
        if fails:
            raise ValueError

    handler.does = lambda record: stubborn() if record.delivery_count == 1 else asyncio.sleep(10)
    consumer: Any = consumer_of(group, on_late=lambda record: late.append(record.delivery_count))
    async with running(consumer, handler):
        await until(lambda: handler.seen[b"a"] == 1)
        (place,) = group.places[TopicPartition("t", 0)]
        place.ends = 0.0
        group.expire(1.0)
        await until(lambda: handler.seen[b"a"] == 2)
        assert handler.cancelled[b"a"] == 1
        gate.set()
        await until(lambda: group.states() == ["accepted"])
        assert group.counts() == [2]
    assert consumer.stats().share.lost == 1
    assert late == ([] if fails else [1])


async def test_on_late_may_fail(group: ShareGroup, caplog: pytest.LogCaptureFixture) -> None:
    """That is logged; the run goes on."""
    group.produce([b"a", b"b"])
    client = FakeShareClient(group)
    client.fault = lambda kind, offset: Acknowledged.NOT_HELD if offset == 0 else None
    async with running(consumer_of(group, client=client, on_late=raising(ValueError())), Handler()) as consumer:
        await until(lambda: consumer.stats().share.late and consumer.stats().share.accepted)
    assert "acknowledged_late" in {getattr(one, "action", "") for one in caplog.records}
    assert "on_late_failed" in {getattr(one, "action", "") for one in caplog.records}


async def test_a_broker_that_is_away_for_longer_than_a_lock(group: ShareGroup) -> None:
    """Nothing is renewed, so handlers are cancelled when their locks have ended. It goes on when the broker is back."""
    group.produce(VALUES)
    client, handler = FakeShareClient(group), Handler(lambda record: asyncio.sleep(60))
    async with running(consumer_of(group, client=client), handler) as consumer:
        await until(lambda: consumer.stats().in_flight == 10)
        client.away = True
        await until(lambda: handler.cancelled.total() == 10)
        assert 30 <= asyncio.get_running_loop().time() < 32
        client.away = False
        client.wake()
        await until(lambda: group.states() == ["accepted"] * 10, 200)
    assert set(group.counts()) == {2}


async def test_no_more_is_acquired_than_can_begin(group: ShareGroup) -> None:
    """With slow handlers, only what runs at once; with quick ones, what begins within a part of a lock."""
    group.produce([b"x"] * 1_000)
    seconds = 60.0
    handler = Handler(lambda record: asyncio.sleep(seconds))
    async with running(consumer_of(group, max_concurrency=10), handler) as consumer:
        await asyncio.sleep(50)
        assert group.states().count("acquired") == 10
        seconds = 0.1
        await until(lambda: group.states().count("accepted") > 200)
        assert 10 < group.states().count("acquired") < 500
        await until(lambda: group.states().count("accepted") == 1_000, 1_000)
        assert consumer.stats().share.released_unbegun == 0
    assert set(group.counts()) == {1}


async def test_what_cannot_begin_in_time_is_released(group: ShareGroup) -> None:
    """Handlers that were quick hang: what waits behind them goes to other members, before its lock ends."""
    group.produce([b"x"] * 300)
    hang = asyncio.Event()
    is_hanging = False

    async def handle(record: Record) -> None:
        await (hang.wait() if is_hanging else asyncio.sleep(0.5))

    async with running(consumer_of(group, max_concurrency=10), handle) as consumer:
        await until(lambda: consumer.stats().buffered > 20)
        is_hanging = True
        await until(lambda: consumer.stats().buffered == 0, 40)
        await until(lambda: group.states().count("acquired") == 10, 1)
        assert consumer.stats().share.released_unbegun > 20
        hang.set()
        is_hanging = False
        await until(lambda: group.states().count("accepted") == 300, 1_000)
    assert max(group.counts()) == 2


# -- pauses ---------------------------------------------------------------------------------------------


async def test_what_is_paused_is_released_and_not_acquired(group: ShareGroup) -> None:
    """The records of a paused partition go to other members; no delivery of another one is used up."""
    group.produce(VALUES)
    group.produce([b"a", b"b"], partition=1)
    gate = asyncio.Event()
    handler = Handler(lambda record: gate.wait())
    client = FakeShareClient(group)
    async with running(consumer_of(group, client=client, max_concurrency=2), handler) as consumer:
        await until(lambda: consumer.stats().in_flight == 2)
        consumer.pause(TopicPartition("t", 0))
        await asyncio.sleep(1)
        assert client.excluded == {TopicPartition("t", 0)}
        assert group.states().count("acquired") == 2  # they run
        gate.set()
        await until(lambda: group.states(1) == ["accepted"] * 2)
        assert group.states().count("accepted") == 2
        await asyncio.sleep(100)
        assert max(group.counts()) <= 2
        consumer.resume(TopicPartition("t", 0))
        await until(lambda: group.states() == ["accepted"] * 10)


async def test_a_pause_of_everything(group: ShareGroup) -> None:
    """Records that wait, here for their retry, are released. Running handlers go on and are accepted."""
    group.produce([b"slow", b"failing"])
    handler = Handler(lambda record: asyncio.sleep(50) if record.value == b"slow" else raising(ValueError())(record))
    retry = RetryPolicy(first_delay=100)
    async with running(consumer_of(group, retry=retry), handler) as consumer:
        await until(lambda: consumer.stats().parked == 1)
        consumer.pause()
        await until(lambda: group.states() == ["acquired", "available"])
        await until(lambda: group.states() == ["accepted", "available"])
        await asyncio.sleep(1_000)
        assert group.counts() == [1, 1]
        handler.does = lambda record: None
        consumer.resume()
        await until(lambda: group.states() == ["accepted", "accepted"])


async def test_a_record_that_fails_while_everything_is_paused_is_released(group: ShareGroup) -> None:
    """It would not be tried again here."""
    group.produce([b"a"])
    gate = asyncio.Event()

    async def fails(record: Record) -> None:
        await gate.wait()
        raise ValueError

    async with running(consumer_of(group, retry=RetryPolicy()), fails) as consumer:
        await until(lambda: consumer.stats().in_flight == 1)
        consumer.pause()
        gate.set()
        await until(lambda: group.states() == ["available"])


async def test_a_batch_that_fails_while_everything_is_paused_is_released(group: ShareGroup) -> None:
    """Its records would run one by one, and wait here for that with their locks."""
    group.produce(VALUES)
    gate = asyncio.Event()

    async def handle(batch: Batch[Any]) -> None:
        await gate.wait()
        raise ValueError

    async with running(consumer_of(group), batches(handle, size=10, linger=1)) as consumer:
        await until(lambda: consumer.stats().in_flight == 10)
        consumer.pause()
        gate.set()
        await until(lambda: group.states() == ["available"] * 10)
        assert group.counts() == [1] * 10


async def test_max_concurrency_may_be_changed(group: ShareGroup) -> None:
    """A higher number acquires more at once."""
    group.produce([b"x"] * 100)
    async with running(consumer_of(group, max_concurrency=5), Handler(lambda record: asyncio.sleep(20))) as consumer:
        await until(lambda: consumer.stats().in_flight == 5)
        consumer.max_concurrency = 50
        await until(lambda: consumer.stats().in_flight == 50)


# -- ends -----------------------------------------------------------------------------------------------


async def test_a_stop_releases_what_was_not_begun(group: ShareGroup) -> None:
    """At once, before running handlers have ended. These are accepted."""
    group.produce([b"x"] * 100)
    seconds = 0.5
    async with running(consumer_of(group, max_concurrency=10), Handler(lambda _: asyncio.sleep(seconds))) as consumer:
        await until(lambda: consumer.stats().buffered > 10)
        seconds = 10.0
        await asyncio.sleep(3)
        ran = consumer.stats().in_flight
        accepted = group.states().count("accepted")
        consumer.stop()
        await asyncio.sleep(0.1)
        assert group.states().count("acquired") == ran == 10
    assert group.states().count("accepted") == accepted + ran
    assert "acquired" not in group.states()


async def test_a_drain_renews_locks(group: ShareGroup) -> None:
    """Handlers that take longer than a lock end well while it stops."""
    group.produce([b"a"])
    async with running(consumer_of(group, drain_timeout=200), Handler(lambda _: asyncio.sleep(150))) as consumer:
        await until(lambda: consumer.stats().in_flight == 1)
        consumer.stop()
    assert (group.states(), group.counts()) == (["accepted"], [1])


@pytest.mark.parametrize("drain", [True, False])
async def test_a_handler_that_does_not_end_in_time(group: ShareGroup, drain: bool) -> None:
    """It is cancelled, and its record is released."""
    group.produce([b"a"])
    client, handler = FakeShareClient(group), Handler(lambda _: asyncio.sleep(1_000))
    async with running(consumer_of(group, client=client, drain_timeout=10), handler) as consumer:
        await until(lambda: consumer.stats().in_flight == 1)
        consumer.stop(drain=drain)
    assert asyncio.get_running_loop().time() < (12 if drain else 1)
    assert handler.cancelled[b"a"] == 1
    assert group.states() == ["available"]
    assert client.sent == [(AcknowledgeType.RELEASE, 0)]


async def test_a_stop_while_records_wait_for_their_retry(group: ShareGroup) -> None:
    """They are released at once."""
    group.produce(VALUES)
    retry = RetryPolicy(first_delay=1_000)
    async with running(consumer_of(group, retry=retry), Handler(raising(ValueError()))) as consumer:
        await until(lambda: consumer.stats().parked == 10)
        consumer.stop()
        await asyncio.sleep(0.1)
        assert group.states() == ["available"] * 10
        assert consumer.stats().released == 10


async def test_a_stop_while_outputs_are_sent(group: ShareGroup, broker: InMemoryBroker) -> None:
    """They are waited for, for as long as a drain may take. Records whose outputs are not acknowledged are released."""
    group.produce([b"a"])
    broker.hang(1)

    async def copy(record: Record) -> Outgoing:
        return Outgoing("out", record.value)

    async with running(consumer_of(group, broker, drain_timeout=0.5), copy) as consumer:
        await until(lambda: consumer.stats().producing == 1)
        consumer.stop()
    assert group.states() == ["available"]
    broker.unhang(1)


async def test_a_cancelled_run_releases_its_records(group: ShareGroup) -> None:
    """When the consumer is left."""
    group.produce(VALUES)
    async with consumer_of(group, max_concurrency=2, drain_timeout=0) as consumer:
        task = asyncio.create_task(consumer.run(Handler(lambda _: asyncio.sleep(100))))
        await until(lambda: "acquired" in group.states())
        task.cancel()
        await asyncio.wait([task])
    assert set(group.states()) == {"available"}


async def test_an_error_of_the_client_ends_the_run(group: ShareGroup) -> None:
    """What has begun is drained when the consumer is left."""
    group.produce(VALUES)
    client = FakeShareClient(group)
    async with consumer_of(group, client=client) as consumer:
        task = asyncio.create_task(consumer.run(Handler(lambda _: asyncio.sleep(5))))
        await until(lambda: "acquired" in group.states())
        client.fail_fetch = ClientError("the group was deleted")
        client.wake()
        with pytest.raises(ClientError, match="deleted"):
            await task
    assert group.states() == ["accepted"] * 10


async def test_what_is_said_of_a_stop_fits_a_share_group(group: ShareGroup) -> None:
    """It has no offsets to commit and no failure policy, and its retry function may release."""
    group.produce([b"a"])
    for verdict, text in (
        ("stop", "it is delivered again. Fix"),
        ("no", '(0 or more), "release", "dead_letter"'),
        ("no", "retry='no': is what the function returned for"),
        ("dead_letter", "but there is no dead_letter"),
    ):
        async with consumer_of(group, retry=lambda record, error, attempts, found=verdict: found) as consumer:
            with pytest.raises(Exception, match=re.escape(text)) as caught:
                await consumer.run(Handler(raising(ValueError())))
            assert "FailurePolicy" not in str(caught.value)


@pytest.mark.parametrize("is_pause", [False, True])
async def test_a_record_that_fails_in_its_last_delivery_is_not_lost(
    group: ShareGroup, broker: InMemoryBroker, is_pause: bool
) -> None:
    """It cannot be tried again here, because the run ends or everything is paused, and the group would not deliver it
    again either."""
    group.produce([b"a"])
    gate = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.delivery_count < 5:
            raise ValueError
        await gate.wait()
        raise ValueError

    def retry(record: Record, error: Exception, attempts: int) -> Any:
        return 1.0 if record.delivery_count == 5 else "release"

    options: dict[str, Any] = {"dead_letter": "dead", "max_deliveries": 5, "retry": retry}
    async with running(consumer_of(group, broker, **options), handle) as consumer:
        await until(lambda: group.counts() == [5] and consumer.stats().in_flight == 1)
        if is_pause:
            consumer.pause()
        else:
            consumer.stop()
        gate.set()
        await until(lambda: group.states() != ["acquired"])
    assert (group.states(), values_in(broker, "dead")) == (["accepted"], [b"a"])


@pytest.mark.parametrize("end", ["pause", "stop", "lock"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_record_that_waits_in_its_last_delivery_is_not_lost(
    group: ShareGroup, broker: InMemoryBroker, end: str, fails: bool
) -> None:
    """For its next attempt, or for its first. It is not released, as the group would not deliver it again."""
    group.produce([b"a", b"b"])
    group.places[TopicPartition("t", 0)][1].count = 4
    group.may_renew = end != "lock"

    async def handle(record: Record) -> None:
        if record.value == b"b" and fails:
            raise ValueError
        await asyncio.sleep(25)

    retry = RetryPolicy(first_delay=26, max_delay=26, max_attempts=5)
    client = FakeShareClient(group, delay=0.01)
    options: dict[str, Any] = {"dead_letter": "dead", "max_deliveries": 5, "retry": retry}
    options |= {} if fails else {"max_concurrency": 1}
    async with running(consumer_of(group, broker, client=client, **options), handle) as consumer:
        if not fails:
            client._kept += client._acquire(5, asyncio.get_running_loop().time())
        await until(lambda: group.counts() == [1, 5])
        await until(lambda: consumer.stats().parked == 1 if fails else consumer.stats().admitted == 2)
        if end == "pause":
            consumer.pause()
            await asyncio.sleep(100)
            assert group.states()[1] == "acquired"
        if end != "lock":
            consumer.stop()
        else:
            client.away = True
            await asyncio.sleep(60)
            client.away = False
        await until(lambda: group.states() != ["acquired", "acquired"], 300)
        await until(lambda: values_in(broker, "dead") == [b"b"])
    assert group.states()[1] == ("given up" if end == "lock" else "accepted")


async def test_a_retry_function_that_stops_the_run(group: ShareGroup) -> None:
    """The record is released, and the run raises."""
    group.produce([b"a"])
    with pytest.raises(Exception, match="failed for good"):
        async with running(
            consumer_of(group, retry=lambda record, error, attempts: "stop"), Handler(raising(ValueError()))
        ):
            await asyncio.sleep(10)
    assert group.states() == ["available"]


async def test_a_retry_function_that_returns_anything_else(group: ShareGroup) -> None:
    """Ends the run as well."""
    group.produce([b"a"])
    bad: Any = lambda record, error, attempts: None  # noqa: E731
    with pytest.raises(Exception, match="the function returned"):
        async with running(consumer_of(group, retry=bad), Handler(raising(ValueError()))):
            await asyncio.sleep(10)
    assert group.states() == ["available"]


async def test_a_bounded_run_ends_when_nothing_is_left(group: ShareGroup) -> None:
    """Also what was released is done by then, and what another member had is waited for if it comes back."""
    group.produce(VALUES)
    handler = Handler(lambda record: raising(ValueError())(record) if record.delivery_count < 3 else None)
    async with consumer_of(group, until="end") as consumer:
        await consumer.run(handler)
    assert (group.states(), set(group.counts())) == (["accepted"] * 10, {3})
    assert 5 < asyncio.get_running_loop().time() < 8


async def test_a_bounded_run_waits_for_what_may_come_back(group: ShareGroup) -> None:
    """It is not known whether an acknowledgement has arrived: the record may come again when its lock ends."""
    group.produce([b"a"])
    client, times = FakeShareClient(group), list[int]()

    def lost_once(kind: AcknowledgeType, offset: int) -> Acknowledged | None:
        times.append(offset)
        return Acknowledged.UNKNOWN if len(times) == 1 else None

    client.fault = lost_once
    handler = Handler()
    async with consumer_of(group, client=client, until="end") as consumer:
        await consumer.run(handler)
    assert (handler.seen[b"a"], group.states()) == (2, ["accepted"])


async def test_a_bounded_run_does_not_end_while_the_broker_is_away(group: ShareGroup) -> None:
    """What cannot be reached is not at its end."""
    client = FakeShareClient(group)
    async with consumer_of(group, client=client, until="end") as consumer:
        client.away = True
        group.produce(VALUES)
        task = asyncio.create_task(consumer.run(Handler()))
        await asyncio.sleep(100)
        assert not task.done()
        client.away = False
        client.wake()
        await task
    assert group.states() == ["accepted"] * 10


async def test_a_bounded_run_does_not_end_while_a_partition_is_refused(group: ShareGroup) -> None:
    """Its leader answers, and each time with an error."""
    client = FakeShareClient(group)
    async with consumer_of(group, client=client, until="end") as consumer:
        client.failing.add(TopicPartition("t", 0))
        task = asyncio.create_task(consumer.run(Handler()))
        await asyncio.sleep(100)
        assert not task.done()
        client.failing.clear()
        await task


async def test_a_bounded_run_does_not_end_while_a_partition_is_paused(group: ShareGroup) -> None:
    """Its records would be left."""
    group.produce(VALUES)
    group.produce([b"a"], partition=1)
    async with consumer_of(group, until="end") as consumer:
        consumer.pause(TopicPartition("t", 0))
        task = asyncio.create_task(consumer.run(Handler()))
        await until(lambda: group.states(1) == ["accepted"])
        await asyncio.sleep(100)
        assert not task.done()
        consumer.resume(TopicPartition("t", 0))
        await task
    assert group.states() == ["accepted"] * 10


async def test_a_bounded_run_whose_acknowledgements_are_not_answered(group: ShareGroup) -> None:
    """It does not end, and a stop of it raises."""
    group.produce([b"a"])
    client = FakeShareClient(group)
    handler = Handler(lambda record: setattr(client, "away", True))
    async with consumer_of(group, client=client, until="end") as consumer:
        task = asyncio.create_task(consumer.run(handler))
        await asyncio.sleep(100)
        assert not task.done()
        consumer.stop()
        with pytest.raises(NotCommitted, match="1 acknowledgements without an answer"):
            await task


async def test_commit_now_waits_for_what_has_ended(group: ShareGroup) -> None:
    """And not for what ends meanwhile."""
    group.produce([b"x"] * 300)
    client, handler = FakeShareClient(group, delay=0.2), Handler(lambda _: asyncio.sleep(0.05))
    async with running(consumer_of(group, client=client, max_concurrency=1), handler) as consumer:
        await until(lambda: consumer.stats().succeeded >= 10)
        before, began = consumer.stats().succeeded, asyncio.get_running_loop().time()
        await consumer.commit_now()
        assert asyncio.get_running_loop().time() - began < 0.5
        assert consumer.stats().share.accepted >= before
        client.away = True
        await until(lambda: consumer.stats().succeeded > before + 10)
        with pytest.raises(NotCommitted, match="t-0"):
            await consumer.commit_now()
        client.away = False


async def test_nothing_can_be_skipped(group: ShareGroup) -> None:
    """A group without positions cannot."""
    async with running(consumer_of(group), Handler()) as consumer:
        with pytest.raises(NotSkipped, match="share group"):
            await consumer.skip(TopicPartition("t", 0), 1)


async def test_statistics(group: ShareGroup) -> None:
    """All records are in one state, and the partition is shown."""
    group.produce(VALUES)
    gate = asyncio.Event()
    async with running(consumer_of(group), Handler(lambda record: gate.wait())) as consumer:
        await until(lambda: consumer.stats().in_flight == 10)
        stats = consumer.stats()
        (partition,) = stats.partitions
        assert (partition.position, partition.incompletes, partition.in_flight) == (10, 10, 10)
        assert (stats.share.locked, stats.lag) == (10, None)
        gate.set()
        await until(lambda: consumer.stats().share.accepted == 10)
        stats = consumer.stats()
        assert stats.admitted == stats.ended == 10
        assert (stats.share.locked, stats.share.unanswered) == (0, 0)


def test_a_lost_lock_may_be_pickled() -> None:
    """For handlers in processes."""
    import pickle  # noqa: PLC0415

    assert isinstance(pickle.loads(pickle.dumps(LockLost())), LockLost)


async def test_a_partition_that_is_paused_before_it_is_assigned(group: ShareGroup) -> None:
    """Nothing of it is acquired from the beginning."""
    group.produce(VALUES)
    group.produce([b"a"], partition=1)
    client = FakeShareClient(group)
    async with consumer_of(group, client=client) as consumer:
        consumer.pause(TopicPartition("t", 0))
        task = asyncio.create_task(consumer.run(Handler()))
        await until(lambda: group.states(1) == ["accepted"])
        assert client.excluded == {TopicPartition("t", 0)}
        consumer.stop()
        await task
    assert set(group.counts()) == {0}


async def test_what_comes_after_a_pause_is_released(group: ShareGroup) -> None:
    """The request was on its way when everything was paused."""
    client = FakeShareClient(group)
    async with running(consumer_of(group, client=client), Handler()) as consumer:
        await asyncio.sleep(1)
        group.produce([b"a"])
        client._kept = client._acquire(1, asyncio.get_running_loop().time())
        assert group.states() == ["acquired"]
        consumer.pause()
        await until(lambda: group.states() == ["available"], 2)
        await asyncio.sleep(100)
        assert group.counts() == [1]
        consumer.resume()
        await until(lambda: group.states() == ["accepted"])


async def test_what_a_slow_broker_brings_when_nothing_more_is_wanted(group: ShareGroup) -> None:
    """It is taken, so that its lock is kept or released; and an error of the group ends the run."""
    group.produce([b"a"])
    client, gate = FakeShareClient(group), asyncio.Event()
    async with consumer_of(group, client=client, max_concurrency=1) as consumer:
        task = asyncio.create_task(consumer.run(Handler(lambda record: gate.wait())))
        await until(lambda: consumer.stats().in_flight == 1)
        await asyncio.sleep(5)
        group.produce([b"b"])
        client._kept = client._acquire(1, asyncio.get_running_loop().time())
        await asyncio.sleep(2)
        stats = consumer.stats().share
        assert stats is not None
        assert (client._kept, stats.locked) == ([], 2)
        await asyncio.sleep(100)
        assert group.counts() == [1, 1]
        client.fail_fetch = ClientError("the group is full")
        await asyncio.sleep(2)
        gate.set()
        with pytest.raises(ClientError, match="full"):
            await task


@pytest.mark.parametrize("targets", [(), ("t",)])
async def test_a_handler_may_pause(group: ShareGroup, targets: tuple[str, ...]) -> None:
    """In the middle of a turn, in which records have ended that are not counted yet: what waits is released, and
    nothing else."""
    client = FakeShareClient(group)

    async def handle(record: Record) -> None:
        if record.value == b"4":
            consumer.pause(*targets)

    async with running(consumer_of(group, client=client), handle) as consumer:
        await asyncio.sleep(0.1)
        group.produce(VALUES)
        await until(lambda: group.states().count("accepted") == 5)
        await asyncio.sleep(100)
        assert group.states() == ["accepted"] * 5 + ["available"] * 5
        assert (consumer.stats().succeeded, consumer.stats().released) == (5, 5)
        consumer.resume(*targets)
        await until(lambda: group.states() == ["accepted"] * 10)
        stats = consumer.stats()
        assert (stats.in_flight, stats.buffered, stats.parked) == (0, 0, 0)
        assert stats.admitted == stats.ended == 15
