"""Members that commit in transactions, on the in-memory broker, with chance deciding what happens to them.

What must be true at the end, whatever that was: under ``read_committed`` each record that was read has exactly its
outputs, once, in the order of its key; or it is in the dead-letter topic, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from aioparallel import (
    FailurePolicy,
    Outgoing,
    ParallelConsumer,
    Producing,
    Record,
    Reject,
    RetryPolicy,
    State,
    Transactions,
)
from aioparallel.handlers.batches import Batch, batches
from aioparallel.persistence.transactions import size
from aioparallel.records.errors import BrokerUnreachable, ClientError, ConsumerStateError, RecordStopped
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import (
    ErrorCode,
    Fault,
    InMemoryBroker,
    InMemoryClient,
    InMemoryTransactionalProducer,
    Request,
)
from aioparallel.testing.memory.link import Link
from aioparallel.testing.memory.refused import Refused
from aioparallel.testing.memory.transactional_connections import InMemoryTransactionalBrokers

__all__ = ["Course", "Member", "World"]

GROUP: Final = "g"
IN, OUT, TIGHT, DEAD = "in", "out", "tight", "dead"
PARTITIONS, OUTS, KEYS = 4, 3, 7
TIMEOUT = 2.0
POLICY = Transactions(interval=0.05, transaction_timeout=TIMEOUT)

ABOUT_TRANSACTIONS = [Request.PRODUCE, Request.TXN_OFFSETS, Request.END_TXN, Request.IDENTIFY, Request.OFFSET_FETCH]
LOST = [
    Fault(is_request_lost=True),
    Fault(is_response_lost=True),
    *[Fault(request_delay=seconds) for seconds in (0.02, 0.3, 1.5, 3.0)],
    *[Fault(response_delay=seconds) for seconds in (0.02, 0.5, 1.5, 4.0)],
]
CODES: dict[Request, list[ErrorCode]] = {
    Request.PRODUCE: [
        *(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.CONCURRENT_TRANSACTIONS),
        *(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE),
        *(ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    Request.TXN_OFFSETS: [
        *(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS),
        *(ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_SERVER_ERROR),
        *(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
    Request.END_TXN: [
        *(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS),
        *(ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.TRANSACTION_ABORTABLE),
    ],
    Request.IDENTIFY: [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.CONCURRENT_TRANSACTIONS],
    Request.OFFSET_FETCH: [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT],
}


def add(before: tuple[int, ...], record: Record[Any, Any]) -> tuple[int, ...]:
    """The state of a key: the offsets of its records."""
    return (*before, record.offset)


def dump(offsets: tuple[int, ...]) -> bytes:
    """As text."""
    return b" ".join(b"%d" % offset for offset in offsets)


def load(data: bytes) -> tuple[int, ...]:
    """And back."""
    return tuple(map(int, data.split()))


STATE = State[tuple[int, ...]](initial=(), apply=add, dump=dump, load=load, snapshot_after=15)


class Switch:
    """Whether a member's process runs: dead, nothing of it leaves any more; frozen, it leaves when it goes on."""

    def __init__(self) -> None:
        self.is_dead = False
        self.runs = asyncio.Event()
        self.runs.set()

    async def passes(self) -> None:
        """Wait until it runs. Raises Refused if it is dead."""
        await self.runs.wait()
        if self.is_dead:
            await asyncio.sleep(0.01)
            raise Refused(ErrorCode.NETWORK_EXCEPTION)


class _Link(Link):
    def __init__(self, broker: InMemoryBroker, group_id: str, switch: Switch) -> None:
        super().__init__(broker, group_id)
        self._switch = switch

    async def call(self, request: Request, do: Callable[[float], Any], timeout: float) -> Any:
        await self._switch.passes()
        return await super().call(request, do, timeout)


class _Brokers(InMemoryTransactionalBrokers):
    switch: Switch

    async def _call(self, node: int, request: Request, do: Callable[[float], Any]) -> Any:
        await self.switch.passes()
        return await super()._call(node, request, do)


