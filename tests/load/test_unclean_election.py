"""A leader that lacks the newest records, on three brokers (KIP-320). ``make load-brokers``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from aioparallel import Record
from aioparallel.testing import LocalKafka
from tests.support.kafka.brokers import restore, until_whole
from tests.support.kafka.consuming import consume, consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(420)]

Tell = Callable[[str], None]


def write(servers: str, topic: str, what: str, count: int) -> None:
    """``what-0``, ``what-1``, ..."""
    fill(servers, topic, [Message(b"%d" % n, f"{what}-{n}".encode(), partition=0) for n in range(count)])


class Values:
    """What a handler was given. ``stuck``: a value whose handler does not end."""

    def __init__(self, stuck: str = "") -> None:
        self.all: list[str] = []
        self._stuck = stuck

    async def __call__(self, record: Record) -> None:
        """Note it."""
        value = (record.value or b"").decode()
        if value == self._stuck:
            await asyncio.Event().wait()
        self.all.append(value)

    def of(self, what: str) -> set[int]:
        """The numbers of these."""
        return {int(value.partition("-")[2]) for value in self.all if value.startswith(what)}


def create(servers: str, topic: str, brokers: Sequence[int]) -> None:
    """One partition on these brokers, the first of them leads. Any of them may, whatever it lacks."""
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    wanted = NewTopic(topic, 1, replica_assignment=[list(brokers)], config=configs)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([wanted])[topic].result(30)


async def alone(kafka: LocalKafka, topic: str, leader: int, follower: int) -> None:
    """The follower goes: what is written from now on is with the leader alone."""
    await asyncio.to_thread(kafka.kill, follower)

    async def is_alone() -> bool:
        return (await kafka.in_sync(topic)).get(0) == frozenset({leader})

    await until(is_alone, what="one replica in sync")


async def take_over(kafka: LocalKafka, topic: str, leader: int, follower: int) -> None:
    """The leader goes, and the follower comes back and leads."""
    await asyncio.to_thread(kafka.kill, leader)
    await asyncio.to_thread(kafka.restart, follower)

    async def is_led() -> bool:
        return (await kafka.leaders(topic)).get(0) == follower

    await until(is_led, what="another leader")


@pytest.mark.parametrize("written", [70, 160], ids=["shorter than what was read", "longer"])
@pytest.mark.parametrize("is_read", [True, False], ids=["while it is read", "while nobody reads"])
async def test_an_unclean_election(kafka_cluster: LocalKafka, tell: Tell, written: int, is_read: bool) -> None:
    """40 records are on both replicas, 60 more on the leader alone, and all handled but one: committed is 45 with a map
    of 46 to 99. Another broker leads with 40 and is written to: each of its records is handled."""
    servers = kafka_cluster.bootstrap_servers
    topic = f"unclean-{written}-{is_read}"
    group = f"{topic}-group"
    leader, follower, _ = kafka_cluster.numbers
    try:
        await asyncio.to_thread(create, servers, topic, [leader, follower])
        write(servers, topic, "old", 40)
        await alone(kafka_cluster, topic, leader, follower)
        write(servers, topic, "lost", 60)
        values = Values(stuck="lost-5")
        consumer = consumer_of(servers, topic, group_id=group, drain_timeout=1.0)

        async def is_committed() -> bool:
            found = await committed(servers, group)
            return 0 in found and found[0].offset == 45 and len(values.all) == 99

        if is_read:
            async with consuming(consumer, values):
                await until(is_committed)
                await take_over(kafka_cluster, topic, leader, follower)
                write(servers, topic, "new", written - 40)
                took = await until(lambda: values.of("new") == set(range(written - 40)))
                stats = consumer.stats()
        else:
            async with consuming(consumer, values):
                await until(is_committed)
            await take_over(kafka_cluster, topic, leader, follower)
            write(servers, topic, "new", written - 40)
            took = 0.0
            stats = await consume(consumer_of(servers, topic, group_id=group, until="end"), values)
        assert values.of("new") == set(range(written - 40))
        assert stats.log_truncations == 1
        tell(f"all {written - 40} new records handled, {took:.1f} s after they were written")
    finally:
        await asyncio.to_thread(restore, kafka_cluster)
        await until_whole(kafka_cluster)
