"""A producer and its cluster under a script of faults, and what must be true of every log and every result."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced, TopicPartition
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryProducer, Request
from aioparallel.testing.memory.faults import HARMLESS
from aioparallel.testing.memory.produced import Numbers

__all__ = ["NODES", "PARTITIONS", "Step", "World"]

Result = Sequence[Produced] | ProduceFailed

NODES = 3
PARTITIONS = 4
LIMIT = 60
"""Bytes of a batch, where the broker has a limit: a large output is over it, some of the others together are."""
_LATE = 0.1
"""Seconds that the end of an output may come after its time."""


@dataclass(frozen=True)
class Step:
    """One thing that happens. ``number``: a node, a partition, or what the name makes of it."""

    name: str
    number: int = 0
    seconds: float = 0.0
    request: Request = Request.PRODUCE
    fault: Fault = HARMLESS
    outputs: tuple[tuple[bytes | None, int | None, bool], ...] = ()
    """To be sent together: key, partition, whether it is large."""


class World:
    """Three nodes, a topic "t" with four partitions, and a producer.

    ``delivery_timeout``, ``request_timeout``: the producer's, seconds. ``sends_again``: what fails is sent once more
    from within the callback that hears of it.
    """

    def __init__(self, delivery_timeout: float, request_timeout: float, *, sends_again: bool) -> None:
        self.broker = InMemoryBroker(nodes=NODES)
        self.broker.create_topic("t", PARTITIONS)
        self.producer = InMemoryProducer(
            self.broker, delivery_timeout=delivery_timeout, request_timeout=request_timeout
        )
        self.sent: list[Outgoing] = []
        self.began: dict[int, float] = {}
        self.ended: dict[int, tuple[float, Result]] = {}
        self.told_twice: list[int] = []
        self.is_fenced = False
        """Whether a partition may refuse a producer id that has not heard of it yet."""
        self.sends_again = sends_again
        self.delivery_timeout = delivery_timeout
        self.answer_timeout = min(request_timeout, delivery_timeout)
        self._loop = asyncio.get_running_loop()

    # -- what happens

    async def play(self, step: Step) -> None:
        """One step."""
        faults = self.broker.faults
        match step.name:
            case "send":
                self.send(step.outputs)
            case "wait":
                await asyncio.sleep(step.seconds)
            case "fault":
                faults.script(step.request, step.fault)
            case "trouble":
                faults.always(step.request, step.fault, node=step.number or None)
            case "heal":
                faults.heal(step.request)
            case _:
                self._change(step.name, step.number, step.seconds)

    def _change(self, name: str, number: int, seconds: float) -> None:
        broker, node = self.broker, number % NODES + 1
        match name:
            case "deny" | "allow":
                broker.deny_topic("t", denied=name == "deny")
            case "limit" | "no limit":
                broker.max_message_bytes = LIMIT if name == "limit" else None
            case "compact" | "keep":
                broker.make_compacted("t", compacted=name == "compact")
            case "down" | "back":
                (broker.go_down if name == "down" else broker.come_back)()
            case "move":
                broker.move_leader(TopicPartition("t", number // NODES), node)
            case "fence":
                self._fence(TopicPartition("t", number))
            case "fail over":
                broker.hang(node)
                self._loop.call_later(seconds, self._elect, node)
            case "hang" | "unhang" | "stop_node" | "start_node":
                getattr(broker, name)(node)
            case _:
                raise AssertionError(name)

    def _fence(self, partition: TopicPartition) -> None:
        """The partition takes nothing any more of the producer ids that there are: it knows a newer epoch of each."""
        self.is_fenced = True
        for producer_id in range(1, self.broker.producers.new_id()):
            self.broker.producers.add(partition, Numbers(producer_id, 20_000, 0), 1, 0)

    def _elect(self, node: int) -> None:
        """Another node leads what this one leads."""
        for partition in sorted(self.broker.partitions_of(["t"])):
            if self.broker.leader(partition) == node:
                self.broker.move_leader(partition, node % NODES + 1)

    def send(self, outputs: Sequence[tuple[bytes | None, int | None, bool]], *, is_again: bool = False) -> None:
        """All in one call; the value of each is its number."""
        first = len(self.sent)
        for number, (key, partition, is_large) in enumerate(outputs, first):
            self.sent.append(Outgoing("t", b"%d" % number + b" " * LIMIT * is_large, key, partition=partition))
        self.began[first] = self._loop.time()

        def delivered(result: Result) -> None:
            if first in self.ended:
                self.told_twice.append(first)  # what a callback raises is only logged
            self.ended[first] = (self._loop.time(), result)
            if isinstance(result, ProduceFailed) and self.sends_again and not is_again:
                self.send(outputs, is_again=True)

        self.producer.send(self.sent[first:], delivered)

    async def heal(self) -> None:
        """Everything works again, at once."""
        broker = self.broker
        broker.faults.heal()
        for name in ("allow", "no limit", "keep", "back"):
            await self.play(Step(name))
        for node in range(1, NODES + 1):
            broker.start_node(node)
            broker.unhang(node)

    async def ends(self, seconds: float) -> bool:
        """Whether everything sent so far has ended within these seconds."""
        until = self._loop.time() + seconds
        while len(self.ended) < len(self.began) and self._loop.time() < until:
            await asyncio.sleep(0.05)
        return len(self.ended) == len(self.began)

    # -- what is true

    def check(self) -> None:
        """Each log is in the order of sending and has nothing twice; what is acknowledged stands where it was told to,
        and nowhere else; a key has one partition."""
        assert not self.told_twice
        logs: list[list[int]] = [[] for _ in range(PARTITIONS)]
        keys: defaultdict[bytes, set[int]] = defaultdict(set)
        for record in self.broker.records("t"):
            logs[record.partition].append(int(record.value or b""))
            if record.key is not None and self.sent[int(record.value or b"")].partition is None:
                keys[record.key].add(record.partition)
        assert all(len(partitions) == 1 for partitions in keys.values()), f"a key in several partitions: {keys}"
        for log in logs:
            assert log == sorted(set(log)), f"twice, or not in the order of sending: {log}"
        for first, after in itertools.pairwise([*sorted(self.began), len(self.sent)]):
            at, result = self.ended.get(first, (0.0, None))
            if result is None or isinstance(result, ProduceFailed):
                continue
            assert len(result) == after - first
            for number, place in enumerate(result, first):
                assert self.sent[number].partition in {None, place.partition}
                assert logs[place.partition][place.offset : place.offset + 1] == [number], f"{number} is not at {place}"
            assert at - self.began[first] <= self.delivery_timeout + _LATE, "acknowledged after its time"

    def check_failures(self, *, may_be_refused: bool) -> None:
        """What fails has failed in time; where nothing is refused, only because its time was up."""
        for first, (at, result) in self.ended.items():
            if isinstance(result, ProduceFailed):
                took = at - self.began[first]
                assert took <= self.delivery_timeout + _LATE, f"failed after {took} s: {result}"
                assert may_be_refused or took >= self.delivery_timeout - _LATE, f"failed after {took} s: {result}"
                assert may_be_refused or result.passing, result
