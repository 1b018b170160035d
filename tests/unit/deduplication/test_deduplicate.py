"""``Deduplicate`` as a consumer has it: copies are left out, through restarts, rebalances and what brokers do."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from aioparallel.consumer import ParallelConsumer
from aioparallel.deduplication.chunks import ChunkKey, encode_chunk, encode_key
from aioparallel.deduplication.companion import Deduplication
from aioparallel.deduplication.identities import ONCE, RecordIdentity
from aioparallel.errors import ConfigurationError, TopicNotFound
from aioparallel.handling import Ordering
from aioparallel.policies import Deduplicate, FailurePolicy, RetryPolicy
from aioparallel.records import Outgoing, Record, TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryClient, Request
from tests.unit.engine.memory import GROUP, QUICK, T0, committed, consumer_of, until

from .world import SEEN, broker_of, deduplicating, place, remembered, write

S0 = TopicPartition(SEEN, 0)


class Handled:
    """A handler that notes whose records it was given."""

    def __init__(self, delay: float = 0.0) -> None:
        self.sources: list[int] = []
        self._delay = delay

    async def __call__(self, record: Record) -> None:
        await asyncio.sleep(self._delay)
        self.sources.append(int(record.value or b"-1"))


@pytest.mark.parametrize("by", ["record", "key"])
async def test_each_record_is_handled_once(by: str) -> None:
    """Copies in one fetch and later; stats say how many, and what is committed is all of it."""
    broker, handled = broker_of(), Handled(0.01)
    write(broker, *range(100), *range(50), *range(150))
    async with deduplicating(broker, deduplicate=Deduplicate(SEEN, by=by), until="end") as consumer:  # type: ignore[arg-type]
        await consumer.run(handled)
        stats = consumer.stats()
    assert sorted(handled.sources) == list(range(150))
    assert (stats.copies, stats.admitted, stats.succeeded) == (150, 150, 150)
    assert committed(broker) == 300
    assert stats.ended == stats.admitted


@pytest.mark.parametrize("by", ["record", "key"])
async def test_copies_are_known_after_a_restart(by: str) -> None:
    """Though the group's offsets are beyond them, and the process is another."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(100))
    policy = Deduplicate(SEEN, by=by)  # type: ignore[arg-type]
    async with deduplicating(broker, deduplicate=policy, until="end") as consumer:
        await consumer.run(handled)
    write(broker, *range(60, 120))
    async with deduplicating(broker, deduplicate=policy, until="end") as consumer:
        await consumer.run(handled)
        assert consumer.stats().copies == 40
    assert sorted(handled.sources) == list(range(120))


async def test_it_is_saved_before_offsets_are_committed() -> None:
    """At each commit of the offset, what it stands for is in the topic already."""
    broker, handled = broker_of(), Handled(0.003)
    write(broker, *range(300))
    commits: list[tuple[int, set[int]]] = []
    real = broker.commit

    def commit(group_id: str, offsets: dict[TopicPartition, object], *rest: object) -> object:
        commits.append((offsets[T0].offset, remembered(broker)))  # type: ignore[attr-defined]
        return real(group_id, offsets, *rest)  # type: ignore[arg-type]

    broker.commit = commit  # type: ignore[method-assign,assignment]
    async with deduplicating(broker, until="end", max_concurrency=7, commit_interval=0.01) as consumer:
        await consumer.run(handled)
    assert len(commits) > 5
    for offset, seen in commits:
        assert set(range(offset)) <= seen


