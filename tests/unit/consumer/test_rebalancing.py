"""Partitions that come and go: several members, lost assignments, late commits, logs that change under us."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, defaultdict
from typing import Any, Unpack

import pytest

from aioparallel.config.options import OptionFields
from aioparallel.consumer import ParallelConsumer
from aioparallel.records.errors import OffsetOutOfRange
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from tests.support.inside import run_of
from tests.support.memory.consuming import GROUP, T0, Isolation, Seen, committed, consumer_of, produce
from tests.support.waiting import until


class Member:
    """A consumer running in the background, and its handler's log."""

    def __init__(
        self,
        broker: InMemoryBroker,
        topic: str,
        handler: Seen,
        *,
        isolation_level: Isolation = "read_uncommitted",
        cooperative: bool = False,
        **options: Unpack[OptionFields],
    ) -> None:
        self.seen = handler
        self.consumer: ParallelConsumer[Any, Any] = consumer_of(
            broker, topic, isolation_level=isolation_level, cooperative=cooperative, **options
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Member:
        await self.consumer.__aenter__()
        self._task = asyncio.create_task(self.consumer.run(self.seen))
        await until(lambda: self.consumer._engine is not None)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.consumer.__aexit__(None, None, None)
        assert self._task is not None
        await asyncio.wait([self._task])

    @property
    def partitions(self) -> int:
        return len([p for p in self.consumer.stats().partitions if p.state == "open"])


def member_id(broker: InMemoryBroker) -> str:
    return next(iter(broker.group(GROUP).members))


@pytest.mark.parametrize("cooperative", [False, True])
async def test_members_that_come_and_go_lose_and_reorder_nothing(broker: InMemoryBroker, cooperative: bool) -> None:
    """Members join and leave while records run: each record completes, each key in order, commits reach the end.

    Clean hand-overs commit before they give away, so almost nothing runs twice.
    """
    broker.create_topic("m", 6)
    rng = random.Random(7)
    for partition in range(6):
        produce(broker, [str(rng.randrange(20)).encode() for _ in range(300)], partition, "m")
    log: list[Record] = []
    running: Counter[tuple[int, bytes | None]] = Counter()
    overlaps = 0

    class Checked(Seen):
        async def __call__(self, record: Record) -> None:
            nonlocal overlaps
            lane = (record.partition, record.key)
            running[lane] += 1
            overlaps += running[lane] > 1
            await asyncio.sleep(rng.random() * 0.004)
            running[lane] -= 1
            log.append(record)

    def finished() -> bool:
        return all(committed(broker, TopicPartition("m", p)) == 300 for p in range(6))

    async with asyncio.timeout(60):
        async with Member(broker, "m", Checked(), cooperative=cooperative, max_concurrency=30):
            for _ in range(4):
                async with Member(broker, "m", Checked(), cooperative=cooperative, max_concurrency=30) as other:
                    await until(lambda other=other: other.partitions or finished(), 10)  # type: ignore[misc]
                    await asyncio.sleep(0.02)
            await until(finished, 30)
    assert overlaps == 0
    first_runs: dict[tuple[int, bytes | None], list[int]] = defaultdict(list)
    counts = Counter((record.partition, record.offset) for record in log)
    for record in log:
        lane = first_runs[record.partition, record.key]
        if record.offset not in lane:
            lane.append(record.offset)
    assert set(counts) == {(p, o) for p in range(6) for o in range(300)}
    assert all(offsets == sorted(offsets) for offsets in first_runs.values())
    assert sum(counts.values()) - len(counts) == 0


async def test_lost_assignment_drops_without_commit_and_reads_again(broker: InMemoryBroker) -> None:
    """After the coordinator forgot the member nothing of the old assignment is committed; the records run again."""
    produce(broker, [b"a", b"b", b"a", b"b"])
    seen = Seen(0.3)
    async with asyncio.timeout(20), Member(broker, "t", seen, max_concurrency=10) as member:
        await until(lambda: len(seen.started) == 2)
        loop = asyncio.get_running_loop()
        broker.expire_session(GROUP, member_id(broker), loop.time())
        await until(lambda: member.consumer.stats().dropped >= 2)
        assert committed(broker) in (None, 0)
        await until(lambda: committed(broker) == 4)
    assert sorted(seen.offsets) == [0, 1, 2, 3]
    assert Counter(record.offset for record in seen.started)[0] == 2


async def test_until_end_goes_on_after_a_lost_assignment(broker: InMemoryBroker) -> None:
    """Between a lost assignment and the next assignment nothing is held, which is not the same as being at the end."""
    produce(broker, [str(i).encode() for i in range(200)])
    seen = Seen(0.01)
    consumer = consumer_of(broker, until="end", max_concurrency=5)
    async with asyncio.timeout(20), consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(seen.ended) >= 20)
        broker.expire_session(GROUP, member_id(broker), asyncio.get_running_loop().time())
        await running
    assert set(seen.offsets) == set(range(200))
    assert committed(broker) == 200


