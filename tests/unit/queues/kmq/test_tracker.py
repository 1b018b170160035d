"""Trackers whose markers, or whose copies, do not get through."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from aioparallel import ConsumerStateError, Options, Record
from aioparallel.delivery.letters import read_letter
from aioparallel.group.client import Fetched, Span
from aioparallel.queues.kmq import RedeliveryTracker, redelivery, tracking
from aioparallel.queues.kmq.leasing import Leasing
from aioparallel.queues.kmq.markers import END, key_of, start_of
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryClient, InMemoryProducer, Request
from tests.support.extensions import context_of
from tests.support.inside import client_of
from tests.support.waiting import until
from tests.unit.queues.kmq.conftest import client, consumer, produce, tracker
from tests.unit.queues.kmq.test_queue import held, open_markers, running

NOT_WRITTEN = Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS)


def mark(broker: InMemoryBroker, offset: int, value: bytes) -> None:
    """As a consumer does."""
    broker.append("q-markers", value, key=key_of(0, offset), partition=0, timestamp=int(time.time() * 1_000))


class SilentClient(InMemoryClient):
    """Its fetches get no answer for a while."""

    silent_since: float | None = None

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """Waits for the silence to end."""
        found = await super().fetch({} if self.silent_since is not None else quotas, most)
        while self.silent_since is not None:
            await asyncio.sleep(0.3)
        return found

    def since_end_seen(self, partition: TopicPartition) -> float | None:
        """Nothing is told meanwhile."""
        if self.silent_since is not None:
            return asyncio.get_running_loop().time() - self.silent_since
        return super().since_end_seen(partition)


async def test_markers_that_are_not_told_of(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the leader of the markers is silent nobody knows what has ended: the clock does not count."""
    monkeypatch.setattr(tracking, "_UNTOLD", 0.2)
    client = SilentClient(broker, "trackers", session_timeout=2, heartbeat_interval=0.02)
    producer = InMemoryProducer(broker)
    watching = RedeliveryTracker("q", group_id="trackers", client=client, producer=producer, use_now_after=0.1)
    produce(broker, [b"ended", b"open"])
    async with running(watching):
        for offset in range(2):
            mark(broker, offset, start_of(1_000))
        await until(lambda: watching.stats().open == 2)
        await asyncio.sleep(0.5)  # it has seen that these are all
        client.silent_since = asyncio.get_running_loop().time()
        client.wake()
        await asyncio.sleep(0.1)
        mark(broker, 0, END)
        await asyncio.sleep(1.2)
        assert len(held(broker, "q")) == 2
        client.silent_since = None
        await until(lambda: not open_markers(broker))
    assert [one.value for one in held(broker, "q")[2:]] == [b"open"]


async def test_what_could_not_be_sent_is_not_counted(broker: InMemoryBroker) -> None:
    """What was acknowledged is, once."""
    broker.faults.always(Request.PRODUCE, NOT_WRITTEN)
    produce(broker, [b"a"])
    async with running(tracker(broker)) as watching:
        mark(broker, 0, start_of(100))
        await asyncio.sleep(2)
        assert watching.stats().redelivered == 0
        broker.faults.heal()
        await until(lambda: not open_markers(broker))
        assert watching.stats().redelivered == 1


async def test_a_lease_that_is_extended_while_it_could_not_be_sent(broker: InMemoryBroker) -> None:
    """It holds: the record is not delivered again."""
    broker.faults.always(Request.PRODUCE, NOT_WRITTEN)
    produce(broker, [b"a"])
    async with running(tracker(broker)) as watching:
        mark(broker, 0, start_of(100))
        await asyncio.sleep(0.6)
        mark(broker, 0, start_of(60_000))
        await asyncio.sleep(1)
        broker.faults.heal()
        await asyncio.sleep(2.5)
        assert watching.stats().open == 1
    assert len(held(broker, "q")) == 1