async def test_a_kill_between_saving_and_committing_repeats_nothing() -> None:
    """The commit is lost, what was seen is not: those records are complete at once at the next start."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(100))
    broker.faults.always(Request.COMMIT, Fault(is_request_lost=True))
    consumer = deduplicating(broker, commit_timeout=0.2)
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: len(remembered(broker)) == 100)
        consumer._client.crash()  # type: ignore[attr-defined]
        running.cancel()
        await asyncio.wait([running])
    assert committed(broker) is None or committed(broker) == 0
    broker.faults.heal()
    async with deduplicating(broker, until="end") as consumer:
        await consumer.run(handled)
        assert consumer.stats().copies == 100
    assert sorted(handled.sources) == list(range(100))
    assert committed(broker) == 100


async def test_nothing_is_committed_that_is_not_saved(caplog: pytest.LogCaptureFixture) -> None:
    """While the topic takes nothing, no offset is committed, whatever else goes on; afterwards it goes on by itself."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(50))
    async with asyncio.timeout(600), deduplicating(broker, commit_timeout=0.3) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: committed(broker) == 50)
        broker.faults.always(Request.PRODUCE, Fault(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        write(broker, *range(50, 80))
        await until(lambda: len(handled.sources) == 80)
        await until(lambda: "commit_refused" in [problem.kind for problem in consumer.health().problems])
        assert committed(broker) == 50
        assert "what was seen is not saved" in caplog.text
        broker.faults.heal()
        await until(lambda: committed(broker) == 80)
        consumer.stop()
        await running


async def test_a_write_without_an_answer_is_waited_for_and_not_sent_again() -> None:
    """A topic that hangs gets one write of each partition, not one with each commit."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(10))
    async with asyncio.timeout(600), deduplicating(broker, commit_timeout=0.3, commit_interval=0.05) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: committed(broker) == 10)
        before = len(broker.records(SEEN))
        broker.hang(1)
        write(broker, *range(10, 20))
        await until(lambda: len(handled.sources) == 20)
        await until(lambda: consumer.stats().failed_commits >= 5)
        broker.unhang(1)
        await until(lambda: committed(broker) == 20)
        assert len(broker.records(SEEN)) <= before + 2
        consumer.stop()
        await running


@pytest.mark.parametrize("cooperative", [False, True])
async def test_partitions_that_move_take_with_them_what_was_seen(cooperative: bool) -> None:
    """A member comes, another goes; copies of all that either handled are left out."""
    broker, handled = broker_of(4), Handled(0.01)
    sources = {partition: range(1000 * partition, 1000 * partition + 100) for partition in range(4)}

    def write_all() -> None:
        for partition, ours in sources.items():
            write(broker, *ours, partition=partition)

    write_all()
    first, second = (deduplicating(broker, cooperative=cooperative) for _ in range(2))
    async with asyncio.timeout(600), second:
        async with first:
            running = [asyncio.create_task(first.run(handled))]
            await until(lambda: len(handled.sources) > 50)
            running.append(asyncio.create_task(second.run(handled)))
            await until(lambda: len(second.stats().partitions) == 2 if second._engine else False)
            write_all()
            first.stop()
            await running[0]
        await until(lambda: all(committed(broker, TopicPartition("t", number)) == 200 for number in sources))
        second.stop()
        await running[1]
    assert sorted(handled.sources) == [source for ours in sources.values() for source in ours]


async def test_a_session_opens_when_it_has_found_what_was_seen() -> None:
    """While the compacted topic cannot be read nothing runs; then it does, from where it was."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(50))
    async with deduplicating(broker, until="end") as consumer:
        await consumer.run(handled)
    write(broker, *range(60))
    broker.faults.always(Request.FETCH, Fault(is_response_lost=True))
    async with asyncio.timeout(600), deduplicating(broker) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: bool(consumer.stats().partitions) if consumer._engine else False)
        await asyncio.sleep(25)  # in virtual time: two tries
        assert consumer.stats().partitions[0].state == "opening"
        assert len(handled.sources) == 50
        broker.faults.heal()
        await until(lambda: committed(broker) == 110)
        consumer.stop()
        await running
    assert sorted(handled.sources) == list(range(60))


async def test_a_partition_that_goes_while_it_is_restored_is_nobodys() -> None:
    """And comes back as new."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(50))
    async with deduplicating(broker, until="end") as consumer:
        await consumer.run(handled)
    write(broker, *range(60))
    broker.faults.always(Request.FETCH, Fault(request_delay=1.0))
    async with asyncio.timeout(600), deduplicating(broker) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: bool(consumer.stats().partitions) if consumer._engine else False)
        member = next(iter(broker.group(GROUP).members))
        broker.expire_session(GROUP, member, asyncio.get_running_loop().time())
        await until(lambda: consumer.stats().partitions and consumer.stats().partitions[0].epoch == 2)
        broker.faults.heal()
        await until(lambda: committed(broker) == 110)
        consumer.stop()
        await running
        assert consumer.stats().copies == 50
    assert sorted(handled.sources) == list(range(60))


async def test_a_letter_that_is_replayed_is_handled_and_its_copies_are_not() -> None:
    """A dead letter was not handled: it may come back, as the command line sends it or as somebody else does."""
    broker = broker_of()
    broker.create_topic("t.retry", 1)
    broker.create_topic("t.dlq", 1)
    write(broker, 1, 3)
    fails, handled = True, Handled()

    async def handle(record: Record) -> None:
        if fails and record.value == b"3":
            raise ValueError("not yet")
        await handled(record)

    # Through a retry topic: for the first topic the record was seen.
    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"t.retry": 0.1}, dead_letter="t.dlq")
    async with asyncio.timeout(600), deduplicating(broker, failures=policy) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: committed(broker) == 2 and committed(broker, TopicPartition("t.retry", 0)) == 1)
        consumer.stop()
        await running
    assert len(broker.records("t.dlq")) == 1
    fails = False
    broker.append("t", b"3", key=b"k3", partition=0, headers=(*place(3), ("aioparallel.replayed", b"t.dlq-0 offset 0")))
    write(broker, *range(3))
    broker.append("t", b"3", key=b"k3", partition=0, headers=(*place(3), ("aioparallel.replayed", b"t.dlq-0 offset 0")))
    async with deduplicating(broker, failures=policy, until="end") as consumer:
        await consumer.run(handle)
    assert sorted(handled.sources) == [0, 1, 2, 3]


async def test_a_dead_letter_sent_back_by_others_is_handled() -> None:
    """Without a word of ours in its headers: it was never handled."""
    broker = broker_of()
    broker.create_topic("t.dlq", 1)
    write(broker, 1, 2, 3)
    fails, handled = True, Handled()

    async def handle(record: Record) -> None:
        if fails and record.value == b"2":
            raise ValueError("not yet")
        await handled(record)

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="t.dlq")
    async with deduplicating(broker, failures=policy, until="end") as consumer:
        await consumer.run(handle)
    fails = False
    write(broker, 1, 2, 3)
    async with deduplicating(broker, failures=policy, until="end") as consumer:
        await consumer.run(handle)
    assert sorted(handled.sources) == [1, 2, 3]


async def test_a_copy_of_what_waits_in_a_retry_topic_is_left_out() -> None:
    """It goes on there itself, and ends once."""
    broker = broker_of()
    broker.create_topic("t.retry", 1)
    write(broker, 1, 2, 3, 2, 1, 2)
    handled = Handled()

    async def handle(record: Record) -> None:
        if record.topic == "t" and record.value == b"2":
            raise ValueError("later")
        await handled(record)

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"t.retry": 0.5})
    async with asyncio.timeout(600), deduplicating(broker, failures=policy) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: committed(broker) == 6 and committed(broker, TopicPartition("t.retry", 0)) == 1)
        write(broker, 2)
        await until(lambda: committed(broker) == 7)
        consumer.stop()
        await running
    assert sorted(handled.sources) == [1, 2, 3]
    assert len(broker.records("t.retry")) == 1


async def test_outputs_of_copies_are_not_written() -> None:
    """Process and produce: one output for each record."""
    broker = broker_of()
    broker.create_topic("out", 1)

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", record.value, record.key)

    write(broker, *range(30), *range(40))
    for _ in range(2):
        async with deduplicating(broker, until="end") as consumer:
            await consumer.run(handle)
        write(broker, *range(40))
    assert sorted(int(record.value or b"") for record in broker.records("out")) == list(range(40))


async def test_what_says_nothing_of_its_source_is_handled_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, and in health with how many."""
    broker, handled = broker_of(), Handled()
    for number in range(5):
        broker.append("t", b"%d" % number, key=b"k", partition=0)
    with caplog.at_level(logging.INFO, logger="aioparallel"):
        async with asyncio.timeout(60), deduplicating(broker) as consumer:
            running = asyncio.create_task(consumer.run(handled))
            await until(lambda: committed(broker) == 5)
            problems = consumer.health().problems
            consumer.stop()
            await running
    assert [problem.kind for problem in problems] == ["no_source"]
    assert "5 records" in problems[0].message
    assert [getattr(entry, "action", "") for entry in caplog.records].count("no_source") == 1


async def test_a_damaged_part_is_passed(caplog: pytest.LogCaptureFixture) -> None:
    """And said: copies of what it held are handled again. Records of others in the topic are theirs."""
    broker, handled = broker_of(), Handled()
    mine = encode_chunk({RecordIdentity("raw", 0, 1, 0, ""): ONCE})
    broker.append(SEEN, mine, key=encode_key(ChunkKey(GROUP, T0, "a-0", 0)), partition=0)
    broker.append(SEEN, b"not a chunk", key=encode_key(ChunkKey(GROUP, T0, "a-1", 1)), partition=0)
    others = encode_chunk({RecordIdentity("raw", 0, 2, 0, ""): ONCE})
    broker.append(SEEN, others, key=encode_key(ChunkKey("another group", T0, "a-0", 0)), partition=0)
    broker.append(SEEN, b"anything", key=b"strange", partition=0)
    write(broker, 1, 2, 3)
    async with deduplicating(broker, until="end") as consumer:
        await consumer.run(handled)
    assert sorted(handled.sources) == [2, 3]
    assert "cannot be read" in caplog.text


async def test_more_than_is_remembered_is_handled_again() -> None:
    """The bound is kept: what came long ago is not known any more, and nothing is lost by that."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(100), *range(100))
    async with deduplicating(
        broker, deduplicate=Deduplicate(SEEN, remember=20), until="end", max_concurrency=1
    ) as consumer:
        await consumer.run(handled)
    assert set(handled.sources) == set(range(100))


async def test_a_truncated_log_is_read_anew_and_what_was_handled_is_still_known() -> None:
    """Records that were lost and come again at the same offsets are copies."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(20))
    async with asyncio.timeout(600), deduplicating(broker) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: committed(broker) == 20)
        broker.truncate_tail(T0, 10)
        await until(lambda: consumer.stats().offset_resets == 1)
        write(broker, *range(10, 25))
        await until(lambda: len(set(handled.sources)) == 25)
        await until(lambda: committed(broker) == 25)
        consumer.stop()
        await running
    assert sorted(handled.sources) == list(range(25))


