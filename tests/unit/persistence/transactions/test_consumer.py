"""A consumer that commits in transactions, on the broker in memory, in virtual time: the cases of the Java library's
tests, options, and what it shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from aioparallel import (
    ConfigurationError,
    Deduplicate,
    FailurePolicy,
    NoOffsetMap,
    NotAuthorized,
    NotCommitted,
    Outgoing,
    ParallelConsumer,
    Produced,
    Producing,
    Record,
    RecordStopped,
    Reject,
    RetryPolicy,
    Transactions,
    TransactionsUnsupported,
    batches,
)
from aioparallel.group.client import Committed
from aioparallel.handlers.batches import Batch
from aioparallel.observe.health import ProblemKind
from aioparallel.persistence.transactions import StableOffsets
from aioparallel.persistence.transactions.transaction_outbox import TransactionOutbox
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.queues.priority import PriorityConsumer
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import (
    ErrorCode,
    Fault,
    InMemoryBroker,
    InMemoryClient,
    InMemoryProducer,
    InMemoryTransactionalProducer,
    Request,
)
from aioparallel.testing.memory.refused import Refused
from aioparallel.web import ConsumerService, answers
from tests.support.inside import client_of
from tests.support.waiting import until

T0 = TopicPartition("in", 0)


@pytest.fixture
def broker() -> InMemoryBroker:
    """With what is read, and where it goes."""
    broker = InMemoryBroker()
    for topic in ("in", "out", "dead", "later"):
        broker.create_topic(topic)
    return broker


def consumer_of(broker: InMemoryBroker, **options: Any) -> ParallelConsumer[Any, Any]:
    """Of group "g"."""
    given: dict[str, Any] = {"commits": Transactions(), "until": "end", "drain_timeout": 1.0, **options}
    client = InMemoryClient(broker, "g", isolation_level="read_committed", heartbeat_interval=0.05)
    producer = InMemoryTransactionalProducer(broker, "g")
    return ParallelConsumer("in", group_id="g", client=client, producer=producer, **given)


def append(broker: InMemoryBroker, *values: bytes) -> None:
    """To be read, all of one key."""
    for value in values:
        broker.append("in", value, key=b"k")


def values(broker: InMemoryBroker, topic: str = "out") -> list[bytes | None]:
    """What a committed reader sees."""
    return [record.value for record in broker.records(topic)]


async def copy(record: Record) -> Outgoing:
    """Each to topic "out"."""
    return Outgoing("out", record.value, record.key)


async def run(consumer: ParallelConsumer[Any, Any], handler: Any = copy) -> None:
    """To its end."""
    async with consumer:
        await consumer.run(handler)


async def test_outputs_and_position_are_there_together(broker: InMemoryBroker) -> None:
    """Nothing is visible before, all of it after; nothing is producing at any time."""
    append(broker, b"1", b"2", b"3")
    broker.faults.script(Request.END_TXN, Fault(request_delay=0.5))
    consumer = consumer_of(broker, until=None)
    async with consumer:
        running = asyncio.ensure_future(consumer.run(copy))
        await until(lambda: broker.transactions.open_transactions)
        await asyncio.sleep(0.3)
        assert (values(broker), broker.group("g").offsets) == ([], {})
        stats = consumer.stats()
        assert (stats.producing, stats.succeeded) == (0, 3)
        assert stats.transactions is not None
        assert (stats.transactions.waiting_outputs, stats.transactions.phase) == (3, "ending")
        await until(lambda: values(broker))
        assert values(broker) == [b"1", b"2", b"3"]
        assert broker.group("g").offsets[T0].offset == 3
        await until(lambda: consumer.stats().transactions.committed == 1)  # type: ignore[union-attr]
        assert consumer.health().healthy
        consumer.stop()
        await running


async def test_a_failing_handler_holds_up_no_transaction(broker: InMemoryBroker) -> None:
    """Others are committed beside it, with a map; it is retried, and its output comes once."""
    for value, key in ((b"fails", b"a"), (b"1", b"b"), (b"2", b"c")):
        broker.append("in", value, key=key)
    maps: list[Committed] = []

    async def handle(record: Record) -> list[Outgoing]:
        if record.value == b"fails" and record.attempt < 4:
            maps.append(broker.group("g").offsets.get(T0, Committed(-1, "")))
            raise ValueError
        return [Outgoing("out", record.value), Outgoing("out", record.value)]

    await run(consumer_of(broker, failures=FailurePolicy(retry=RetryPolicy(first_delay=0.5, multiplier=1))), handle)
    assert sorted(values(broker), key=str) == [b"1", b"1", b"2", b"2", b"fails", b"fails"]
    assert maps[-1].offset == 0
    assert maps[-1].metadata
    assert broker.group("g").offsets[T0][:2] == (3, "")


async def test_dead_letters_and_retry_topics_go_with_it(broker: InMemoryBroker) -> None:
    """The letter is in the transaction of its record's offset; what goes through a retry topic comes back once."""
    append(broker, b"1", b"rejected", b"2")
    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"later": 0.5}, dead_letter="dead")

    async def handle(record: Record) -> Outgoing:
        if record.value == b"rejected":
            raise Reject("no") if record.topic == "later" else ValueError("not yet")
        return await copy(record)

    consumer = consumer_of(broker, failures=failures, until=None)
    async with consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: values(broker, "dead"))
        consumer.stop()
        await running
    assert values(broker) == [b"1", b"2"]
    assert (values(broker, "later"), values(broker, "dead")) == ([b"rejected"], [b"rejected"])
    again = broker.log(TopicPartition("later", 0))
    assert again is not None
    assert broker.group("g").offsets[TopicPartition("later", 0)].offset == again.end_offset


