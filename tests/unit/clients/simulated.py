"""A log that does what brokers do to idempotent producers: the other side of an Outbox, without any waiting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aioparallel.clients.outbox.deliveries import Delivery, Entry, Outstanding
from aioparallel.clients.outbox.outbox import Outbox, fail
from aioparallel.clients.outbox.partition_queue import Batch, Identity, Unencodable
from aioparallel.clients.outbox.verdicts import Answer, Verdict
from aioparallel.errors import ProduceFailed
from aioparallel.records import Outgoing, Produced

__all__ = ["TIMEOUT", "Cluster", "fits"]

TOPIC = "t"
TIMEOUT = 10.0
_BATCH = 6
"""Records of a batch."""


def fits(output: Outgoing) -> bool:
    """Whether anybody takes it: poison and large ones nobody does."""
    return output.key is None


def encode(entries: Iterable[Entry], identity: Identity, sequence: int, limit: int) -> tuple[bytes, int]:
    """A byte for each record; what cannot be encoded has the key ``b"unencodable"``."""
    count = 0
    for delivery, index in entries:
        if delivery.outputs[index].key == b"unencodable":
            if count == 0:
                raise Unencodable("it cannot be written")
            break
        if count == limit:
            break
        count += 1
    return bytes(count), count


class Cluster:
    """One broker with ``partitions`` logs, and the outbox that sends to it."""

    def __init__(self, partitions: int) -> None:
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.now = 0.0
        self.results: dict[int, Sequence[Produced] | ProduceFailed] = {}
        self.sent: list[Outgoing] = []
        self.may_double = False
        self.outbox = Outbox(encode, lambda entry: None, batch_bytes=_BATCH, unchecked_bytes=100)
        self._outstanding = Outstanding(lambda: None)
        self._identities = 0
        # By identity and partition: the next number, and the batches that were written.
        self._next: dict[tuple[Identity, int], int] = {}
        self._written: dict[tuple[Identity, int, int, int], int] = {}
        self.know_topic()

    @property
    def outstanding(self) -> int:
        return self._outstanding.count

    def know_topic(self, known: bool = True) -> None:
        """Whether the metadata has the topic."""
        found = dict.fromkeys(range(len(self.logs)), True) if known else {}
        self.outbox.update(lambda name: found, self.now)

    def send(self, kinds: Sequence[bytes | None], partition: int | None) -> None:
        """Outputs of these kinds: None is an ordinary one."""
        outputs = []
        for kind in kinds:
            outputs.append(Outgoing(TOPIC, b"%d" % len(self.sent), kind, partition=partition))
            self.sent.append(outputs[-1])
        first = len(self.sent) - len(outputs)

        def delivered(result: Sequence[Produced] | ProduceFailed) -> None:
            assert first not in self.results, "told twice"
            self.results[first] = result

        delivery = Delivery(outputs, delivered, self.now + TIMEOUT, 0, self._outstanding)
        for entry, reason in self.outbox.add(delivery):
            fail([entry], reason, passing=False)

    def take(self, limit: int = 100) -> list[Batch]:
        """One request."""
        if self.outbox.identity is None:
            self._identities += 1
            self.outbox.identity = Identity(self._identities, 0)
        queues = self.outbox.by_node(lambda queue: 1, ()).get(1, [])
        return self.outbox.fill(queues, 1, limit)

    def arrive(self, batch: Batch) -> Answer:
        """The broker's part: what it does with a batch that arrives."""
        partition, count = batch.queue.partition, len(batch.entries)
        identity, sequence = batch.identity, batch.sequence
        outputs = [delivery.outputs[index] for delivery, index in batch.entries]
        if any(output.key == b"large" for output in outputs):
            return Answer(Verdict.TOO_LARGE, "{size} is too large")
        if any(output.key == b"poison" for output in outputs):
            return Answer(Verdict.SPLIT, "refused")
        if (offset := self._written.get((identity, partition, sequence, count))) is not None:
            return Answer(Verdict.WRITTEN, "", offset)
        expected = self._next.get((identity, partition))
        if expected is not None and expected != sequence:
            return Answer(Verdict.ANEW, "out of order")
        log = self.logs[partition]
        offset = len(log)
        log += [output.value or b"" for output in outputs]
        self._next[identity, partition] = sequence + count
        self._written[identity, partition, sequence, count] = offset
        return Answer(Verdict.WRITTEN, "", offset)

    def answer(self, batch: Batch, answer: Answer) -> None:
        """The answer comes back."""
        self.outbox.answered(batch, answer)
        if answer.verdict is Verdict.AGAIN:
            self.outbox.resume(batch)

    def lose_identity(self, batch: Batch) -> None:
        """The broker does not know the producer any more."""
        self.may_double = True
        self.answer(batch, Answer(Verdict.ANEW, "forgotten"))

    def wait(self, seconds: float) -> list[Batch]:
        """Time passes; returns what was cut off."""
        self.now += seconds
        cut = self.outbox.expire(self.now, lambda queue: "late").cut
        self.may_double = self.may_double or bool(cut)
        return cut