@pytest.mark.parametrize("records", [1, 3])
async def test_handlers_that_are_cancelled_at_the_drain_deadline_are_counted_in_the_log(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture, records: int
) -> None:
    """One line for a revoke and one for a stop, with the first record; none if nothing runs."""
    produce(broker, [b"%d" % n for n in range(records)])

    async def slow(record: Record) -> None:
        await asyncio.sleep(600)

    def lines() -> list[str]:
        return [line.getMessage() for line in caplog.records if getattr(line, "action", "") == "drain_over"]

    what = "1 handler that still runs is" if records == 1 else "3 handlers that still run are"
    wanted = (
        f"The drain has lasted 2 s (drain_timeout): {what} cancelled, the first of them for t-0 offset 0. Records that "
        "do not end now run again at the next owner of the partition"
    )
    async with consumer_of(broker, drain_timeout=2.0) as consumer:
        running = asyncio.create_task(consumer.run(slow))
        await until(lambda: consumer._engine and consumer.stats().in_flight == records)
        await run_of(consumer)._rebalancer.revoked([T0])
        assert lines() == [wanted]
        consumer.stop()
        await running
    assert lines() == [wanted]
    async with consumer_of(broker, drain_timeout=2.0) as consumer:
        running = asyncio.create_task(consumer.run(slow))
        await until(lambda: consumer._engine and consumer.stats().in_flight == records)
        consumer.stop()
        await running
    assert lines() == [wanted, wanted]
    assert committed(broker) == 0


async def test_key_waits_for_the_handler_of_the_lost_assignment(broker: InMemoryBroker) -> None:
    """A handler that ignores its cancellation keeps its key closed after the partition came back (I3)."""
    produce(broker, [b"a", b"b"])
    first_may_end = asyncio.Event()
    log: list[tuple[str, int]] = []

    class Stubborn(Seen):
        async def __call__(self, record: Record) -> None:
            log.append(("start", record.offset))
            while record.offset == 0 and not first_may_end.is_set():
                try:
                    await first_may_end.wait()
                except asyncio.CancelledError:
                    log.append(("cancelled", 0))
            log.append(("end", record.offset))

    async with asyncio.timeout(20), Member(broker, "t", Stubborn()):
        await until(lambda: ("end", 1) in log)
        broker.expire_session(GROUP, member_id(broker), asyncio.get_running_loop().time())
        await until(lambda: ("cancelled", 0) in log and log.count(("end", 1)) == 2)
        assert log.count(("start", 0)) == 1
        first_may_end.set()
        await until(lambda: committed(broker) == 2)
    assert log[-2:] == [("start", 0), ("end", 0)]


async def test_commit_of_an_old_generation_never_lands(broker: InMemoryBroker) -> None:
    """A commit that the network held back over a rebalance is refused, the new owner's stands (I7)."""
    broker.create_topic("m", 2)
    for partition in range(2):
        produce(broker, [str(i).encode() for i in range(50)], partition, "m")
    late = Fault(request_delay=0.6)
    async with asyncio.timeout(20), Member(broker, "m", Seen(0.01), max_concurrency=4, commit_timeout=0.1) as first:
        await until(lambda: len(first.seen.ended) > 8)
        broker.faults.script(Request.COMMIT, late)
        async with Member(broker, "m", Seen(0.001), max_concurrency=50) as second:
            await until(lambda: second.partitions == 1)
            [theirs] = second.consumer.stats().partitions
            place = TopicPartition("m", theirs.partition)
            await until(lambda: committed(broker, place) == 50)
            history = [committed(broker, place)]
            deadline = asyncio.get_running_loop().time() + 0.8
            while asyncio.get_running_loop().time() < deadline:
                history.append(committed(broker, place))
                await asyncio.sleep(0.01)
            assert set(history) == {50}