@pytest.mark.parametrize("is_whole", [True, False])
async def test_batches(broker: InMemoryBroker, is_whole: bool) -> None:
    """Outputs of a batch as a whole, or by record, with all its offsets; batches are of one partition."""
    broker.add_partitions("in", 3)
    for number in range(60):
        broker.append("in", b"%d" % number, partition=number % 3)
    mixed = []

    async def handle(batch: Batch[Record]) -> object:
        mixed.append(len({record.partition for record in batch}))
        if is_whole:
            return [Outgoing("out", record.value) for record in batch]
        return {record: Outgoing("out", record.value) for record in batch}

    await run(consumer_of(broker), batches(handle, size=7))
    assert sorted(int(value or b"") for value in values(broker)) == list(range(60))
    assert set(mixed) == {1}


async def test_an_end_by_force_shows_nothing(broker: InMemoryBroker) -> None:
    """Cancelled with a transaction under way: it is aborted, and the next start makes it anew, once."""
    append(broker, b"1", b"2")
    broker.faults.always(Request.TXN_OFFSETS, Fault(is_request_lost=True))
    consumer = consumer_of(broker, commit_timeout=0.1, drain_timeout=0.1)
    async with consumer:
        running = asyncio.ensure_future(consumer.run(copy))
        await until(lambda: broker.transactions.open_transactions)
        running.cancel()
        await asyncio.wait([running])
    assert broker.transactions.open_transactions == 0
    assert values(broker) == []
    broker.faults.heal()
    await run(consumer_of(broker))
    assert values(broker) == [b"1", b"2"]


async def nothing_leaves(*given: object) -> None:
    """In the place of a connection."""
    raise Refused(ErrorCode.NETWORK_EXCEPTION)


