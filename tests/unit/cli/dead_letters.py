"""Dead letters made in memory, for the tests of ``aioparallel dlq``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

from aioparallel.cli.dlq.marks import MarksRefused
from aioparallel.delivery.letters import Letter, write_letter
from aioparallel.group.client import CommitFault, Committed, Fetched, Generation
from aioparallel.records.record import Failure, Headers, Origin, Record, TopicPartition

TOPIC = "orders.dlq"
P0 = TopicPartition(TOPIC, 0)
MINE = Generation(7, "me")


def letter_record(
    offset: int,
    *,
    partition: int = 0,
    at: float = 1000.0,
    origin: tuple[str, int, int] = ("orders", 0, 0),
    error: str = "app.Refused",
    message: str = "no",
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    headers: Headers = (("trace", b"abc"),),
) -> Record:
    """A record of the topic with dead letters. ``at``: when it failed, seconds since the epoch."""
    failure = Failure(at, error, message)
    letter = Letter(Origin(*origin, timestamp=5), "billing", 3, failure, failure, "Traceback: here")
    return Record(TOPIC, partition, offset, key, value, write_letter(headers, letter), timestamp=7)


def stranger(offset: int) -> Record:
    """A record that is no letter."""
    return Record(TOPIC, 0, offset, b"key", b"value", (), timestamp=7)


async def read_of(*reads: Fetched) -> AsyncGenerator[Fetched, None]:
    """These, as if they were read."""
    for read in reads:
        yield read


class Group:
    """The part of a client that keeps marks: one group's committed offsets, in memory.

    ``faults`` are answered, one at each commit, before commits are taken. ``log`` has each commit that was taken.
    """

    def __init__(self, *faults: CommitFault, log: list[str] | None = None) -> None:
        self.committed_now: dict[TopicPartition, Committed] = {}
        self.faults = list(faults)
        self.generations: list[Generation] = []
        self.log: list[str] = [] if log is None else log

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        self.generations.append(generation)
        if self.faults:
            return dict.fromkeys(offsets, self.faults.pop(0))
        self.committed_now.update(offsets)
        self.log.append("commit " + " ".join(str(one.offset) for one in offsets.values()))
        return dict.fromkeys(offsets)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        return {tp: self.committed_now[tp] for tp in partitions if tp in self.committed_now}


class Place:
    """A place in the group: its generations, one at each question, the last one for good; None: it is lost."""

    def __init__(self, *generations: Generation | None) -> None:
        self.generations = list(generations) or [MINE]

    async def generation(self, timeout: float) -> Generation:
        found = self.generations.pop(0) if len(self.generations) > 1 else self.generations[0]
        if found is None:
            raise MarksRefused("the place is lost")
        return found


def offsets_of(records: Sequence[Record]) -> list[int]:
    return [record.offset for record in records]
