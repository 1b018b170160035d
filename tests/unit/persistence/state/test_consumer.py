"""``state=`` as a consumer has it: in memory, through restarts, rebalances, failures, and what brokers do."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from aioparallel import (
    FailurePolicy,
    Ordering,
    Outgoing,
    ParallelConsumer,
    Record,
    RecordWithoutKey,
    RetryPolicy,
    State,
    StateFailed,
    StateNotRestored,
    Transactions,
)
from aioparallel.config.policies import Deduplicate
from aioparallel.handlers.batches import Batch, batches
from aioparallel.observe.health import ProblemKind
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ConfigurationError, ConsumerStateError, PositionOutsideLog
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import Fault, InMemoryClient, InMemoryProducer, Request
from tests.support.memory.keeping_state import GROUP, P0, broker_of, keeping, sums, totals, write
from tests.support.waiting import until

both = pytest.mark.parametrize("together", [False, True], ids=["at least once", "transactions"])


async def nothing(record: Record) -> None:
    """Handles it."""


async def run(consumer: ParallelConsumer[Any, Any], handler: Any = nothing) -> None:
    """To its end."""
    async with asyncio.timeout(120), consumer:
        await consumer.run(handler)


@both
async def test_a_handler_sees_the_state_before_its_record(together: bool) -> None:
    """In the first life and in the next one."""
    broker, state, seen = broker_of(), sums(), dict[int, int]()

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.001)
        assert record.offset not in seen
        seen[record.offset] = state.of(record)

    for numbers in (range(100), range(100, 150)):
        write(broker, *numbers)
        await run(keeping(broker, state, together=together, until="end"), handle)
    assert seen == {n: sum(range(n % 10, n, 10)) for n in range(150)}


async def test_a_state_that_is_behind_its_position_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The group has committed without its state meanwhile: the state is made of all records before that. After a life
    with its state nothing is told."""
    broker, state = broker_of(), sums()

    def told() -> list[str]:
        return [line.getMessage() for line in caplog.records if getattr(line, "action", "") == "state_behind"]

    async def states(*numbers: int) -> dict[bytes, int]:
        write(broker, *numbers)
        consumer = keeping(broker, state)
        async with asyncio.timeout(120), consumer:
            running = asyncio.create_task(consumer.run(nothing))
            await until(lambda: consumer._engine is not None and consumer.stats().succeeded == len(numbers))
            found = dict(consumer.states(P0))
            consumer.stop()
            await running
        return found

    assert await states(*range(20)) == totals(*range(20))
    assert await states(*range(20, 30)) == totals(*range(30))
    assert not told()
    write(broker, *range(30, 40))
    client = InMemoryClient(broker, GROUP, isolation_level="read_committed")
    await run(ParallelConsumer("in", group_id=GROUP, client=client, until="end"))
    assert await states(*range(40, 50)) == totals(*range(50))
    (line,) = told()
    assert "the last increment of its state is of offset 30, and the committed offset is 40" in line


@both
async def test_states_are_shown_while_it_runs(together: bool) -> None:
    """All of a partition, and how many there are; nothing of what is not held."""
    broker = broker_of()
    write(broker, *range(30))
    consumer = keeping(broker, sums(), together=together)
    async with asyncio.timeout(60), consumer:
        with pytest.raises(ConsumerStateError, match="has not run yet, so it has no states"):
            consumer.states(P0)
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer._engine is not None and consumer.stats().succeeded == 30)
        assert consumer.states(P0) == totals(*range(30))
        stats = consumer.stats().state
        assert stats is not None
        assert (stats.keys, stats.restored, stats.restoring) == (10, 1, {})
        with pytest.raises(ConsumerStateError, match="in-7 is not held here"):
            consumer.states(TopicPartition("in", 7))
        consumer.stop()
        await running


async def test_a_consumer_without_states_says_so() -> None:
    """Also before it runs: that would change nothing."""
    consumer = ParallelConsumer("in", group_id=GROUP, client=InMemoryClient(broker_of(), GROUP))
    with pytest.raises(ConsumerStateError, match=r"has no state=State\(\.\.\.\)") as raised:
        consumer.states(P0)
    assert "run" not in str(raised.value)