async def test_a_killed_member_is_waited_for(broker: InMemoryBroker) -> None:
    """Its offsets are pending: the successor begins when the brokers have aborted them, and not before."""
    append(broker, b"1", b"2")
    broker.faults.always(Request.END_TXN, Fault(is_request_lost=True))
    dead = consumer_of(broker, commits=Transactions(transaction_timeout=5.0), commit_timeout=0.1)
    async with asyncio.timeout(60):
        await dead.__aenter__()
        running = asyncio.ensure_future(dead.run(copy))
        await until(lambda: broker.transactions.pending("g", [T0]))
        client = client_of(dead)
        assert isinstance(client, InMemoryClient)
        client.crash()
        dead._producer._brokers._call = nothing_leaves  # type: ignore[union-attr]
        running.cancel()
        await asyncio.wait([running])
        for member in list(broker.member_ids("g")):
            broker.expire_session("g", member, asyncio.get_running_loop().time())
        broker.faults.heal()
        began = asyncio.get_running_loop().time()
        heir = consumer_of(broker)
        await run(heir)
        assert asyncio.get_running_loop().time() - began > 3
    assert values(broker) == [b"1", b"2"]


async def test_what_only_the_broker_refuses(broker: InMemoryBroker) -> None:
    """Its record is put away, never run again; what came with it in the transaction is committed without it."""
    broker.create_topic("tight")
    broker.make_compacted("tight")
    append(broker, b"1", b"refused", b"2")
    runs: list[bytes | None] = []

    async def handle(record: Record) -> Outgoing:
        runs.append(record.value)
        return Outgoing("tight", record.value) if record.value == b"refused" else await copy(record)

    consumer = consumer_of(broker, failures=FailurePolicy(retry=RetryPolicy(max_attempts=5), dead_letter="dead"))
    await run(consumer, handle)
    assert (values(broker), values(broker, "dead"), values(broker, "tight")) == ([b"1", b"2"], [b"refused"], [])
    assert runs == [b"1", b"refused", b"2"]
    stats = consumer.stats().transactions
    assert stats is not None
    assert (stats.refused, stats.aborted_for) == (1, {"an output is refused": 1})


@pytest.mark.parametrize("give_up", ["stop", "skip"])
async def test_what_only_the_broker_refuses_without_dead_letters(broker: InMemoryBroker, give_up: Any) -> None:
    """It ends the run, with nothing of its partition committed since; or the record is skipped."""
    broker.create_topic("tight")
    broker.make_compacted("tight")
    append(broker, b"1", b"refused", b"2")

    async def handle(record: Record) -> Outgoing:
        return Outgoing("tight", record.value) if record.value == b"refused" else await copy(record)

    consumer = consumer_of(broker, failures=FailurePolicy(give_up=give_up))
    if give_up == "skip":
        await run(consumer, handle)
        assert values(broker) == [b"1", b"2"]
        return
    with pytest.raises(RecordStopped, match=r"in-0 offset 1.*compacted"):
        await run(consumer, handle)
    assert (values(broker), broker.group("g").offsets) == ([], {})
    await run(consumer_of(broker))
    assert values(broker) == [b"1", b"refused", b"2"]


async def test_what_can_be_known_is_refused_at_the_hand_over(broker: InMemoryBroker) -> None:
    """A topic that is not there fails the record as any failure does, before it is complete."""
    append(broker, b"1")
    errors: list[Exception] = []

    async def put_away(record: Record, error: Exception) -> None:
        errors.append(error)

    async def handle(record: Record) -> Sequence[Outgoing]:
        return [Outgoing("out", b"never"), Outgoing("missing", b"never")]

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    consumer = consumer_of(broker, failures=failures)
    await run(consumer, handle)
    assert "topic not found" in str(errors[0])
    assert values(broker) == []
    assert consumer.stats().dead_lettered == 1


@pytest.mark.parametrize("answer", [ErrorCode.UNSTABLE_OFFSET_COMMIT, None], ids=["88", "left out"])
async def test_doubt_waits_until_offsets_are_stable(broker: InMemoryBroker, answer: ErrorCode | None) -> None:
    """The end was carried out, and answered as if not. As long as the stable offset is not told, that says neither
    "committed" nor "not committed"; then it is found to be, and nothing is written twice."""
    append(broker, b"1", b"2")
    broker.faults.script(Request.END_TXN, Fault(error=ErrorCode.UNKNOWN_SERVER_ERROR, is_carried_out=True))
    consumer = consumer_of(broker)
    producer = consumer._producer
    assert isinstance(producer, InMemoryTransactionalProducer)
    ask, asked = producer.stable_offsets, 0

    async def not_yet(partitions: Collection[TopicPartition], timeout: float) -> StableOffsets:
        nonlocal asked
        if broker.group("g").offsets and (asked := asked + 1) < 4:
            return StableOffsets(ErrorCode.NONE, {} if answer is None else dict.fromkeys(partitions, answer))
        return await ask(partitions, timeout)

    producer.stable_offsets = not_yet  # type: ignore[method-assign]
    await run(consumer)
    assert asked == 4
    assert values(broker) == [b"1", b"2"]
    stats = consumer.stats().transactions
    assert stats is not None
    assert (stats.committed, stats.aborted) == (1, 0)


