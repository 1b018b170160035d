"""Apache Kafka and the in-memory broker answer the same batches in the same way, whatever their numbers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol, cast

import pytest
import pytest_asyncio
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from aioparallel.records.record import Outgoing, TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.memory import ErrorCode, InMemoryBroker
from aioparallel.testing.memory.produced import Numbers
from aioparallel.testing.memory.refused import Refused

pytestmark = pytest.mark.real

STEPS = 400
WRAP = 2**31
VALUE = b"x" * 100


class Step(NamedTuple):
    """A batch with this number of records."""

    numbers: Numbers
    records: int


class Said(NamedTuple):
    """Kafka's error code, and the offset if there is none."""

    code: int
    offset: int


class Answer(Protocol):
    """The part of aiokafka's answer used here: for each topic, partition, code and offset come first."""

    topics: list[tuple[str, list[tuple[int, int, int]]]]


class Sender:
    """Sends batches to partition 0 of one topic of a real broker, unchanged."""

    def __init__(self, client: AIOKafkaClient, topic: str) -> None:
        self.topic = topic
        self._client = client

    async def send(self, step: Step) -> Said:
        builder = DefaultRecordBatchBuilder(
            2,
            0,
            is_transactional=0,
            producer_id=step.numbers.producer_id,
            producer_epoch=step.numbers.epoch,
            base_sequence=step.numbers.sequence,
            batch_size=10_000,
        )
        for index in range(step.records):
            builder.append(index, 1, None, VALUE, [])
        partitions = [(0, bytes(builder.build()))]
        request = ProduceRequest(cast("str", None), -1, 10_000, [(self.topic, partitions)])
        answer = cast("Answer", await self._client.send(self._client.get_random_node(), request))
        _, code, offset, *_ = answer.topics[0][1][0]
        return Said(code, offset if code == 0 else -1)


@pytest_asyncio.fixture
async def sender(local_kafka: LocalKafka, topic: str) -> AsyncIterator[Sender]:
    """To a topic of its own."""
    await local_kafka.create_topic(topic)
    client = AIOKafkaClient(bootstrap_servers=local_kafka.bootstrap_servers)
    await client.bootstrap()
    try:
        yield Sender(client, topic)
    finally:
        await client.close()


@pytest.fixture
def memory(topic: str) -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic(topic)
    return broker


def say(broker: InMemoryBroker, topic: str, step: Step) -> Said:
    """The answer of the in-memory broker."""
    records = [Outgoing(topic, VALUE)] * step.records
    try:
        return Said(0, broker.produce(TopicPartition(topic, 0), records, size=100 * step.records, numbers=step.numbers))
    except Refused as refused:
        return Said(refused.code.value, -1)


def steps(seed: int) -> list[Step]:
    """Correct, repeated and slightly wrong numbers of three producers, one of which is about to wrap around."""
    rng = random.Random(seed)
    expected = {101: Numbers(101, 0, 0), 102: Numbers(102, 0, WRAP - 10), 103: Numbers(103, 5, 7)}
    made: list[Step] = []
    for _ in range(STEPS):
        numbers, count = expected[rng.choice(list(expected))], rng.randint(1, 3)
        match rng.choice(["next", "next", "next", "again", "again", "near", "epoch"]):
            case "again" if made:
                made.append(rng.choice(made[-15:]))
                continue
            case "near":
                wrong = (numbers.sequence + rng.randint(-6, 2)) % WRAP
                made.append(Step(numbers._replace(sequence=wrong), count))
                continue
            case "epoch":
                epoch = max(0, numbers.epoch + rng.choice([-1, 1]))
                numbers = Numbers(numbers.producer_id, epoch, rng.choice([0, 0, 0, 1, numbers.sequence]))
        made.append(Step(numbers, count))
        if numbers.epoch >= expected[numbers.producer_id].epoch:
            following = (numbers.sequence + count) % WRAP
            expected[numbers.producer_id] = numbers._replace(sequence=following)
    return made


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_both_take_the_same_batches(sender: Sender, memory: InMemoryBroker, seed: int) -> None:
    """With numbers that are next, repeated, wrong, or of an older or newer epoch, in any order: the same offsets and
    error codes for each batch (KIP-98, KIP-360)."""
    codes: set[int] = set()
    for number, step in enumerate(steps(seed)):
        real = await sender.send(step)
        assert say(memory, sender.topic, step) == real, f"step {number}: {step}"
        codes.add(real.code)
    assert codes == {
        0,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.value,
        ErrorCode.INVALID_PRODUCER_EPOCH.value,
    }


@pytest.mark.parametrize(
    ("config", "value", "change", "code"),
    [
        (
            "max.message.bytes",
            "150",
            lambda broker, topic: setattr(broker, "max_message_bytes", 150),
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
        (
            "cleanup.policy",
            "compact",
            lambda broker, topic: broker.make_compacted(topic),
            ErrorCode.INVALID_RECORD,
        ),
    ],
)
async def test_both_refuse_a_batch_that_they_have_written(
    local_kafka: LocalKafka,
    sender: Sender,
    memory: InMemoryBroker,
    config: str,
    value: str,
    change: Callable[[InMemoryBroker, str], None],
    code: ErrorCode,
) -> None:
    """When the topic no longer accepts such batches, a repetition is refused although the batch is in the log."""
    step = Step(Numbers(101, 0, 0), 2)
    assert say(memory, sender.topic, step) == await sender.send(step) == Said(0, 0)
    admin = AdminClient({"bootstrap.servers": local_kafka.bootstrap_servers})
    entry = ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, sender.topic, incremental_configs=[entry])
    for changed in admin.incremental_alter_configs([resource]).values():
        await asyncio.to_thread(changed.result, 10.0)
    change(memory, sender.topic)
    async with asyncio.timeout(10.0):
        while (real := await sender.send(step)) == Said(0, 0):  # a repetition, until the broker has the new setting
            await asyncio.sleep(0.05)
    assert say(memory, sender.topic, step) == real == Said(code.value, -1)