@both
@pytest.mark.parametrize("cooperative", [False, True])
async def test_states_move_with_their_partitions(together: bool, cooperative: bool) -> None:
    """A member comes, another one goes: each goes on with the state where the other one left it."""
    broker, state, seen = broker_of(4), sums(snapshot_after=20), dict[tuple[int, int], int]()

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.01)
        seen[record.partition, record.offset] = state.of(record)

    def more(count: int) -> None:
        for partition in range(4):
            write(broker, *range(count), partition=partition)

    more(100)
    first, second = (keeping(broker, state, together=together, cooperative=cooperative) for _ in range(2))
    async with asyncio.timeout(600), second:
        async with first:
            running = [asyncio.create_task(first.run(handle))]
            await until(lambda: len(seen) > 50)
            running.append(asyncio.create_task(second.run(handle)))
            await until(lambda: second._engine is not None and len(second.stats().partitions) == 2)
            more(100)
            await until(lambda: len(seen) > 300)
            first.stop()
            await running[0]
        await until(lambda: len(seen) == 800)
        second.stop()
        await running[1]
    values = [*range(100), *range(100)]
    for (_, offset), before in seen.items():
        assert before == sum(value for value in values[:offset] if value % 10 == values[offset] % 10)


@both
async def test_what_is_put_away_or_skipped_is_not_in_the_state(together: bool) -> None:
    """Nor after a restart; nor what apply refuses, and what has no key."""
    broker = broker_of()

    def apply(total: int, record: Record[Any, Any]) -> int:
        if record.value == b"7":
            raise ValueError("seven")
        return total + int(record.value)

    state = sums(apply=apply)
    failures: list[Exception] = []

    async def handle(record: Record) -> None:
        assert record.value != b"7", "it must not come here"
        if record.value in (b"3", b"13"):
            raise ValueError(record.value)

    async def put_away(record: Record, error: Exception) -> None:
        failures.append(error)

    broker.append("in", b"5", key=None, partition=0)
    write(broker, *range(20))
    policy = FailurePolicy(retry=RetryPolicy(max_attempts=2, first_delay=0.01), dead_letter=put_away)
    await run(keeping(broker, state, together=together, until="end", failures=policy), handle)
    others = {type(error): str(error) for error in failures if not isinstance(error, ValueError)}
    assert others.keys() == {RecordWithoutKey, StateFailed}
    assert "offset 0 has no key" in others[RecordWithoutKey]
    write(broker, 20)
    consumer = keeping(broker, state, together=together, failures=policy)
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine is not None and consumer.stats().succeeded == 1)
        assert consumer.states(P0) == totals(*(set(range(21)) - {3, 13, 7}))
        found = consumer.stats().state
        assert found is not None
        assert found.unapplied == 4
        consumer.stop()
        await running


@both
async def test_batches_see_what_is_before_them_in_the_batch(together: bool) -> None:
    """Several records of a key, some of which fail."""
    broker, state, seen = broker_of(), sums(), dict[int, int]()
    failed: set[int] = set()

    async def handle(batch: Batch[Record]) -> None:
        for record in batch:
            if record.offset % 7 == 0 and record.offset not in failed:
                failed.add(record.offset)
                batch.fail(record, ValueError("once"))
            else:
                seen[record.offset] = state.of(record)

    write(broker, *range(200), keys=3)
    policy = FailurePolicy(retry=RetryPolicy(first_delay=0.01))
    consumer = keeping(broker, state, together=together, until="end", failures=policy)
    await run(consumer, batches(handle, size=20, linger=0.01))
    assert seen == {n: sum(range(n % 3, n, 3)) for n in range(200)}


async def test_none_forgets_a_key() -> None:
    """Nothing is kept of it, and the next record begins anew."""
    broker, seen = broker_of(), list[int]()

    def apply(total: int, record: Record[Any, Any]) -> int | None:
        return None if record.value == b"0" else total + int(record.value)

    state = sums(apply=apply)

    async def handle(record: Record) -> None:
        seen.append(state.of(record))

    for value in (b"4", b"5", b"0", b"6"):
        broker.append("in", value, key=b"k", partition=0)
    await run(keeping(broker, state, until="end"), handle)
    assert seen == [0, 4, 9, 0]


async def test_deserialisers_are_applied_at_a_restore_too() -> None:
    """State sees the record as the handler does."""
    broker = broker_of()
    state = sums(apply=lambda total, record: total + record.value["n"])
    write(broker, *range(10))
    options: dict[str, Any] = {"value_deserializer": lambda data: {"n": int(data)}}
    await run(keeping(broker, state, until="end", **options))
    consumer = keeping(broker, state, **options)
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().joined)
        assert consumer.states(P0) == totals(*range(10))
        consumer.stop()
        await running