async def test_who_asks_about_a_topic_waits_for_its_own_answer(broker: InMemoryBroker) -> None:
    """One look-up after the other is under way. Whoever has waited for the first, and asked about another topic
    meanwhile, waits for the second, too: else a topic that exists would be told as not found."""
    for topic in ("a", "b"):
        broker.create_topic(topic)
    broker.faults.always(Request.METADATA, Fault(response_delay=0.5))
    outbox = TransactionOutbox(InMemoryTransactionalProducer(broker, "g"), 1_000)
    first, second = Record("in", 0, 0, None, None), Record("in", 0, 1, None, None)
    outbox.collect(first, Outgoing("a", b""))
    waits = outbox.room()
    assert waits is not None
    await asyncio.sleep(0.1)
    outbox.collect(second, Outgoing("b", b""))
    await waits
    for _ in range(5):  # until the second look-up has begun, and after it has
        waits = outbox.room()
        assert waits is not None
        await asyncio.sleep(0)
    await waits
    assert outbox.room() is None
    await outbox.close()


async def test_a_topic_that_is_doubted_is_no_missing_one(broker: InMemoryBroker) -> None:
    """Something for it was refused, while other outputs for it were on their way to the hand-over: these go by what was
    known when they were looked at. Who comes later waits until it is looked up anew."""
    outbox = TransactionOutbox(InMemoryTransactionalProducer(broker, "g"), 1_000)
    record = Record("in", 0, 0, None, None)
    outputs = outbox.collect(record, Outgoing("out", b"1"))
    assert outputs is not None
    await (outbox.room() or asyncio.sleep(0))
    outbox.doubt(["out"])
    assert outbox._failure(record, outputs) is None
    outbox.collect(record, Outgoing("out", b"2"))
    waits = outbox.room()
    assert waits is not None
    await waits
    assert outbox.room() is None
    await outbox.close()


async def test_a_prefix_that_makes_no_id_is_refused() -> None:
    """At once, without showing all of it."""
    with pytest.raises(ConfigurationError, match=r"id_prefix.*40,000 bytes.*at most 32,000") as refused:
        Transactions(id_prefix="é" * 20_000)
    assert len(str(refused.value)) < 300


async def test_a_run_that_fails_at_its_end_is_seen_in_health(broker: InMemoryBroker) -> None:
    """Also where it had ended all its records already."""
    append(broker, b"1")
    broker.faults.always(Request.TXN_OFFSETS, Fault(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    consumer = consumer_of(broker, commit_timeout=0.5)
    async with consumer:
        with pytest.raises(NotCommitted):
            await consumer.run(copy)
        health = consumer.health()
        assert not health.live
        assert health.problems[0].kind is ProblemKind.FAILED


async def test_the_end_names_what_its_last_commit_has_waited_for(broker: InMemoryBroker) -> None:
    """A topic whose leader does not answer."""
    append(broker, b"1")
    broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))
    consumer = consumer_of(broker, commit_timeout=4.0)
    async with consumer:
        with pytest.raises(NotCommitted, match="out-0"):
            await consumer.run(copy)