async def test_records_that_are_no_markers(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """They are skipped, and the first and the tenth are logged. Markers behind them count."""
    for _ in range(12):
        broker.append("q-markers", b"hello", key=b"who", partition=0)
    produce(broker, [b"a"])
    mark(broker, 0, start_of(100))
    async with running(tracker(broker)) as watching:
        await until(lambda: watching.stats().redelivered == 1)
    logged = [line.getMessage() for line in caplog.records if getattr(line, "action", "") == "foreign_marker"]
    assert ["1 such records" in logged[0], "10 such records" in logged[1]] == [True, True]
    assert len(logged) == 2


async def test_a_count_that_makes_no_sense(broker: InMemoryBroker) -> None:
    """Whoever wrote it: it ends no tracker."""
    broker.append("q", b"a", partition=0, headers=(("kmq-redelivery-count", b"\xff\xff\x00\x00"),))
    async with running(tracker(broker)):
        mark(broker, 0, start_of(100))
        await until(lambda: len(held(broker, "q")) == 2, 10)
    assert held(broker, "q")[1].headers == (("kmq-redelivery-count", b"\x01"),)


async def test_end_markers_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """For long: they are written anew, and no second copy is sent."""
    monkeypatch.setattr(tracking, "_LOST", 0.4)
    broker = InMemoryBroker(nodes=2)
    for name, partitions, node in (("q", 1, 1), ("q-markers", 1, 2), ("q__undelivered", 1, 1)):
        broker.create_topic(name, partitions)
        broker.move_leader(TopicPartition(name, 0), node)
    broker.faults.always(Request.PRODUCE, NOT_WRITTEN, node=2)
    produce(broker, [b"a"])
    async with running(tracker(broker)) as watching:
        mark(broker, 0, start_of(100))
        await until(lambda: watching.stats().lost_ends >= 2)
        assert watching.stats().redelivered == 1
        broker.faults.heal()
        await until(lambda: watching.stats().open == 0)
    assert len(held(broker, "q")) == 2


async def test_a_copy_that_is_refused_stays_open(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Told once a minute, not each time that somebody looks; the others are delivered again; and nothing of it is
    lost."""
    broker.faults.always(Request.PRODUCE, Fault(error=ErrorCode.INVALID_RECORD))
    produce(broker, [b"a"])
    async with running(tracker(broker)) as watching:
        mark(broker, 0, start_of(100))
        await until(lambda: "cannot be redelivered" in caplog.text)
        (problem,) = watching.health().problems
        assert problem.message.startswith("q-0 offset 0 cannot be redelivered: could not produce to q-0")
        await asyncio.sleep(2.6)
        assert caplog.text.count("cannot be redelivered") == 1
        broker.faults.heal()
        produce(broker, [b"b"])
        mark(broker, 1, start_of(100))
        await until(lambda: watching.stats().redelivered == 1)
        await until(lambda: watching.stats().open == 1)  # when it has read the end marker of its own
    assert open_markers(broker) == {(0, 0)}
    assert broker.group("trackers").offsets[TopicPartition("q-markers", 0)].offset == 0


async def test_dead_letters_hold_up_no_redeliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their topic has no leader: copies go on, each letter is sent once when it has one."""
    monkeypatch.setattr(tracking, "_LOST", 0.3)
    broker = InMemoryBroker(nodes=2)
    for name, node in (("q", 1), ("q-markers", 1), ("q__undelivered", 2)):
        broker.create_topic(name, 1)
        broker.move_leader(TopicPartition(name, 0), node)
    broker.faults.always(Request.PRODUCE, NOT_WRITTEN, node=2)
    for value, count in ((b"often", b"\x03"), (b"once", b"\x00")):
        broker.append("q", value, partition=0, headers=(("kmq-redelivery-count", count),))
    async with running(tracker(broker)) as watching:
        for offset in range(2):
            mark(broker, offset, start_of(100))
        await until(lambda: watching.stats().redelivered == 1)
        produce(broker, [b"later"])
        mark(broker, 3, start_of(100))
        await until(lambda: watching.stats().redelivered == 2)
        await asyncio.sleep(0.5)
        broker.faults.heal()
        await until(lambda: watching.stats().dead_lettered == 1)
        await until(lambda: not watching.stats().open)
    assert [one.value for one in held(broker, "q__undelivered")] == [b"often"]
    assert [one.value for one in held(broker, "q")[2:]] == [b"once", b"later", b"later"]


async def test_dead_letters_hold_up_no_end() -> None:
    """Nor a rebalance, for which all trackers wait: while nobody takes them, for a moment only."""
    broker = InMemoryBroker(nodes=2)
    for name, node in (("q", 1), ("q-markers", 1), ("q__undelivered", 2)):
        broker.create_topic(name, 1)
        broker.move_leader(TopicPartition(name, 0), node)
    broker.faults.always(Request.PRODUCE, NOT_WRITTEN, node=2)
    broker.append("q", b"often", partition=0, headers=(("kmq-redelivery-count", b"\x03"),))
    client = InMemoryClient(broker, "trackers", session_timeout=2, heartbeat_interval=0.02)
    watching = RedeliveryTracker(
        "q", group_id="trackers", client=client, producer=InMemoryProducer(broker), use_now_after=0.1
    )
    time = asyncio.get_running_loop().time
    async with running(watching):
        mark(broker, 0, start_of(100))
        await until(lambda: not watching._tracking.redeliverer.none_away.is_set())
        began = time()
    assert time() - began < 10


async def test_a_consumer_that_has_no_time_left_hurries_its_tracker(broker: InMemoryBroker) -> None:
    """A redelivery that nobody acknowledges is waited for until the drain of the tracker is over; not then."""
    broker.faults.always(Request.PRODUCE, NOT_WRITTEN)
    produce(broker, [b"open"])
    producer = InMemoryProducer(broker)
    watching = RedeliveryTracker(
        "q", group_id="trackers", client=client(broker, "trackers"), producer=producer, use_now_after=0.1
    )
    leasing = Leasing(QueueTopics("q", None, None), 30.0, lambda _: watching)
    leasing.attach(context_of(Options(), "g", client(broker, "g"), producer))
    await leasing.start()
    working = asyncio.create_task(leasing.work())
    await until(lambda: watching.health().ready)
    mark(broker, 0, start_of(100))
    await until(lambda: any(one.under_way for one in watching._tracking.tracked.values()))
    working.cancel()
    await asyncio.wait([working])
    time = asyncio.get_running_loop().time
    began = time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await leasing.stop()
    assert time() - began < 10


async def test_large_records_are_sent_again_by_and_by(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of a megabyte each would be a gigabyte at once: so many bytes a look, and none is taken for gone."""
    monkeypatch.setattr(redelivery, "_BYTES", 1_000)
    monkeypatch.setattr(tracking, "_AGAIN", 0.05)
    produce(broker, [b"x" * 400] * 10)
    async with running(tracker(broker)) as watching:
        for offset in range(10):
            mark(broker, offset, start_of(100))
        await until(lambda: 0 < watching.stats().redelivered < 10)
        await until(lambda: watching.stats().redelivered == 10)
        await until(lambda: not watching.stats().open)
        assert watching.stats().gone == 0


async def test_a_fast_clock_ends_no_lease_of_others(broker: InMemoryBroker) -> None:
    """Markers of a consumer whose clock is an hour ahead (CreateTime): the leases of others last, and its own end in
    time."""
    produce(broker, [b"a", b"b"])
    async with running(tracker(broker)) as watching:
        mark(broker, 0, start_of(60_000))
        ahead = int(time.time() * 1_000) + 3_600_000
        broker.append("q-markers", start_of(300), key=key_of(0, 1), partition=0, timestamp=ahead)
        await until(lambda: watching.stats().redelivered == 1)
        await asyncio.sleep(0.5)
        assert watching.stats().redelivered == 1
    assert [one.value for one in held(broker, "q")[2:]] == [b"b"]


async def test_a_slow_clock_ends_no_lease_early(broker: InMemoryBroker) -> None:
    """Markers of a consumer whose clock is an hour behind, read as they come: leases last, as long as they say."""
    produce(broker, [b"a", b"b"])
    async with running(tracker(broker)) as watching:
        await asyncio.sleep(0.3)  # it has seen that there are none
        began, behind = time.monotonic(), int(time.time() * 1_000) - 3_600_000
        broker.append("q-markers", start_of(60_000), key=key_of(0, 0), partition=0, timestamp=behind)
        broker.append("q-markers", start_of(1_000), key=key_of(0, 1), partition=0, timestamp=behind)
        await until(lambda: watching.stats().redelivered)
        assert time.monotonic() - began > 0.6  # the tracker knows to some tenths when it had read all
        await asyncio.sleep(0.3)
        assert watching.stats().redelivered == 1
    assert [one.value for one in held(broker, "q")[2:]] == [b"b"]


async def test_slow_clocks_hold_no_lease_up(broker: InMemoryBroker) -> None:
    """While markers of consumers whose clocks are an hour behind come all the time, leases end in time."""
    produce(broker, [b"a", b"b"])
    async with running(tracker(broker, use_now_after=60)) as watching:
        mark(broker, 0, start_of(500))
        deadline = time.monotonic() + 10
        while not watching.stats().redelivered and time.monotonic() < deadline:
            behind = int(time.time() * 1_000) - 3_600_000
            broker.append("q-markers", END, key=key_of(0, 1), partition=0, timestamp=behind)
            await asyncio.sleep(0.05)
        assert watching.stats().redelivered == 1


@pytest.mark.parametrize("put", [3_600.0, -3_600.0])
async def test_a_wall_clock_that_is_put_redelivers_nothing_and_holds_nothing_up(
    broker: InMemoryBroker, put: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of consumer and tracker, while both run: handlers that renew their leases keep their records, one that has died
    gives its own back."""
    wall, done = time.time, asyncio.Event()

    async def handle(record: Record) -> None:
        await done.wait()

    produce(broker, [b"long"] * 20)
    async with running(consumer(broker, lease=60), handle) as one, running(tracker(broker)) as watching:
        await until(lambda: watching.stats().open == 20)
        mark(broker, 0, start_of(1_000))  # the newest lease of these two is one that nobody renews
        await until(lambda: all(one.lag == one.open for one in watching.stats().partitions))  # it is read
        monkeypatch.setattr(time, "time", lambda: wall() + put)
        produce(broker, [b"new"] * 20)
        mark(broker, 1, start_of(1_000))
        await until(lambda: watching.stats().redelivered == 2, 10)
        done.set()
        await until(lambda: not open_markers(broker))
        assert watching.stats().redelivered == 2
        assert one.health().healthy


async def test_a_watch_that_is_cancelled_ends_the_run(broker: InMemoryBroker) -> None:
    """Without it nothing would be delivered again, and nobody would know."""
    async with tracker(broker) as one:
        run = asyncio.create_task(one.run())
        await until(lambda: one.health().ready)
        (watching,) = [task for task in asyncio.all_tasks() if task.get_name() == "aioparallel-extension"]
        watching.cancel()
        with pytest.raises(ConsumerStateError, match="aioparallel-extension was cancelled"):
            await run


async def test_a_record_beyond_the_end_of_the_queue(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log lost its tail: others go on, and it is looked for less and less often."""
    monkeypatch.setattr(redelivery, "_STALLED", 0.2)
    monkeypatch.setattr(tracking, "_AGAIN", 0.1)
    produce(broker, [b"a", b"b", b"lost"])
    broker.truncate_tail(TopicPartition("q", 0), 2)
    async with running(tracker(broker)) as watching:
        mark(broker, 2, start_of(100))
        await asyncio.sleep(0.5)
        mark(broker, 0, start_of(100))
        await until(lambda: watching.stats().redelivered == 2, 10)  # the copy stands where the lost one stood
        await until(lambda: watching.stats().open == 0)
    assert [one.value for one in held(broker, "q")] == [b"a", b"b", b"a", b"a"]


async def test_sparse_records_are_read_by_one_reader(broker: InMemoryBroker) -> None:
    """And nothing is read between them."""
    produce(broker, [b"%d" % n for n in range(5_000)])
    watching = tracker(broker)
    client = client_of(watching._markers)
    asked, read = list[object](), client.read

    def reading(spans: Mapping[TopicPartition, Span | list[Span]]) -> AsyncGenerator[Fetched, None]:
        asked.append(spans)
        return read(spans)

    client.read = reading  # type: ignore[method-assign, assignment]
    for offset in range(0, 5_000, 1_000):
        mark(broker, offset, start_of(1))
    async with running(watching):
        await until(lambda: watching.stats().redelivered == 5)
    spans = [Span(offset, offset + 1) for offset in range(0, 5_000, 1_000)]
    assert asked == [{TopicPartition("q", 0): spans}]
    assert [one.value for one in held(broker, "q")[5_000:]] == [b"%d" % n for n in range(0, 5_000, 1_000)]


async def test_many_records_are_due_at_once(broker: InMemoryBroker) -> None:
    """One look after the other, without a pause in between."""
    produce(broker, [b"%d" % n for n in range(5_000)])
    for offset in range(5_000):
        mark(broker, offset, start_of(1))
    async with running(tracker(broker)) as watching:
        await until(lambda: watching.stats().redelivered == 5_000)
        await until(lambda: not watching.stats().open)
    assert len(held(broker, "q")) == 10_000


@pytest.mark.parametrize("how", ["drop_value", "truncate"])
async def test_a_record_that_is_too_large_for_the_dead_letters_is_put_there_without_its_value(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture, how: Any
) -> None:
    """It was delivered as often as it may be. Its marker ends, and the tracker counts it."""
    produce(broker, [b"v" * 2_100])
    broker.max_message_bytes = 2_000
    async with running(tracker(broker, max_redeliveries=0, dead_letter_too_large=how)) as watching:
        mark(broker, 0, start_of(100))
        await until(lambda: watching.stats().dead_lettered == 1 and not open_markers(broker))
        assert watching.stats().cut_letters == 1
        assert not watching.health().problems
    (record,) = broker.records("q__undelivered")
    letter = read_letter(record)
    assert letter is not None
    assert letter.left_out is not None
    assert letter.left_out.value == 2_100
    assert len(record.value or b"") == letter.left_out.kept == (1_050 if how == "truncate" else 0)
    assert "lacks a part of the record" in caplog.text


async def test_a_record_that_the_queue_does_not_take_again_for_its_size_becomes_a_dead_letter(
    broker: InMemoryBroker,
) -> None:
    """The count of its redeliveries makes it larger than it was. To be tried for ever helps nobody."""
    produce(broker, [b"v" * 1_985])
    broker.max_message_bytes = 2_000
    async with running(tracker(broker)) as watching:
        mark(broker, 0, start_of(100))
        await until(lambda: watching.stats().dead_lettered == 1 and not open_markers(broker))
        assert (watching.stats().redelivered, watching.stats().cut_letters) == (0, 1)
    letter = read_letter(broker.records("q__undelivered")[0])
    assert letter is not None
    assert letter.last.message.startswith("delivered 1 times, and the queue does not take it again: its batch of ")


async def test_held_it_stays_open(broker: InMemoryBroker) -> None:
    """As a problem; it is delivered when the queue takes it."""
    produce(broker, [b"v" * 1_985])
    broker.max_message_bytes = 2_000
    async with running(tracker(broker, dead_letter_too_large="hold")) as watching:
        mark(broker, 0, start_of(100))
        await until(lambda: watching.health().problems)
        (problem,) = watching.health().problems
        assert problem.message.startswith("q-0 offset 0 cannot be redelivered: could not produce to q-0")
        assert open_markers(broker)
    assert not broker.records("q__undelivered")