async def test_apply_that_is_not_pure_is_told() -> None:
    """It has taken a record, and does not take it again: the run ends, nothing is handled."""
    broker = broker_of()
    write(broker, *range(10))
    await run(keeping(broker, sums(), until="end"))

    def apply(total: int, record: Record[Any, Any]) -> int:
        raise LookupError("nobody answers")

    with pytest.raises(StateNotRestored, match=r"in-0: .*LookupError\('nobody answers'\) for offset 0.*pure"):
        await run(keeping(broker, sums(apply=apply), until="end"))


def raises_cancelled(*_: object) -> int:
    raise asyncio.CancelledError


def cannot_load(dumped: bytes) -> int:
    """But the initial value, which is tried when the state is described."""
    return 0 if dumped == b"0" else raises_cancelled()


@pytest.mark.parametrize("broken", [{"apply": raises_cancelled}, {"load": cannot_load}])
async def test_what_a_function_of_the_state_cancels_is_its_own(broken: dict[str, Any]) -> None:
    """A CancelledError out of it is its failure, as any other error: the run ends and says so."""
    broker = broker_of()
    write(broker, *range(10))
    await run(keeping(broker, sums(snapshot_after=1 if "load" in broken else 1_000), until="end"))
    with pytest.raises(StateNotRestored, match="CancelledError"):
        await run(keeping(broker, sums(**broken), until="end"))


async def test_a_state_that_is_new_to_a_group_is_made_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Where the group has committed before without one."""
    broker = broker_of()
    write(broker, *range(20))
    client = InMemoryClient(broker, GROUP, isolation_level="read_committed")
    await run(ParallelConsumer("in", group_id=GROUP, client=client, until="end"))
    consumer = keeping(broker, sums())
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().joined)
        assert consumer.states(P0) == totals(*range(20))
        consumer.stop()
        await running
    assert "the state is made of all records before that" in caplog.text


@both
async def test_increments_that_cannot_be_written_hold_commits_and_are_told(together: bool) -> None:
    """In health, with topic and reason; it goes on by itself."""
    broker = broker_of()
    consumer = keeping(broker, sums(), together=together, commit_timeout=0.4)

    def committed() -> int:
        found = broker.group(GROUP).offsets.get(P0)
        return -1 if found is None else found.offset

    def problems() -> set[ProblemKind]:
        return {problem.kind for problem in consumer.health().problems if "g-state" in problem.message}

    async with asyncio.timeout(600), consumer:
        running = asyncio.create_task(consumer.run(nothing))
        write(broker, *range(10))
        await until(lambda: committed() == 10)
        broker.faults.always(Request.PRODUCE, Fault(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        write(broker, *range(10, 20))
        kind = ProblemKind.TRANSACTIONS_ABORTED if together else ProblemKind.STATE_UNSAVED
        await until(lambda: kind in problems())
        assert committed() == 10
        broker.faults.heal()
        await until(lambda: committed() == 20)
        await until(lambda: not problems())
        consumer.stop()
        await running


async def test_outputs_and_the_state_are_of_one_transaction() -> None:
    """The increment stands in the same one, after the outputs."""
    broker, state = broker_of(), sums()

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", b"%d" % state.of(record), record.key)

    write(broker, *range(50))
    await run(keeping(broker, state, together=True, until="end"), handle)
    assert len([*broker.records("out")]) == 50
    assert [*broker.records("g-state")]


async def test_a_position_outside_the_log_ends_the_run() -> None:
    """A state belongs to it; nothing is passed over in silence."""
    broker = broker_of()
    write(broker, *range(20))
    await run(keeping(broker, sums(), until="end"))
    write(broker, *range(20, 30))
    consumer = keeping(broker, sums(snapshot_after=1))
    async with asyncio.timeout(60), consumer:
        consumer.pause()
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().joined)
        broker.delete_before(P0, 30)
        consumer.resume()
        with pytest.raises(PositionOutsideLog, match="state of keys"):
            await running


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"ordering": Ordering.UNORDERED}, "ordering=.*cannot be combined with state"),
    ({"order_by": lambda record: record.value}, "order_by=.*cannot be combined with state"),
    ({"deduplicate": Deduplicate("seen")}, "deduplicate=.*cannot be combined with state"),
    ({"client_options": {"isolation_level": "read_uncommitted"}}, "must be read_committed"),
    ({"state": "sums"}, "must be a State"),
    (
        {"failures": FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"later": 5})},
        "retry_topics=.*cannot be combined with state",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_stand_beside_it(options: dict[str, Any], message: str) -> None:
    """Told at once: which option, and what to do."""
    with pytest.raises(ConfigurationError, match=message):
        keeping(broker_of(), **{"state": sums(), **options})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"apply": nothing}, "State apply=.*plain function"),
    ({"dump": str}, "State dump=.*returned str for initial"),
    ({"load": lambda data: 1 / 0}, "State load=.*ZeroDivisionError"),
    ({"topic": " "}, "State topic"),
    ({"topic": "a", "snapshots": "a"}, "State snapshots"),
    ({"snapshot_after": 0}, "State snapshot_after"),
    ({"snapshot_interval": 0}, "State snapshot_interval"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_wrong_state_is_refused(given: dict[str, Any], message: str) -> None:
    """Each part by its name."""
    with pytest.raises(ConfigurationError, match=message):
        sums(**given)


def test_without_a_producer_it_is_refused() -> None:
    """Beside a client of one's own."""
    broker = broker_of()
    with pytest.raises(ConfigurationError, match="producer=None: state needs one"):
        ParallelConsumer("in", group_id=GROUP, client=InMemoryClient(broker, GROUP), state=sums())