async def test_commit_now_says_what_a_cut_map_leaves_behind() -> None:
    """Outputs above what the map can say are not committed, and not said to be."""
    broker = InMemoryBroker(metadata_limit=4)
    for topic in ("in", "out"):
        broker.create_topic(topic)
    for number in range(60):
        broker.append("in", b"%d" % number, key=b"%d" % number)
    is_open = asyncio.Event()

    async def handle(record: Record) -> Outgoing:
        if int(record.value or b"") % 3 == 0:
            await is_open.wait()
        return await copy(record)

    async with consumer_of(broker, until=None) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: any(one.kind is ProblemKind.MAP_CUT for one in consumer.health().problems))
        with pytest.raises(NotCommitted, match="no metadata of that length"):
            await consumer.commit_now()
        is_open.set()
        await until(lambda: len(values(broker)) == 60)
        await consumer.commit_now()
        consumer.stop()
        await running


async def test_figures_are_plain_for_the_web(broker: InMemoryBroker) -> None:
    """``/stats`` gives them as JSON."""
    append(broker, b"1")
    broker.faults.script(Request.TXN_OFFSETS, Fault(error=ErrorCode.INVALID_TXN_STATE))
    async with ConsumerService(lambda: consumer_of(broker, until=None), copy) as service:
        await until(lambda: values(broker) == [b"1"])
        told = json.loads(json.dumps(answers.stats({"one": service}).body))
        assert sum(told["one"]["transactions"]["aborted_for"].values()) == 1


async def test_a_timeout_that_the_brokers_refuse_is_named(broker: InMemoryBroker) -> None:
    """It is no missing right: the option, its value, and the brokers' setting."""
    with pytest.raises(ConfigurationError, match=r"transaction_timeout=901: .*transaction\.max\.timeout\.ms"):
        await run(consumer_of(broker, commits=Transactions(transaction_timeout=901), session_timeout=1_000))


async def test_a_missing_right_is_named(broker: InMemoryBroker) -> None:
    """With the id that it is about."""
    broker.faults.always(Request.IDENTIFY, Fault(error=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    with pytest.raises(NotAuthorized, match="WRITE and DESCRIBE on the transactional id 'g-"):
        await run(consumer_of(broker))


async def test_on_produced_comes_after_the_commit(broker: InMemoryBroker) -> None:
    """With the place; not for what was aborted."""
    append(broker, b"1", b"2")
    broker.faults.script(Request.TXN_OFFSETS, Fault(error=ErrorCode.TRANSACTION_ABORTABLE))
    told: list[tuple[int, int, int]] = []

    def on_produced(record: Record, output: Outgoing, place: Produced) -> None:
        assert values(broker) == [b"1", b"2"]
        told.append((record.offset, place.partition, place.offset))

    await run(consumer_of(broker, producing=Producing(on_produced=on_produced)))
    assert [(offset, partition) for offset, partition, _ in told] == [(0, 0), (1, 0)]


async def test_an_on_produced_that_exits_ends_the_run(broker: InMemoryBroker) -> None:
    """With what it raised, after the commit."""
    append(broker, b"1", b"2")

    def on_produced(*_: object) -> None:
        raise GeneratorExit("of a generator that it closes")

    with pytest.raises(GeneratorExit):
        await run(consumer_of(broker, producing=Producing(on_produced=on_produced)))
    assert values(broker) == [b"1", b"2"]


async def test_a_map_that_cannot_be_read_ends_the_run(broker: InMemoryBroker) -> None:
    """Without it outputs would be written twice; the message says how to go on."""
    append(broker, b"1", b"2")
    broker.group("g").offsets[T0] = Committed(1, "somebody's own text")
    with pytest.raises(NoOffsetMap, match="--to-offset 1 --execute"):
        await run(consumer_of(broker))
    assert values(broker) == []


async def test_the_next_producer_id(broker: InMemoryBroker) -> None:
    """After the last epoch another id comes, and it goes on."""
    broker.transactions.last_epoch = 3
    consumer = consumer_of(broker, until=None)
    async with consumer:
        running = asyncio.ensure_future(consumer.run(copy))
        for number in range(20):
            append(broker, b"%d" % number)
            await until(lambda number=number: len(values(broker)) == number + 1)  # type: ignore[misc]
        consumer.stop()
        await running
    assert values(broker) == [b"%d" % number for number in range(20)]


async def test_an_old_broker_is_refused_by_name(broker: InMemoryBroker) -> None:
    """Before anything is read, with what to do."""
    broker.transaction_version = 0
    with pytest.raises(TransactionsUnsupported, match=r"transaction\.version 2"):
        await run(consumer_of(broker))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"commit_interval": 1.0}, "commit_interval=1.0.*use its interval"),
        ({"session_timeout": 15.0}, "transaction_timeout=10.*at most session_timeout .15. - 10"),
        ({"deduplicate": Deduplicate("seen")}, "deduplicate.*cannot be combined with"),
        ({"client_options": {"isolation_level": "read_uncommitted"}}, "must be read_committed"),
        ({"commits": "yes"}, "must be None, Transactions"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    """Each is refused, by name, before anything is connected."""
    given: dict[str, Any] = {"commits": Transactions(), **options}
    with pytest.raises(ConfigurationError, match=said):
        ParallelConsumer("in", group_id="g", **given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"interval": 0}, "more than 0"),
        ({"interval": 6.0}, "at most half"),
        ({"transaction_timeout": -1}, "must be seconds"),
        ({"id_prefix": " "}, "not empty"),
    ],
)
def test_transactions_that_cannot_be(options: dict[str, Any], said: str) -> None:
    """As with all options."""
    with pytest.raises(ConfigurationError, match=said):
        Transactions(**options)


