"""A case's records: what is in the topic, how long each handler sleeps, and the least time that can take.

All of it follows from a seed. A record's key decides its partition (CRC-32 of the key); keys have numbers, so that
plans can name them in four bytes. Records are filled into a topic or sent at a pace, and read back: an order in the
topic that is not the plan's would be held against every contestant.
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

from aioparallel.errors import AioparallelError
from aioparallel.testing.filling import Message, fill
from examples.flights.flights import read_flights

__all__ = ["Kept", "Lane", "Numbers", "Shape", "Workload", "fill_topic", "pace", "read_back", "read_topic"]

Numbers = npt.NDArray[np.uint32]
Lane = Literal["key", "partition", "unordered"]

VALUE_SIZE: Final = 100  # bytes
DEADLINE: Final = 30.0
"""Seconds for one answer of the broker."""
READ_AT_ONCE: Final = 10_000
MOMENT: Final = 0.05
"""Seconds that a read waits for so many."""
QUEUE: Final = 1_000_000
"""Paced records that wait in the producer, at most."""
TURN: Final = 1_000
"""Of paced records at most so many are sent without a look at the clock."""
PAUSE: Final = 0.0005
"""Seconds between two looks when nothing is due."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of records a case has.

    ``keys``: how many different ones, each with the same number of records (give or take one) in random order.
    ``sleep``: microseconds, each equally likely. ``source``: ``"made"`` records of 100 bytes, or ``"flights"``, the
    first ``records`` of the year as JSON, keyed by tail number (``keys`` says nothing there).
    """

    records: int
    keys: int
    partitions: int
    sleep: tuple[int, ...] = (0,)
    source: Literal["made", "flights"] = "made"

    def workload(self, seed: int) -> Workload:
        """The records themselves. Takes a second for some 500,000, the flights a few.

        Raises AioparallelError when the flights are not installed.
        """
        random = np.random.default_rng(seed)
        if self.source == "flights":
            flights = list(read_flights(self.records))
            numbers: dict[object, int] = {}
            # One without a key has no order, so it is a lane of its own; its place is no bytes, so equal to no key.
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
    """The records of one topic, in the order in which they are made: the number of each one's key, the microseconds
    its handler sleeps, its partition. ``names``: the keys by number, None for none. ``values``: empty where made."""

    shape: Shape
    keys: Numbers
    sleeps: Numbers
    homes: npt.NDArray[np.int64]
    names: list[bytes | None]
    values: list[bytes]

    @cached_property
    def places(self) -> list[npt.NDArray[np.int64]]:
        """For each partition the records in it, by offset."""
        return [np.flatnonzero(self.homes == partition) for partition in range(self.shape.partitions)]

    @cached_property
    def keys_by_offset(self) -> list[list[bytes | None]]:
        """For each partition the key at each offset."""
        return [[self.names[number] for number in self.keys[places].tolist()] for places in self.places]

    def messages(self, partition: int) -> Iterator[Message]:
        """The records of a partition by offset."""
        return (self.message(partition, offset) for offset in range(len(self.places[partition])))

    def message(self, partition: int, offset: int) -> Message:
        """The record at a place. The value of a made one says that place. Raises IndexError where there is none."""
        if self.values:
            value = self.values[self.places[partition][offset]]
        else:
            value = (b"%d %d " % (partition, offset)).ljust(VALUE_SIZE, b".")
        return {"key": self.keys_by_offset[partition][offset], "value": value}

    def bound(self, ordering: Lane, concurrency: int) -> float | None:
        """The least seconds all handlers can take, by the longest lane and by the concurrency; None if none sleeps."""
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
        """For the contestants, as ``contestant.py`` describes it."""
        folder.mkdir()
        for partition, places in enumerate(self.places):
            (folder / f"{partition}.bin").write_bytes(self.sleeps[places].astype("<u4").tobytes())


async def fill_topic(bootstrap_servers: str, topic: str, workload: Workload) -> None:
    """Produce all records to a topic that is empty, and read them back. Raises AioparallelError when the broker does
    not have exactly these afterwards, or does not answer."""

    def all_messages() -> Iterator[tuple[int, Message]]:
        sources = {partition: workload.messages(partition) for partition in range(workload.shape.partitions)}
        while sources:  # in turn, so that no partition ends long before the others
            for partition in list(sources):
                if not (some := list(islice(sources[partition], TURN))):
                    del sources[partition]
                yield from ((partition, message) for message in some)

    await asyncio.to_thread(fill, bootstrap_servers, topic, all_messages())
    await asyncio.to_thread(read_back, bootstrap_servers, topic, workload)


class Kept(NamedTuple):
    """A record as the broker has it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def read_topic(bootstrap_servers: str, topic: str, partitions: int) -> Iterator[Kept]:
    """All records that are in a topic now, those of aborted transactions left out; about a second for 500,000. Raises
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
    """Compare the topic with the plan. Raises AioparallelError where it is another one."""
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
    """When each record was sent, by partition and offset, nanoseconds of CLOCK_MONOTONIC, which all processes of a
    machine share; and how many seconds the most delayed one was behind its turn."""

    sent: list[npt.NDArray[np.int64]]
    latest: float


def pace(bootstrap_servers: str, topic: str, workload: Workload, rate: float, ended: Callable[[], bool]) -> Pace:
    """Send so many records a second; blocks until the broker has acknowledged all, or ``ended`` says that nobody waits
    any more. Raises AioparallelError."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,  # the topic's order is the plan's, whatever is sent again
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