@pytest.mark.parametrize(
    ("topic", "partitions", "message"),
    [("g-state", 0, "does not exist.*--create"), ("g-snapshots", 1, "has 1 partitions.*--alter")],
)
async def test_topics_that_cannot_hold_it_are_refused(topic: str, partitions: int, message: str) -> None:
    """With the command that makes them so."""
    broker = broker_of(4)
    broker.delete_topic(topic)
    if partitions:
        broker.create_topic(topic, partitions)
    with pytest.raises(ConfigurationError, match=f"State topic='{topic}'.*{message}"):
        await run(keeping(broker, sums()))


async def test_of_another_record_there_is_no_state() -> None:
    """Of one that is made by hand, and of one that is over."""
    broker, state, kept = broker_of(), sums(), list[Record]()

    async def handle(record: Record) -> None:
        kept.append(record)

    with pytest.raises(ConsumerStateError, match="no consumer with state"):
        state.of(Record("in", 0, 0, b"k", b"1"))
    write(broker, 1)
    await run(keeping(broker, state, until="end"), handle)
    with pytest.raises(ConsumerStateError, match=re.escape("is not being handled")):
        state.of(kept[0])


def test_the_topics_are_named_after_the_group() -> None:
    """Unless they are given; and are none of those that are read."""
    broker = broker_of()
    given: dict[str, Any] = {"group_id": "g", "client": InMemoryClient(broker, "g")}
    with pytest.raises(ConfigurationError, match="is one of the topics that are read"):
        ParallelConsumer(["in", "g-state"], producer=InMemoryProducer(broker), state=sums(), **given)
    assert State(initial=0, apply=lambda a, b: a, dump=lambda a: b"", load=len).topic is None
    assert Transactions().id_prefix is None


@pytest.mark.parametrize("group", ["a/b", "a b", "x" * 245, "ä"])
def test_a_group_whose_name_is_no_part_of_a_topics(group: str) -> None:
    """Is told when the consumer is made, with the options that name the topics, and not that they should be created."""
    broker = broker_of()
    given: dict[str, Any] = {"client": InMemoryClient(broker, "g"), "producer": InMemoryProducer(broker)}
    with pytest.raises(ConfigurationError, match=r"State topic=.*is not a valid topic name.*default for the group"):
        ParallelConsumer("in", group_id=group, state=sums(), **given)
    ParallelConsumer("in", group_id=group, state=sums(topic="increments", snapshots="full"), **given)
    with pytest.raises(ConfigurationError, match=r"State snapshots='\.\.': is not a valid topic name: set"):
        ParallelConsumer("in", group_id="g", state=sums(topic="increments", snapshots=".."), **given)


@both
async def test_states_after_a_bounded_run(together: bool) -> None:
    """They are those of its end; a run that has not begun has none."""
    broker = broker_of()
    write(broker, *range(20))
    consumer = keeping(broker, sums(), together=together, until="end")
    with pytest.raises(ConsumerStateError, match="has not run yet"):
        consumer.states(P0)
    await run(consumer)
    assert consumer.states(P0) == totals(*range(20))
    with pytest.raises(ConsumerStateError, match="in-7 is not held here"):
        consumer.states(TopicPartition("in", 7))