def test_who_has_no_transactions() -> None:
    """Queues, priorities, and clients without a producer that can."""
    broker = InMemoryBroker()
    with pytest.raises(ConfigurationError, match="redelivered"):
        KmqConsumer("q", group_id="g", commits=Transactions())
    with pytest.raises(ConfigurationError, match="each priority has its own"):
        PriorityConsumer("p", priorities=2, group_id="g", commits=Transactions())
    with pytest.raises(ConfigurationError, match="needs a producer"):
        ParallelConsumer(
            "in",
            group_id="g",
            client=InMemoryClient(broker, "g"),
            producer=InMemoryProducer(broker),
            commits=Transactions(),
        )
    with pytest.raises(ConfigurationError, match=r"needs commits=Transactions"):
        ParallelConsumer(
            "in", group_id="g", client=InMemoryClient(broker, "g"), producer=InMemoryTransactionalProducer(broker, "g")
        )


async def test_a_partition_is_new_though_a_transaction_holds_the_positions_below(broker: InMemoryBroker) -> None:
    """A member has died in a transaction: what was committed before it counts, and with "latest" the records that
    precede the assignment of a new partition are handled."""
    client = InMemoryClient(broker, "g", isolation_level="read_committed", session_timeout=2, heartbeat_interval=0.05)
    first: ParallelConsumer[Any, Any] = ParallelConsumer(
        "in",
        group_id="g",
        client=client,
        producer=InMemoryTransactionalProducer(broker, "g"),
        commits=Transactions(),
        auto_offset_reset="latest",
        drain_timeout=1.0,
    )
    async with asyncio.timeout(300), first:
        running = asyncio.ensure_future(first.run(copy))
        await until(lambda: T0 in broker.group("g").offsets)
        broker.faults.always(Request.END_TXN, Fault(is_request_lost=True))
        append(broker, b"held")
        await until(lambda: broker.transactions.open_transactions)
        client.crash()
        broker.add_partitions("in", 2)
        broker.append("in", b"new", partition=1)
        async with consumer_of(broker, until=None, auto_offset_reset="latest") as second:
            again = asyncio.ensure_future(second.run(copy))
            began = asyncio.get_running_loop().time()
            await until(lambda: second._engine is not None and second.stats().succeeded == 1)
            assert asyncio.get_running_loop().time() - began < 10
            assert broker.transactions.open_transactions
            broker.faults.heal()
            await until(lambda: sorted(map(str, values(broker))) == ["b'held'", "b'new'"])
            second.stop()
            await again
        with pytest.raises(ClientError):
            await running
