"""Shows why lag by offsets misleads, and what a tool that resets offsets destroys.

    aioparallel broker --kafka --port 9092 --topic lag      # in another terminal; needs Java
    python examples/lag.py                      # with another empty topic: python examples/lag.py other

It writes 2,000 records to a topic of one partition. Two of them fail again and again, and all others are handled. Then
it compares the lag that Kafka's tools compute with the consumer's own. At the end it moves the committed offset by one,
as ``kafka-consumer-groups.sh --reset-offsets --shift-by 1`` does, and counts the records that run again.
"""

import asyncio
import os
import sys
import time

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from aioparallel import FailurePolicy, OffsetMapError, ParallelConsumer, Record, RetryPolicy
from aioparallel.offsets import decode_offset_map

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")
RECORDS = 2_000
STUCK = {37, 1_200}


async def fill(topic: str) -> None:
    """Write the records."""
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=SERVERS) as producer:
        for number in range(RECORDS):
            await producer.send(topic, b"%d" % number, key=b"key-%d" % number)


async def records_left(topic: str, group: str) -> int:
    """How many records the group has not completed, by its commits and their offset maps: for tools outside the group.

    Offsets above a map count as records, also those of transaction markers and of compacted records.
    """
    consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=SERVERS)
    admin = AIOKafkaAdminClient(bootstrap_servers=SERVERS)
    await consumer.start()
    try:
        await admin.start()
        partitions = [aiokafka.TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        commits = await admin.list_consumer_group_offsets(group, partitions=partitions)
    finally:
        await admin.close()
        await consumer.stop()
    left = 0
    for partition in partitions:
        offset, metadata = commits[partition]
        base = max(offset, begins[partition])  # -1: nothing is committed
        try:
            known = decode_offset_map(base, metadata if base == offset else None)
        except OffsetMapError:  # another tool's text
            known = decode_offset_map(base, None)
        left += len(known.incompletes) + max(0, ends[partition] - known.highest_succeeded - 1)
    return left


async def handle_all_but_the_stuck(topic: str, group: str) -> None:
    """Handle everything except two records, and compare both kinds of lag."""

    async def handle(record: Record) -> None:
        if record.offset in STUCK:
            raise ValueError("the service does not know this customer")

    failures = FailurePolicy(retry=RetryPolicy(first_delay=3600, max_delay=3600))
    consumer = ParallelConsumer(topic, bootstrap_servers=SERVERS, group_id=group, failures=failures)
    async with consumer:
        running = asyncio.create_task(consumer.run(handle))
        while not consumer.health().ready or consumer.stats().succeeded < RECORDS - len(STUCK):
            await asyncio.sleep(0.05)
        await consumer.commit_now()
        partition = consumer.stats().partitions[0]
        print(f"committed offset {partition.committed}, end of the log {RECORDS}")
        print(f"lag by offsets: {RECORDS - (partition.committed or 0):,}")
        print(f"records left, by the commit with its map: {await records_left(topic, group)}")
        print(f"stats().lag: {consumer.stats().lag}, of which parked: {consumer.stats().parked}")
        consumer.stop()
        await running


def shift_by_one(topic: str, group: str) -> None:
    """Move the committed offset behind the first stuck record, with Kafka's request for that: without the map."""
    admin = AdminClient({"bootstrap.servers": SERVERS})
    partition = TopicPartition(topic, 0, min(STUCK) + 1)
    for future in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [partition])]).values():
        future.result()


async def count_what_runs_again(topic: str, group: str) -> None:
    """Handle the rest, now without failures."""
    seen: list[int] = []

    async def handle(record: Record) -> None:
        seen.append(record.offset)

    consumer = ParallelConsumer(topic, bootstrap_servers=SERVERS, group_id=group, until="end")
    async with consumer:
        await consumer.run(handle)
    again = [offset for offset in seen if offset not in STUCK]
    print(f"after the reset {len(again):,} records ran again")
    print(f"handled at last: {sorted(STUCK & set(seen))}, never: {sorted(STUCK - set(seen))}")


async def main(topic: str) -> None:
    """All of it, with a new group."""
    group = f"lag-{time.time_ns()}"
    await fill(topic)
    await handle_all_but_the_stuck(topic, group)
    shift_by_one(topic, group)
    await count_what_runs_again(topic, group)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if sys.argv[1:] else "lag"))
