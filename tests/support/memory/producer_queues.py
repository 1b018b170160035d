"""The queues of a producer and the in-memory broker, with plain calls between them: each answer can be lost or late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import RecordBatch, Unencodable
from aioparallel.clients.producing.pending import outputs_of
from aioparallel.clients.producing.produce_answers import Answer, Verdict, answer_of
from aioparallel.clients.producing.queues import PartitionQueues
from aioparallel.delivery.producer import PendingOutput
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced, TopicPartition
from aioparallel.testing.memory import InMemoryBroker
from aioparallel.testing.memory.produced import Numbers
from aioparallel.testing.memory.refused import Refused

__all__ = ["TIMEOUT", "TOPIC", "Cluster", "Flight", "fits"]

TOPIC = "t"
TIMEOUT = 10.0
_BATCH = 6
"""Records of a batch; in bytes as well, for each record counts as one."""

NO_ANSWER = Answer(Verdict.AGAIN, "no answer")


def fits(output: Outgoing) -> bool:
    """Whether anybody can encode it."""
    return output.key != b"unencodable"


def encode(entries: Iterable[PendingOutput], identity: Identity, sequence: int, limit: int) -> tuple[bytes, int]:
    """A byte for each record, 10 for one with the key ``large``; what cannot be encoded has the key ``unencodable``."""
    size = count = 0
    for entry in entries:
        if entry.output.key == b"unencodable":
            if count == 0:
                raise Unencodable("it cannot be written")
            break
        more = 10 if entry.output.key == b"large" else 1
        if count and size + more > limit:
            break
        size += more
        count += 1
    return bytes(size), count


class Flight(NamedTuple):
    """A batch on its way, as it is in the request: what becomes of the batch meanwhile does not change it."""

    batch: RecordBatch
    where: TopicPartition
    records: tuple[Outgoing, ...]
    numbers: Numbers


class Cluster:
    """One broker with ``partitions`` logs, and the queues that send to it."""

    def __init__(self, partitions: int) -> None:
        self.broker = InMemoryBroker()
        self.broker.create_topic(TOPIC, partitions)
        self.now = 0.0
        self.results: dict[int, Sequence[Produced] | ProduceFailed] = {}
        self.told_twice: list[int] = []
        self.sent: list[Outgoing] = []
        self.flying: list[Flight] = []
        """Their answers are waited for."""
        self.late: list[Flight] = []
        """Nobody waits for them, and they may arrive all the same."""
        self.queues = PartitionQueues(encode, lambda entry: None, batch_bytes=_BATCH, unchecked_bytes=100)
        self._partitions = partitions
        self._is_known = True

    @property
    def outstanding(self) -> int:
        return self.queues.outstanding.count

    @property
    def logs(self) -> list[list[int]]:
        """The numbers of the outputs stored in each partition."""
        found: list[list[int]] = [[] for _ in range(self._partitions)]
        for record in self.broker.records(TOPIC):
            found[record.partition].append(int(record.value or b""))
        return found

    def know_topic(self, known: bool = True) -> None:
        """Whether the metadata has the topic."""
        self._is_known = known
        found = dict.fromkeys(range(self._partitions), True) if known else {}
        self.queues.update(lambda name: found, self.now)

    def send(self, kinds: Sequence[bytes | None], partition: int | None) -> None:
        """Outputs of these kinds in one call: None is an ordinary one."""
        first = len(self.sent)
        self.sent += [Outgoing(TOPIC, b"%d" % (first + i), kind, partition=partition) for i, kind in enumerate(kinds)]

        def delivered(result: Sequence[Produced] | ProduceFailed) -> None:
            if first in self.results:
                self.told_twice.append(first)  # what a callback raises is only logged
            self.results[first] = result

        for entry in outputs_of(self.sent[first:], delivered):
            entry.timestamp, entry.deadline = 0, self.now + TIMEOUT
            if (reason := self.queues.add(entry)) is not None:
                self.queues.outstanding.failed([entry], reason, passing=False)
        if self.queues.needs_metadata:
            self.know_topic(self._is_known)

    def request(self, limit: int = 100) -> None:
        """One request leaves."""
        queues = self.queues.by_node(lambda queue: 1, ()).get(1, [])
        batches = self.queues.fill(queues, 1, limit)
        if self.queues.needs_identity:
            self.queues.identified(Identity(self.broker.producers.new_id(), 0))
            batches += self.queues.fill(self.queues.by_node(lambda queue: 1, ()).get(1, []), 1, limit)
        for batch in batches:
            where = TopicPartition(batch.queue.topic, batch.queue.partition)
            records = tuple(entry.output for entry in batch.entries)
            self.flying.append(Flight(batch, where, records, Numbers(*batch.identity, batch.sequence)))

    def arrive(self, flight: Flight) -> Answer:
        """The broker's part."""
        try:
            offset = self.broker.produce(
                flight.where, flight.records, size=len(flight.batch.data), numbers=flight.numbers
            )
        except Refused as refused:
            return answer_of(refused.code.value, -1, -1)
        return Answer(Verdict.WRITTEN, "", offset)

    def answer(self, flight: Flight, answer: Answer) -> None:
        """The answer comes back."""
        self.queues.answered(flight.batch, answer)
        if answer.verdict is Verdict.AGAIN:
            self.queues.resume(flight.batch)

    def wait(self, seconds: float) -> None:
        """Time passes; what is cut off may still arrive."""
        self.now += seconds
        self._cut(self.queues.expire(self.now, lambda queue: "late"))

    def unauthorized(self) -> None:
        """The metadata says that this user may not even ask about the topic."""
        self.queues.outstanding.failed(self.queues.clear_topic(TOPIC), "not authorised", passing=False)

    def _cut(self, batches: Sequence[RecordBatch]) -> None:
        gone = [flight for flight in self.flying if flight.batch in batches]
        self.late += gone
        self.flying = [flight for flight in self.flying if flight not in gone]
