"""The records of a case: what is in the topic, how long each handler sleeps, and the least time that takes.

All of it follows from a seed. A record's key decides its partition (CRC-32 of the key); keys have numbers, so that
plans need four bytes for one. Records are written to a topic or sent at a given rate, and read back: if their order
differed from the plan, every contestant would fail its checks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Final, Literal, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from aioparallel.records.errors import AioparallelError
from aioparallel.testing.filling import Message, fill
from examples.flights.flights import read_flights

__all__ = ["Kept", "Lane", "Numbers", "Shape", "Workload", "fill_topic", "pace", "read_back", "read_topic"]

Numbers = npt.NDArray[np.uint32]
Lane = Literal["key", "partition", "unordered"]

VALUE_SIZE: Final = 100  # bytes
DEADLINE: Final = 30.0
"""Seconds for one response of the broker."""
READ_AT_ONCE: Final = 10_000
MOMENT: Final = 0.05
"""Seconds that a read waits for so many records."""
QUEUE: Final = 1_000_000
"""Most records in the producer while sending at a rate."""
TURN: Final = 1_000
"""Most records sent between two readings of the clock."""
PAUSE: Final = 0.0005
"""Seconds to wait while nothing is due."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The kind of records in a case.

    ``keys``: number of different keys, each with the same number of records (give or take one) in random order.
    ``sleep``: microseconds, each equally likely. ``source``: ``"made"`` records of 100 bytes, or ``"flights"``: the
    first ``records`` of the year as JSON, keyed by tail number (``keys`` is ignored).
    """

    records: int
    keys: int
    partitions: int
    sleep: tuple[int, ...] = (0,)
    source: Literal["made", "flights"] = "made"

    def workload(self, seed: int) -> Workload:
        """Make the records. Takes a second for about 500,000; flights take a few.

        Raises AioparallelError if the flights are not installed.
        """
        random = np.random.default_rng(seed)
        if self.source == "flights":
            flights = list(read_flights(self.records))
            numbers: dict[object, int] = {}
            # A flight without a key is a lane of its own; its index is an int, so it equals no key.
            lanes = [flight.key or place for place, flight in enumerate(flights)]
            keys = np.array([numbers.setdefault(lane, len(numbers)) for lane in lanes], np.uint32)
            names = [lane if isinstance(lane, bytes) else None for lane in numbers]
            values = [flight.value for flight in flights]
        else:
            count = max(1, min(self.keys, self.records))
            keys = random.permutation(np.arange(self.records, dtype=np.uint32) % np.uint32(count))
            names, values = [b"key-%d" % number for number in range(count)], []
        homes = np.array([number if name is None else crc32(name) for number, name in enumerate(names)])
        sleeps = random.choice(np.array(self.sleep, np.uint32), keys.size)
        return Workload(self, keys, sleeps, (homes % self.partitions)[keys], names, values)


@dataclass(frozen=True)
class Workload:
    """The records of one topic in order: the number of each key, the microseconds that its handler sleeps, and its
    partition. ``names``: the keys by number, None for no key. ``values``: empty for made records."""

    shape: Shape
    keys: Numbers
    sleeps: Numbers
    homes: npt.NDArray[np.int64]
    names: list[bytes | None]
    values: list[bytes]

    @cached_property
    def places(self) -> list[npt.NDArray[np.int64]]:
        """Records of each partition by offset."""
        return [np.flatnonzero(self.homes == partition) for partition in range(self.shape.partitions)]

    @cached_property
    def keys_by_offset(self) -> list[list[bytes | None]]:
        """Keys of each partition by offset."""
        return [[self.names[number] for number in self.keys[places].tolist()] for places in self.places]

    def messages(self, partition: int) -> Iterator[Message]:
        """Messages of a partition by offset."""
        return (self.message(partition, offset) for offset in range(len(self.places[partition])))

    def message(self, partition: int, offset: int) -> Message:
        """The message at a place; the value of a made one names the place. Raises IndexError if there is none."""
        if self.values:
            value = self.values[self.places[partition][offset]]
        else:
            value = (b"%d %d " % (partition, offset)).ljust(VALUE_SIZE, b".")
        return {"key": self.keys_by_offset[partition][offset], "value": value}

    def bound(self, ordering: Lane, concurrency: int) -> float | None:
        """The least seconds for all handlers, by the longest lane and by the concurrency; None if none sleeps."""
        if not self.sleeps.any():
            return None
        match ordering:
            case "key":
                longest = np.bincount(self.keys, self.sleeps).max()
            case "partition":
                longest = np.bincount(self.homes, self.sleeps).max()
            case "unordered":
                longest = self.sleeps.max()
        return float(max(longest, self.sleeps.sum(dtype=np.uint64) / concurrency)) * 1e-6

    def write_sleeps(self, folder: Path) -> None:
        """Write the files that ``contestant.py`` describes."""
        folder.mkdir()
        for partition, places in enumerate(self.places):
            (folder / f"{partition}.bin").write_bytes(self.sleeps[places].astype("<u4").tobytes())


async def fill_topic(bootstrap_servers: str, topic: str, workload: Workload) -> None:
    """Produce all records to an empty topic and read them back. Raises AioparallelError if the broker does not have
    exactly these afterwards, or does not answer."""

    def all_messages() -> Iterator[tuple[int, Message]]:
        sources = {partition: workload.messages(partition) for partition in range(workload.shape.partitions)}
        while sources:  # in turn, so that all partitions are filled at about the same time
            for partition in list(sources):
                if not (some := list(islice(sources[partition], TURN))):
                    del sources[partition]
                yield from ((partition, message) for message in some)

    await asyncio.to_thread(fill, bootstrap_servers, topic, all_messages())
    await asyncio.to_thread(read_back, bootstrap_servers, topic, workload)


class Kept(NamedTuple):
    """A record of the broker."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def read_topic(bootstrap_servers: str, topic: str, partitions: int) -> Iterator[Kept]:
    """All records of a topic now, without those of aborted transactions; about a second for 500,000. Raises
    AioparallelError."""
    settings = {
        "bootstrap.servers": bootstrap_servers, "group.id": topic, "enable.auto.commit": False, "log_level": 3,
        "enable.partition.eof": True,
    }  # fmt: skip
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
        unread, end = set(range(partitions)), time.monotonic() + DEADLINE
        while unread:
            for message in consumer.consume(READ_AT_ONCE, MOMENT):
                end = time.monotonic() + DEADLINE
                if (error := message.error()) is None:
                    yield Kept(message.partition(), message.offset(), message.key(), message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise AioparallelError(f"{topic} could not be read: {error}")
            if unread and time.monotonic() > end:
                raise AioparallelError(f"partitions {sorted(unread)} of {topic} were not read to their ends in time")
    except KafkaException as error:
        raise AioparallelError(f"{topic} could not be read: {error}") from error
    finally:
        consumer.close()


def read_back(bootstrap_servers: str, topic: str, workload: Workload) -> None:
    """Compare the topic with the plan. Raises AioparallelError if they differ."""
    planned = [workload.messages(partition) for partition in range(workload.shape.partitions)]
    seen = [0] * len(planned)
    for kept in read_topic(bootstrap_servers, topic, len(planned)):
        message, at = next(planned[kept.partition], None), seen[kept.partition]
        if message is None or (at, message["key"], message["value"]) != kept[1:]:
            raise AioparallelError(f"partition {kept.partition}, offset {at} of {topic} is not the record planned")
        seen[kept.partition] += 1
    if next(chain.from_iterable(planned), None) is not None:
        raise AioparallelError(
            f"{topic} has {sum(seen)} of {workload.shape.records} records (the embedded broker keeps 5 MiB a partition)"
        )


class Pace(NamedTuple):
    """When each record was sent, by partition and offset, in nanoseconds of CLOCK_MONOTONIC, which all processes of a
    machine share; and the largest delay of a record in seconds."""

    sent: list[npt.NDArray[np.int64]]
    latest: float


def pace(bootstrap_servers: str, topic: str, workload: Workload, rate: float, ended: Callable[[], bool]) -> Pace:
    """Send so many records a second. Blocks until the broker has acknowledged all, or ``ended`` returns True. Raises
    AioparallelError."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,  # keeps the planned order when batches are resent
            "linger.ms": 1,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": QUEUE + 1,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    sent, homes = np.zeros(workload.shape.records, np.int64), workload.homes.tolist()
    messages = [workload.messages(partition) for partition in range(workload.shape.partitions)]
    produce, clock, began, at, latest = producer.produce, time.monotonic_ns, time.monotonic(), 0, 0.0
    while at < len(homes) and not ended():
        now = time.monotonic() - began
        due = min(int(now * rate), len(homes), at + TURN)
        if due > at:
            latest = max(latest, now - at / rate)
            for place in range(at, due):
                home = homes[place]
                message = next(messages[home])
                while len(producer) >= QUEUE:
                    producer.poll(PAUSE)
                sent[place] = clock()
                produce(topic, message["value"], message["key"], home)
            at = due
        else:
            time.sleep(PAUSE)
        producer.poll(0)
    if left := producer.flush(DEADLINE):
        raise AioparallelError(f"{left} of {at} records were not acknowledged within {DEADLINE:g} s")
    return Pace([sent[places] for places in workload.places], latest)
