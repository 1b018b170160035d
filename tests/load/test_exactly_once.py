"""Members that copy in transactions, killed, frozen, joining and leaving, on Apache Kafka. All of it:
``make load-exactly-once``."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aioparallel import Outgoing, Record
from aioparallel.clients import AiokafkaTransactionalProducer
from aioparallel.persistence.transactions import Epoch
from aioparallel.persistence.transactions.pending_outputs import Entry
from aioparallel.persistence.transactions.sending_outputs import Sending
from aioparallel.testing import LocalKafka
from aioparallel.testing.processes.child import Child
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.brokers import coordinator, until_whole
from tests.support.kafka.filling import fill, fill_numbered, numbered
from tests.support.kafka.reading import check_numbers, committed, read_all
from tests.support.members.freezing import feed_until_frozen
from tests.support.members.restless import Restless
from tests.support.waiting import until

pytestmark = pytest.mark.real

MODULE = "tests.support.children.exact"
PARTITIONS = 8
KEYS = 1_000
PLACES = ("produce", "offsets", "end", "ending")
Small = pytest.param(20_000, 1.5, 3, id="small", marks=pytest.mark.slow)
Large = pytest.param(200_000, 4.0, 1_000, id="large", marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])
Tell = Callable[[str], None]


async def copied(servers: str, group: str, records: int) -> bool:
    """Whether all that was read is committed."""
    return sum([one.offset for one in (await committed(servers, group)).values()]) >= records


async def check(servers: str, target: str, records: int) -> int:
    """Each is there once under ``read_committed``, those of a key in order. How many more other readers see."""
    seen = await read_all(servers, target, is_committed=True)
    check_numbers(seen, range(records))
    return len(await read_all(servers, target)) - len(seen)


@pytest.mark.parametrize(("records", "pause", "kills"), [Small, Large])
async def test_kills_repeat_and_lose_nothing(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Tell, records: int, pause: float, kills: int
) -> None:
    """One member is killed again and again and restarted under its name; another one joins and leaves, now and then
    killed too. Each record stands in the target once, in the order of its key."""
    servers = local_kafka.bootstrap_servers
    source, target = await kafka_topic(partitions=PARTITIONS), await kafka_topic(partitions=PARTITIONS)
    group = f"{source}-group"
    fill_numbered(servers, source, records, KEYS)
    at = time.monotonic()
    async with Restless(MODULE, (servers, source, target, group, "40"), tmp_path, kills) as members:
        while not await copied(servers, group, records):
            assert time.monotonic() - at < 1_200
            await asyncio.sleep(members.pause(pause))
            await members.trouble()
        await members.end()
    took = time.monotonic() - at
    more = await check(servers, target, records)
    tell(
        f"{records:,} records in {took:.0f} s, one member killed {members.killed} times, another one left "
        f"{members.left} times: each is there once, in the order of its key; {more:,} outputs of aborted transactions"
    )


@pytest.mark.parametrize("places", [("offsets",), pytest.param(PLACES, marks=pytest.mark.slow)], ids=["one", "all"])
async def test_zombies_write_nothing_twice(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Tell, places: tuple[str, ...]
) -> None:
    """A member is frozen for longer than its session, in places of a transaction, each in a group of its own; another
    one takes over, and the first comes back: each record stands in the target once, in the order of its key."""

    async def zombie(place: str) -> None:
        servers = local_kafka.bootstrap_servers
        source, target = await kafka_topic(partitions=4), await kafka_topic(partitions=4)
        given = (servers, source, target, f"{source}-group")

        def member(name: str, *options: str) -> Child:
            return Child.of_module(f"{place} {name}", MODULE, *given, *options, log=tmp_path / f"{place}-{name}.log")

        async with member("frozen", "60", f"freeze={place}") as frozen:
            _, written = await feed_until_frozen(frozen, servers, source, 100)
            async with member("heir", "5") as heir:
                await until(lambda: copied(servers, f"{source}-group", written), 90)
                frozen.resume()
                # It finds out that it is out, joins again, and is told where the group stands.
                records = written + 3_000
                await asyncio.to_thread(fill, servers, source, itertools.islice(numbered(records, 100), written, None))
                await until(lambda: copied(servers, f"{source}-group", records), 60)
                for child in (frozen, heir):
                    assert child.running, child.last_words()
                    child.terminate()
                    await child.ended(60)
        more = await check(servers, target, records)
        tell(f"frozen at {place!r}: {records:,} records once, in order; {more:,} outputs of aborted transactions")

    async with asyncio.TaskGroup() as group:
        for place in places:
            group.create_task(zombie(place))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_producer_id_changes(local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Tell) -> None:
    """After epoch 32,766 an end tells another producer id, and the same when it is repeated. What is written before,
    with the last epoch and after it is there, once."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=1)
    producer = AiokafkaTransactionalProducer(
        servers, topic, delivery_timeout=30.0, consumer_options={}, producer_options={}
    )
    producer.identify_as(f"id-{topic}")
    await producer.start(30.0)
    record = Record(topic, 0, 0, None, None)
    try:
        while (epoch := (await producer.initialize(None, 60.0, 5.0)).epoch) is None:
            await asyncio.sleep(0.1)
        first, at, written = epoch.producer_id, time.monotonic(), 0

        async def end(epoch: Epoch, *, commit: bool) -> Epoch:
            while (answer := await producer.end(epoch, 5.0, commit=commit)).epoch is None:
                await asyncio.sleep(0.005)
            return answer.epoch

        while epoch.producer_id == first or epoch.number < 10:
            if epoch.producer_id == first and epoch.number < 32_757:
                epoch = await end(epoch, commit=False)
                continue
            producer.begin(epoch)
            sending = Sending(producer, keeps_places=False)
            await sending.send([Entry(record, Outgoing(topic, b"%d" % written, b"k"))])
            await sending.wait()
            assert sending.is_done
            written += 1
            following = await end(epoch, commit=True)
            assert await end(epoch, commit=True) == following
            epoch = following
        took = time.monotonic() - at
    finally:
        await producer.stop(1.0)
    seen = await read_all(servers, topic, is_committed=True)
    assert [record.value for record in seen] == [b"%d" % number for number in range(written)]
    tell(f"{written} transactions across the change of the producer id, each once ({took:.0f} s)")