class Member:
    """A consumer, as a process of its own."""

    def __init__(self, world: World, name: str, chance: random.Random) -> None:
        self.world = world
        self.switch = Switch()
        broker = world.broker
        session = 2 * TIMEOUT
        client = InMemoryClient(
            broker,
            GROUP,
            isolation_level="read_committed",
            cooperative=world.is_cooperative,
            session_timeout=session,
            heartbeat_interval=0.1,
            rebalance_timeout=10.0,
        )
        client._link = _Link(broker, GROUP, self.switch)
        producer = InMemoryTransactionalProducer(broker, GROUP)
        cluster = producer._transactional
        cluster.__class__ = _Brokers
        cluster.switch = self.switch  # type: ignore[attr-defined]
        self.client = client
        self.consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
            IN,
            group_id=GROUP,
            client=client,
            producer=producer,
            commits=POLICY,
            max_concurrency=chance.choice([1, 5, 50]),
            max_buffered=chance.choice([20, 200]),
            commit_after=chance.choice([5, 10_000]),
            drain_timeout=1.0,
            commit_timeout=chance.choice([0.3, 2.0]),
            connect_timeout=600.0,
            producing=Producing(max_unacknowledged_bytes=chance.choice([2_000, 10**6])),
            failures=FailurePolicy(retry=RetryPolicy(first_delay=0.05, multiplier=1, max_attempts=3), dead_letter=DEAD),
            state=world.state if world.keeps_state else None,
        )
        self.name = name
        self.task = asyncio.create_task(self._run(), name=name)
        self.failure: BaseException | None = None

    async def _run(self) -> None:
        handler: Any = self.world.handle
        if self.world.in_batches:
            handler = batches(self.world.handle_batch, size=5, linger=0.02)
        try:
            async with self.consumer:
                await self.consumer.run(handler)
        except (ClientError, RecordStopped) as error:
            self.failure = error
            if not self.switch.is_dead:
                raise

    async def kill(self) -> None:
        """As SIGKILL does."""
        self.switch.is_dead = True
        self.switch.runs.set()
        self.client.crash()
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ClientError):
            await self.task

    async def stop(self) -> None:
        """As SIGTERM does."""
        self.consumer.stop()
        await self.task