@pytest.mark.parametrize("fault", [Fault(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), Fault(is_response_lost=True)])
async def test_failed_commits_keep_the_assignment_dirty(broker: InMemoryBroker, fault: Fault) -> None:
    """While commits fail records go on; when they work again the last state is committed (I7)."""
    produce(broker, [str(i).encode() for i in range(30)])
    broker.faults.always(Request.COMMIT, fault)
    async with asyncio.timeout(20), Member(broker, "t", Seen(), commit_timeout=0.05) as member:
        await until(lambda: len(member.seen.ended) == 30 and member.consumer.stats().failed_commits > 2)
        broker.faults.heal()
        await until(lambda: member.consumer.stats().partitions[0].committed == 30)
    assert committed(broker) == 30


async def test_smaller_metadata_limit_is_learnt(broker: InMemoryBroker) -> None:
    """A broker with a small offset.metadata.max.bytes: the map is cut, said so, and nothing is lost."""
    small = InMemoryBroker(metadata_limit=100)
    small.create_topic("t", 1)
    rng = random.Random(3)
    produce(small, [str(i).encode() for i in range(4_000)])
    blocked = {offset for offset in range(4_000) if rng.random() < 0.3}
    release = asyncio.Event()

    class Half(Seen):
        async def __call__(self, record: Record) -> None:
            if record.offset in blocked:
                await release.wait()
            self.ended.append(record)

    member = Member(small, "t", Half(), max_concurrency=4_000)
    async with asyncio.timeout(30), member:
        await until(lambda: len(member.seen.ended) == 4_000 - len(blocked))
        await until(lambda: member.consumer.stats().partitions[0].map_cut_at is not None)
        await until(lambda: member.consumer.stats().metadata_limit <= 100)
        await member.consumer.commit_now()
        found = small.group(GROUP).offsets[T0]
        assert 0 < len(found.metadata) <= 100
        member.consumer.stop(drain=False)
    again = Seen()
    consumer = consumer_of(small, until="end")
    async with asyncio.timeout(20), consumer:
        await consumer.run(again)
    assert blocked <= set(again.offsets)
    assert committed(small) == 4_000


async def test_block_when_the_map_is_full() -> None:
    """when_map_is_full="block": once a map was cut nothing above the cut starts, until the stuck ones end."""
    small = InMemoryBroker(metadata_limit=20)
    small.create_topic("t", 1)
    produce(small, [str(i).encode() for i in range(1_000)])
    rng = random.Random(4)
    stuck = {offset for offset in range(1_000) if rng.random() < 0.4}
    release = asyncio.Event()

    class SomeStick(Seen):
        async def __call__(self, record: Record) -> None:
            self.started.append(record)
            if record.offset in stuck:
                await release.wait()
            self.ended.append(record)

    member = Member(small, "t", SomeStick(), max_concurrency=4_000, when_map_is_full="block")
    async with asyncio.timeout(40), member:
        await until(lambda: member.consumer.stats().cut_maps > 0)
        await until(lambda: member.consumer.stats().partitions[0].map_cut_at is not None)
        produce(small, [str(i).encode() for i in range(1_000)])
        await until(lambda: member.consumer.stats().partitions[0].position == 2_000)
        await member.consumer.commit_now()
        await until(lambda: member.consumer.stats().ready_lanes == 0)
        assert max(record.offset for record in member.seen.started) < 1_000
        release.set()
        await until(lambda: committed(small) == 2_000, 20)


async def test_a_full_map_never_holds_back_the_base() -> None:
    """when_map_is_full="block" with a limit that no map fits: what is at the base starts, so the base moves on."""
    tiny = InMemoryBroker(metadata_limit=4)
    tiny.create_topic("t", 1)
    produce(tiny, [str(i).encode() for i in range(50)])
    failed: set[int] = set()
    log: list[int] = []

    async def fail_once(record: Record) -> None:
        if record.offset % 5 == 0 and record.offset not in failed:
            failed.add(record.offset)
            raise ValueError(record.offset)
        log.append(record.offset)

    consumer = consumer_of(tiny, until="end", when_map_is_full="block", commit_interval=0.005)
    async with asyncio.timeout(100), consumer:
        await consumer.run(fail_once)
    assert committed(tiny) == 50
    assert sorted(log) == list(range(50))


