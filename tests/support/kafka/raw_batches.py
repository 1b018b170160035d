"""Batches that no client would write, and logs that no broker would: over the wire, and on the disk."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from tests.support.waiting import until

__all__ = ["RAW_NAME", "damage", "with_raw_names", "write"]

_STAND_IN = "a-name-of-the-same-length"
RAW_NAME = b"\xff\xfe" + b"x" * (len(_STAND_IN) - 2)
"""Bytes that are no UTF-8."""
_CRC, _ATTRIBUTES = 17, 21
_NOT_LEADER = 6


def with_raw_names(values: Sequence[bytes], raw: Sequence[int]) -> bytes:
    """A batch of records of these values, each with two headers; of those at the places ``raw`` the name of the second
    is ``RAW_NAME``."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for place, value in enumerate(values):
        name = _STAND_IN if place in raw else "plain"
        builder.append(place, 1_000 + place, b"key", value, [("trace", b"1"), (name, b"2")])
    data = bytearray(bytes(builder.build()).replace(_STAND_IN.encode(), RAW_NAME))
    struct.pack_into(">I", data, _CRC, calc_crc32c(bytes(data[_ATTRIBUTES:])))
    return bytes(data)


async def write(servers: str, topic: str, partition: int, *batches: bytes) -> None:
    """Have the leader write them as they are, each with a request of its own."""
    client = AIOKafkaClient(bootstrap_servers=servers)
    try:
        await client.bootstrap()
        client.set_topics([topic])
        await client.force_metadata_update()
        leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))

        async def is_written(batch: bytes) -> bool:
            answer = await client.send(leader, ProduceRequest(None, -1, 30_000, [(topic, [(partition, batch)])]))
            ((_, ((_, code, *_),)),) = answer.topics
            # The only broker may not know yet that it leads a partition that was just made.
            assert code in (0, _NOT_LEADER), f"error {code}"
            return bool(code == 0)

        for batch in batches:
            await until(partial(is_written, batch), what="the leader of a new partition takes a batch")
    finally:
        await client.close()


def damage(kafka: LocalKafka, topic: str, partition: int, offset: int) -> None:
    """Change a byte of the batch at this offset in the log of a broker, which reads it from the file."""
    path = kafka._broker(None).directory / "data" / f"{topic}-{partition}" / f"{0:020d}.log"
    with path.open("r+b") as log:
        data, at = log.read(), 0
        while at < len(data):
            base, length = struct.unpack_from(">qi", data, at)
            at += 12 + length
            if base == offset:
                log.seek(at - 1)
                log.write(bytes([data[at - 1] ^ 1]))
                return
    raise AssertionError(f"{path} has no batch at offset {offset}")
