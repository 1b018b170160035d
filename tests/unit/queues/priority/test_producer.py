"""A producer of several priorities."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from aioparallel import ConfigurationError, ProduceFailed
from aioparallel.queues.priority import PriorityProducer
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryProducer, Request


@pytest.fixture
def wide() -> InMemoryBroker:
    """Topics of "XYZ" with ten partitions."""
    broker = InMemoryBroker()
    for priority in range(3):
        broker.create_topic(f"XYZ-{priority}", 10)
    return broker


def producer(broker: InMemoryBroker) -> PriorityProducer:
    return PriorityProducer(priorities=3, producer=InMemoryProducer(broker, delivery_timeout=1))


async def test_oracle_2_7_send(wide: InMemoryBroker) -> None:
    """ProducerTest: send(2, ("XYZ", partition 9, ...)) goes to XYZ-2, partition 9; without a priority to XYZ-0."""
    async with producer(wide) as one:
        place = await one.send("XYZ", b"value", priority=2, partition=9, key=b"1", headers=[("h", b"1")], timestamp=7)
        assert (place.topic, place.partition, place.offset, place.timestamp) == ("XYZ-2", 9, 0, 7)
        assert (await one.send("XYZ", b"value")).topic == "XYZ-0"
        for wrong in (10, 3, -1, True, 1.0):
            with pytest.raises(ConfigurationError, match="must be 0 to 2"):
                await one.send("XYZ", b"value", priority=wrong)  # type: ignore[arg-type]
        assert len(await one.partitions("XYZ")) == 30
    log = wide.log(TopicPartition("XYZ-2", 9))
    assert log is not None
    (record,) = log.read(0, 10**6, read_committed=False).records
    assert (record.key, record.value, record.headers) == (b"1", b"value", (("h", b"1"),))


async def test_many_at_once_keep_their_order(wide: InMemoryBroker) -> None:
    """What is sent to one partition stands there in the order of the calls."""
    async with producer(wide) as one:
        places = await asyncio.gather(*[one.send("XYZ", b"%d" % n, priority=1, partition=0) for n in range(1_000)])
    assert [place.offset for place in places] == list(range(1_000))


async def test_what_is_not_taken_is_told(wide: InMemoryBroker) -> None:
    """A refusal is raised; a send that was cancelled is waited for all the same when the producer is left."""
    async with producer(wide) as one:
        wide.faults.always(Request.PRODUCE, Fault(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(ProduceFailed, match="not authorised"):
            await one.send("XYZ", b"value")
        wide.faults.heal()
        sending = asyncio.create_task(one.send("XYZ", b"later", priority=2, partition=0))
        await asyncio.sleep(0)
        sending.cancel()
    log = wide.log(TopicPartition("XYZ-2", 0))
    assert log is not None
    assert log.end_offset == 1


def test_priorities_are_checked() -> None:
    """When it is made."""
    with pytest.raises(ConfigurationError, match="priorities"):
        PriorityProducer(priorities=0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"client_options": {"security_protocl": "SASL_SSL"}}, "did you mean 'security_protocol'?"),
        ({"client_options": {"compression_type": "gzip"}}, "use producing=Producing(client_options=...)"),
        ({"client_options": {"nonsense": 1}}, "aiokafka has no such option; it has "),
        ({"bootstrap_server": "host:9092"}, "did you mean 'bootstrap_servers'?"),
    ],
)
def test_options_that_a_producer_does_not_have_are_refused(options: dict[str, Any], says: str) -> None:
    """A misspelled protocol would send records in plain text."""
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        PriorityProducer(priorities=3, **options)