class World:
    """The broker, what is in it, and what must come out."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.broker = InMemoryBroker(nodes=3, rng=random.Random(seed + 1), metadata_limit=chance.choice([4096, 12]))
        for topic, partitions in ((IN, PARTITIONS), (OUT, OUTS), (TIGHT, 1), (DEAD, 1)):
            self.broker.create_topic(topic, partitions)
        self.broker.make_compacted(TIGHT)
        self.is_cooperative = chance.random() < 0.5
        self.in_batches = chance.random() < 0.25
        self.keeps_state = random.Random(seed).random() < 0.5
        self.state = replace(STATE, snapshot_after=random.Random(seed + 1).choice([1, 5, 20]))
        for topic in (f"{GROUP}-state", f"{GROUP}-snapshots"):
            self.broker.create_topic(topic, PARTITIONS)
            self.broker.make_compacted(topic)
        self.room = chance.choice([10**6, 10**6, 2_000, 300])  # bytes of the first transactions, and after late ones
        self.members: list[Member] = []
        self.count = 0
        self.runs: Counter[bytes] = Counter()
        self.of_key: defaultdict[tuple[TopicPartition, bytes | None], dict[int, str]] = defaultdict(dict)  # kinds
        self.made = 0

    # -- input and handlers

    def append(self, records: int) -> None:
        """So many more to be read."""
        for _ in range(records):
            key = b"key-%d" % self.chance.randrange(KEYS)
            value = b"%d" % self.count
            partition, offset = self.broker.append(IN, value, key=key)
            self.of_key[partition, key][offset] = self.kind(value)
            self.count += 1

    def kind(self, value: bytes) -> str:
        """What the handler does with a record: decided by its value alone."""
        number = int(value)
        if number % 17 == 5:
            return "rejected"
        if number % 23 == 7:
            return "refused"
        if number % 5 == 3:
            return "silent"
        return "two" if number % 4 == 0 else "one"

    def outputs(self, record: Record) -> list[Outgoing]:
        """Of one record."""
        assert record.value is not None
        kind = self.kind(record.value)
        if kind == "silent":
            return []
        if kind == "refused":  # by the broker alone: a compacted topic takes nothing without a key
            return [Outgoing(OUT, record.value + b"/0", record.key), Outgoing(TIGHT, record.value)]
        return [Outgoing(OUT, record.value + b"/%d" % i, record.key) for i in range(2 if kind == "two" else 1)]

    async def handle(self, record: Record) -> Sequence[Outgoing] | Outgoing | None:
        """The handler."""
        assert record.value is not None
        self.runs[record.value] += 1
        self.check_state(record)
        if self.chance.random() < 0.3:
            await asyncio.sleep(self.chance.choice([0.0, 0.01, 0.2, 1.2]))
        if self.kind(record.value) == "rejected":
            raise Reject("no")
        if record.attempt == 1 and self.chance.random() < 0.05:
            raise ValueError("once")
        found = self.outputs(record)
        return found[0] if len(found) == 1 else found or None

    async def handle_batch(self, batch: Batch[Record]) -> object:
        """The same, many at once: what they let leave is of all of them together, or of each."""
        await asyncio.sleep(self.chance.choice([0.0, 0.05, 0.3]))
        for record in batch:
            assert record.value is not None
            self.runs[record.value] += 1
            self.check_state(record)
            if self.kind(record.value) == "rejected":
                batch.fail(record, Reject("no"))
        left = [record for record in batch if self.kind(record.value or b"") != "rejected"]
        # What the broker refuses puts all records away whose outputs it is among.
        if any(self.kind(record.value or b"") == "refused" for record in batch) or self.chance.random() < 0.3:
            return {record: self.outputs(record) for record in left if self.outputs(record)}
        outputs = [output for record in left for output in self.outputs(record)]
        return outputs or None

    def check_state(self, record: Record) -> None:
        """A handler sees the records of its key before its own: those that succeed; not what is rejected; and what the
        brokers have refused, or not."""
        if not self.keeps_state:
            return
        seen = STATE.of(record)
        kinds = self.of_key[record.topic_partition, record.key]
        kinds = {offset: kind for offset, kind in kinds.items() if offset < record.offset}
        assert list(seen) == sorted(set(seen)), f"{record}: {seen}"
        missing = {offset for offset, kind in kinds.items() if kind not in ("rejected", "refused")} - set(seen)
        more = set(seen) - {offset for offset, kind in kinds.items() if kind != "rejected"}
        assert not missing, f"{record}: its state lacks {missing}"
        assert not more, f"{record}: in its state are {more}"

    # -- what happens

    def join(self) -> Member:
        """One more member."""
        self.made += 1
        member = Member(self, f"member-{self.made}", self.chance)
        self.members.append(member)
        return member

    def check_members(self) -> None:
        """None has failed."""
        for member in self.members:
            if member.task.done() and not member.task.cancelled() and (error := member.task.exception()) is not None:
                raise error

    def fault(self) -> None:
        """Something happens to the next request of some kind."""
        request = self.chance.choice(ABOUT_TRANSACTIONS)
        if self.chance.random() < 0.5:
            fault = self.chance.choice(LOST)
        else:
            code = self.chance.choice(CODES[request])
            # An answer that says no although it was done is one that was lost, for whoever asked.
            carried = request is Request.END_TXN and code is ErrorCode.UNKNOWN_SERVER_ERROR
            fault = Fault(error=code, is_carried_out=carried and self.chance.random() < 0.5)
        self.broker.faults.script(request, *[fault] * self.chance.choice([1, 1, 2, 5]))

    def heal(self) -> None:
        """All is well again."""
        self.broker.faults.heal()
        self.broker.transactions.marker_delay = 0.0
        self.broker.is_coordinator_available = True
        for node in self.broker.numbers:
            if self.broker.is_stopped(node):
                self.broker.start_node(node)
            self.broker.unhang(node)
        for member in self.members:
            member.switch.runs.set()

    # -- the end

    def is_done(self) -> bool:
        """Whether all is read, committed, and decided."""
        offsets = self.broker.group(GROUP).offsets
        ends = {
            TopicPartition(IN, number): log.end_offset
            for number in range(PARTITIONS)
            if (log := self.broker.log(TopicPartition(IN, number))) is not None and log.end_offset
        }
        if self.broker.transactions.open_transactions:
            return False
        return all(partition in offsets and offsets[partition].offset == end for partition, end in ends.items())

    def check(self) -> None:
        """Each record has its outputs, or its letter, once; of each key in order."""
        found: Counter[bytes] = Counter(record.value or b"" for record in self.broker.records(OUT))
        letters: Counter[bytes] = Counter(record.value or b"" for record in self.broker.records(DEAD))
        tight = self.broker.records(TIGHT)
        assert not tight, tight
        wanted: Counter[bytes] = Counter()
        dead: Counter[bytes] = Counter()
        for record in self.broker.records(IN):
            assert record.value is not None
            kind = self.kind(record.value)
            if kind in ("rejected", "refused"):
                dead[record.value] += 1
            else:
                wanted.update(output.value or b"" for output in self.outputs(record))
        missing, more = wanted - found, found - wanted
        assert not missing, f"lost: {dict(missing)}"
        assert not more, f"twice: {dict(more)}"
        assert letters == dead, f"letters: {letters - dead} too many, {dead - letters} missing"
        orders: defaultdict[tuple[int, bytes | None], list[tuple[int, int]]] = defaultdict(list)
        for record in self.broker.records(OUT):
            number, index = (record.value or b"").split(b"/")
            orders[record.partition, record.key].append((int(number), int(index)))
        for place, order in orders.items():
            assert order == sorted(order), f"out of order: {place}"
        of_key: defaultdict[bytes | None, list[int]] = defaultdict(list)
        for record in self.broker.records(DEAD):
            of_key[record.key].append(int(record.value or b""))
        for key, numbers in of_key.items():
            assert numbers == sorted(numbers), f"letters out of order: {key!r}"


class Course:
    """One play from begin to end."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.chance = self.world.chance

    async def run(self) -> None:
        """Play it, and check."""
        with patch.multiple(size, _FIRST=self.world.room, _LEAST=min(self.world.room, 1_000)):
            await self._play()

    async def _play(self) -> None:
        world, chance = self.world, self.chance
        world.append(chance.choice([20, 150]))
        for _ in range(chance.choice([1, 2])):
            world.join()
        for _ in range(chance.choice([5, 25])):
            await self._step()
            await asyncio.sleep(chance.choice([0.0, 0.02, 0.1, 0.5, 2.0]))
            world.check_members()
        world.heal()
        deadline = asyncio.get_running_loop().time() + 120
        while not world.is_done():
            world.broker.advance(asyncio.get_running_loop().time())
            world.check_members()
            if all(member.task.done() for member in world.members):
                world.join()
            assert asyncio.get_running_loop().time() < deadline, f"it does not come to its end: {self._state()}"
            await asyncio.sleep(0.2)
        for member in world.members:
            if not member.task.done():
                await member.stop()
        await asyncio.sleep(30.0)  # for what arrives late
        world.broker.advance(asyncio.get_running_loop().time())
        world.check()

    def _state(self) -> object:
        return [member.consumer.stats() for member in self.world.members if not member.task.done()]

    async def _step(self) -> None:
        world, chance = self.world, self.chance
        running = [member for member in world.members if not member.task.done()]
        match chance.choice(
            [
                "append",
                "append",
                "fault",
                "fault",
                "fault",
                "join",
                "kill",
                "stop",
                "freeze",
                "expire",
                "node",
                "markers",
                "impostor",
            ]
        ):
            case "append":
                world.append(chance.choice([1, 10, 40]))
            case "fault":
                world.fault()
            case "join" if len(running) < 3:
                world.join()
            case "kill" if running:
                await chance.choice(running).kill()
            case "stop" if running:
                chance.choice(running).consumer.stop()
            case "freeze" if running:
                member = chance.choice(running)
                member.switch.runs.clear()
                asyncio.get_running_loop().call_later(chance.choice([0.5, 3.0, 6.0, 9.0]), member.switch.runs.set)
            case "expire" if world.broker.group(GROUP).members:
                who = chance.choice(sorted(world.broker.group(GROUP).members))
                world.broker.expire_session(GROUP, who, asyncio.get_running_loop().time())
            case "node":
                node = chance.choice([1, 2, 3])
                world.broker.hang(node)
                asyncio.get_running_loop().call_later(chance.choice([0.3, 2.0, 5.0]), world.broker.unhang, node)
            case "impostor" if running:
                await self._impostor(chance.choice(running))
            case "markers":
                world.broker.transactions.marker_delay = chance.choice([0.0, 0.01, 0.2, 1.0])

    async def _impostor(self, member: Member) -> None:
        """Somebody else uses the transactional id of this one."""
        with contextlib.suppress(ConsumerStateError, BrokerUnreachable):
            figures = member.consumer.stats().transactions
            if figures is None:
                return  # its run has not begun
            other = InMemoryTransactionalProducer(self.world.broker, GROUP)
            await other.start(1.0)
            other.identify_as(figures.transactional_id)
            await other.initialize(None, TIMEOUT, 1.0)
            await other.stop(1.0)
