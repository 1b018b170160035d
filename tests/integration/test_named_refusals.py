"""What a broker refuses with a code that aiokafka does not know is told in words, on Apache Kafka."""

from __future__ import annotations

import pytest

from aioparallel import Record
from aioparallel.records.errors import ClientError
from aioparallel.testing import LocalKafka
from tests.support.kafka.consuming import consume, consumer_of, consuming
from tests.support.waiting import until

pytestmark = pytest.mark.real


async def nothing(record: Record) -> None:
    """Handles it."""


async def test_a_group_that_is_full() -> None:
    """The second member of a group of one ends, and says why and what to do; the first goes on."""
    full = {"group.max.size": "1", "group.consumer.max.size": "1"}
    async with LocalKafka(compile_once=True, server_properties=full) as broker:
        await broker.create_topic("t", 2)
        first = consumer_of(broker.bootstrap_servers, "t", group_id="g")
        async with consuming(first, nothing):
            await until(lambda: first.health().joined)
            second = consumer_of(broker.bootstrap_servers, "t", group_id="g")
            with pytest.raises(ClientError, match=r"as many members .*group\.(consumer\.)?max\.size.* 81\)"):
                await consume(second, nothing)
            assert first.health().joined