async def test_unreadable_metadata_means_no_map(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Foreign text beside the committed offset is counted and logged; reading starts at the offset."""
    produce(broker, [b"a"] * 4)
    seen = Seen()
    async with Member(broker, "t", seen) as member:
        await until(lambda: committed(broker) == 4)
        member.consumer.stop()
    produce(broker, [b"a"] * 2)
    group = broker.group(GROUP)
    group.offsets[T0] = group.offsets[T0]._replace(metadata="not a map")
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(10), Member(broker, "t", seen) as member:
            await until(lambda: committed(broker) == 6)
            assert member.consumer.stats().unreadable_maps == 1
    assert seen.offsets == [0, 1, 2, 3, 4, 5]
    assert any(getattr(entry, "action", "") == "unreadable_map" for entry in caplog.records)


async def test_retention_ahead_of_us_goes_on_at_the_beginning(broker: InMemoryBroker) -> None:
    """The log's start passed our position: reading goes on there, logged and counted; what was read still counts."""
    produce(broker, [b"a"] * 10)
    seen = Seen(0.05)
    async with asyncio.timeout(10), Member(broker, "t", seen, max_buffered=2) as member:
        await until(lambda: len(seen.started) == 1)
        broker.delete_before(T0, 8)
        await until(lambda: committed(broker) == 10)
        assert member.consumer.stats().offset_resets == 1
    assert seen.offsets[-2:] == [8, 9]
    assert seen.offsets == sorted(seen.offsets)


async def test_truncated_log_starts_a_new_epoch(broker: InMemoryBroker) -> None:
    """The log ends below our position (unclean leader election): a new assignment, from where it was cut."""
    produce(broker, [b"a"] * 10)
    seen = Seen()
    async with asyncio.timeout(10), Member(broker, "t", seen) as member:
        await until(lambda: committed(broker) == 10)
        broker.truncate_tail(T0, 4)
        await until(lambda: member.consumer.stats().offset_resets == 1)
        produce(broker, [b"a"] * 2)
        await until(lambda: committed(broker) == 6)
        assert member.consumer.stats().partitions[0].epoch == 2
    assert seen.offsets == [*range(10), 4, 5]


async def test_reset_error_ends_the_run(broker: InMemoryBroker) -> None:
    """auto_offset_reset="error" raises when the position is outside the log."""
    produce(broker, [b"a"] * 10)
    async with Member(broker, "t", Seen()) as member:
        await until(lambda: committed(broker) == 10)
        member.consumer.stop()
    broker.truncate_tail(T0, 4)
    async with asyncio.timeout(10), consumer_of(broker, auto_offset_reset="error") as consumer:
        with pytest.raises(OffsetOutOfRange, match="t-0: offset 10"):
            await consumer.run(Seen())


async def test_gaps_and_aborted_transactions_leave_no_lag(broker: InMemoryBroker) -> None:
    """Compacted offsets, markers and aborted records count as complete: lag reaches 0, the end is committed."""
    produce(broker, [b"a"] * 10)
    broker.compact(T0, [0, 3, 4, 9])
    transaction = broker.begin_transaction()
    for _ in range(3):
        broker.append("t", b"x", key=b"a", partition=0, transaction=transaction)
    broker.end_transaction(transaction, commit=False)
    seen = Seen()
    member = Member(broker, "t", seen, isolation_level="read_committed")
    async with asyncio.timeout(10), member:
        await until(lambda: committed(broker) == 14)
        await until(lambda: member.consumer.stats().lag == 0)
    assert seen.offsets == [1, 2, 5, 6, 7, 8]


async def test_settle_fits_when_commits_hang(broker: InMemoryBroker) -> None:
    """A rebalance with a coordinator that does not answer commits ends within the deadlines, and nothing is lost."""
    broker.create_topic("m", 2)
    for partition in range(2):
        produce(broker, [b"k"] * 10, partition, "m")
    async with asyncio.timeout(30):
        async with Member(broker, "m", Seen(0.01), commit_timeout=0.2, drain_timeout=0.2) as first:
            await until(lambda: len(first.seen.ended) >= 4)
            broker.faults.always(Request.COMMIT, Fault(is_request_lost=True))
            # Its first commit may be lost as well, and must not wait longer for an answer than this test does.
            async with Member(broker, "m", Seen(), commit_timeout=0.2) as second:
                await until(lambda: second.partitions == 1)
                broker.faults.heal()
                await until(lambda: all(committed(broker, TopicPartition("m", p)) == 10 for p in range(2)))
    assert {r.offset for r in first.seen.ended + second.seen.ended} == set(range(10))