PHASES = ("offsets", "end", "ending")
ROLES = ("the coordinator of transactions", "the coordinator of the group", "the leader of the output")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("phase", PHASES)
async def test_a_broker_is_killed_in_a_phase(
    kafka_cluster: LocalKafka, tmp_path: Path, tell: Tell, role: str, phase: str
) -> None:
    """Of three brokers one is killed after the outputs of a transaction were acknowledged, after its offsets were, or
    with its end under way, and comes back later; two members. Each record is there once, in order."""
    servers = kafka_cluster.bootstrap_servers
    source, target = (f"{kind}-{ROLES.index(role)}-{phase}" for kind in ("source", "target"))
    await kafka_cluster.create_topic(source, 4)
    await kafka_cluster.create_topic(target, 1)
    given = (servers, source, target, f"{source}-group", "20")

    def member(name: str, *options: str) -> Child:
        return Child.of_module(name, MODULE, *given, *options, log=tmp_path / f"{name}.log")

    async with member("frozen", f"freeze={phase}") as frozen:
        line, written = await feed_until_frozen(frozen, servers, source, 100)
        records = written + 6_000
        async with member("other") as other:
            assert await other.line(60) == "ready"
            await asyncio.to_thread(fill, servers, source, itertools.islice(numbered(records, 100), written, None))
            if role == ROLES[0]:
                victim = int(line.split()[1])
            elif role == ROLES[1]:
                victim = await coordinator(kafka_cluster, f"{source}-group")
            else:
                (victim,) = (await kafka_cluster.leaders(target)).values()
            await asyncio.to_thread(kafka_cluster.kill, victim)
            at = time.monotonic()
            frozen.resume()
            await until(lambda: copied(servers, f"{source}-group", records), 120)
            took = time.monotonic() - at
            await asyncio.to_thread(kafka_cluster.restart, victim)
            for child in (frozen, other):
                assert child.running, child.last_words()
                child.terminate()
                await child.ended(60)
    await until_whole(kafka_cluster, source, target)
    more = await check(servers, target, records)
    tell(f"done {took:.1f} s after the kill; {records:,} once, in order; {more:,} outputs of aborted transactions")