async def test_commits_of_copies_alone_write_nothing() -> None:
    """Nothing new was seen."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(30))
    async with asyncio.timeout(600), deduplicating(broker) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: committed(broker) == 30)
        before = len(broker.records(SEEN))
        for times in range(1, 4):
            write(broker, *range(30))
            await until(lambda: committed(broker) == 30 + 30 * times)  # noqa: B023 - waited for at once
        assert len(broker.records(SEEN)) == before
        consumer.stop()
        await running


async def test_chunks_count_by_their_numbers_and_those_that_went_do_not() -> None:
    """However they stand in the log; the newest are remembered, and a chunk without a value is none."""
    broker, handled = broker_of(), Handled()

    def chunk(number: int, *sources: int) -> None:
        value = encode_chunk({RecordIdentity("raw", 0, source, 0, ""): ONCE for source in sources}) if sources else None
        broker.append(SEEN, value, key=encode_key(ChunkKey(GROUP, T0, f"a-{number}", number)), partition=0)

    chunk(2, 1, 2)
    chunk(1, 3, 4)
    chunk(3, 5, 6)
    chunk(3)
    write(broker, 1, 2, 3, 4, 5, 6)
    policy = Deduplicate(SEEN, remember=2)
    async with deduplicating(broker, deduplicate=policy, until="end") as consumer:
        await consumer.run(handled)
        assert consumer.stats().copies == 2
    assert sorted(handled.sources) == [3, 4, 5, 6]


async def test_what_goes_takes_its_memory_with_it() -> None:
    """Nothing is kept of a partition that is not held."""
    broker, handled = broker_of(3), Handled()
    for partition in range(3):
        write(broker, *range(100 * partition, 100 * partition + 10), partition=partition)
    async with asyncio.timeout(600), deduplicating(broker) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: all(committed(broker, TopicPartition("t", number)) == 10 for number in range(3)))
        assert consumer._engine is not None
        companion = consumer._engine._companion
        assert isinstance(companion, Deduplication)
        assert len(companion._memories) == 3
        consumer.stop()
        await running
        assert (companion._memories, companion._restores, companion._writing) == ({}, {}, {})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"deduplicate": "seen"}, "must be a Deduplicate"),
        ({"deduplicate": Deduplicate("d"), "failures": FailurePolicy(retry=QUICK, dead_letter="d")}, "its own"),
        (
            {"deduplicate": Deduplicate("s", by="key"), "failures": FailurePolicy(retry=QUICK, dead_letter="d")},
            "dead letters",
        ),
        ({"deduplicate": Deduplicate("s", by="key"), "ordering": Ordering.UNORDERED}, "one after the other"),
        ({"deduplicate": Deduplicate("s", by="key"), "order_by": lambda record: record.value}, "one after the other"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, object], says: str) -> None:
    """With what to do in its place."""
    with pytest.raises(ConfigurationError, match=says):
        deduplicating(broker_of(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topic": ""}, "Deduplicate topic"),
        ({"topic": 5}, "Deduplicate topic"),
        ({"topic": "s", "by": "partition"}, "Deduplicate by"),
        ({"topic": "s", "remember": 0}, "Deduplicate remember"),
        ({"topic": "s", "remember": True}, "Deduplicate remember"),
    ],
)
def test_what_a_policy_cannot_be_is_refused(arguments: dict[str, object], says: str) -> None:
    """With its name."""
    with pytest.raises(ConfigurationError, match=says):
        Deduplicate(**arguments)  # type: ignore[arg-type]


async def test_a_topic_that_cannot_hold_it_is_refused_when_connecting() -> None:
    """Missing, not compacted, with too few partitions, or one that is read."""
    broker = broker_of(2)
    with pytest.raises(TopicNotFound, match="nowhere"):
        await deduplicating(broker, deduplicate=Deduplicate("nowhere")).__aenter__()
    broker.create_topic("small", 1)
    broker.make_compacted("small")
    with pytest.raises(ConfigurationError, match="has 1 partitions"):
        await deduplicating(broker, deduplicate=Deduplicate("small")).__aenter__()
    broker.make_compacted(SEEN, compacted=False)
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy"):
        await deduplicating(broker).__aenter__()
    for topics in ("seen", ["t", "seen"], re.compile("s.*")):
        with pytest.raises(ConfigurationError, match="topics that are read"):
            consumer_of(broker, topics, deduplicate=Deduplicate(SEEN))


async def test_it_needs_a_producer() -> None:
    """Beside a client of the user's own."""
    broker = broker_of()
    with pytest.raises(ConfigurationError, match="producer"):
        ParallelConsumer("t", group_id=GROUP, client=InMemoryClient(broker, GROUP), deduplicate=Deduplicate(SEEN))
