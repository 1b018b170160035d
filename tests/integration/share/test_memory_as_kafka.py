"""The in-memory broker answers members of share groups as Apache Kafka does: the same random requests to both."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, OffsetSpec

from aioparallel.clients.aiokafka.raw_batches import head_at
from aioparallel.clients.messages.assignments import new_member_id
from aioparallel.clients.messages.share_groups import (
    JOIN,
    SHARE_GROUP_HEARTBEAT,
    ShareGroupHeartbeatRequest,
)
from aioparallel.clients.messages.share_records import (
    CLOSE_SESSION,
    OPEN_SESSION,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    AcknowledgeType,
    AcquireMode,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
)
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.memory import InMemoryBroker
from aioparallel.testing.memory.share_options import ShareGroupOptions
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.asking import Asking, asking
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = pytest.mark.real

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
NODE: Final = 1
STEPS: Final = 300
COMMON: Final[dict[str, Any]] = {"auto_offset_reset": "earliest", "lock_duration": 60.0}


class Answer(NamedTuple):
    """What is compared."""

    code: int
    partition: int
    acknowledged: int
    acquired: tuple[tuple[int, int, int], ...]


class Fetching(NamedTuple):
    """A fetch of a member."""

    member: str
    epoch: int
    most: int
    mode: AcquireMode
    batch_size: int
    batches: Sequence[AcknowledgementBatch] = ()
    renewing: bool = False


class Both:
    """One partition, in Kafka and in memory."""

    def __init__(
        self,
        kafka: Asking,
        servers: str,
        topic: str,
        topic_id: bytes,
        leader: int,
        options: ShareGroupOptions,
    ) -> None:
        self.kafka = kafka
        self.group = f"group-of-{topic}"
        self.memory = InMemoryBroker()
        self.memory.create_topic(topic)
        self._admin = AdminClient({"bootstrap.servers": servers})
        self.memory.configure_share_group(self.group, options)
        self._servers = servers
        self.topic = topic
        self._ids = topic_id, self.memory.topic_id(topic)
        self._leader = leader
        self._bases = set[int]()

    @property
    def end(self) -> int:
        log = self.memory.log(TopicPartition(self.topic, 0))
        assert log is not None
        return log.end_offset

    async def produce(self, count: int, *, aborted: bool = False) -> None:
        """One batch. If it is aborted, the end of its transaction follows."""
        messages = [Message(b"k", b"v", partition=0)] * count
        await asyncio.to_thread(fill, self._servers, self.topic, messages, aborted=aborted)
        transaction = self.memory.begin_transaction() if aborted else None
        self._bases.add(self.memory.append_batch(self.topic, [b"v"] * count, transaction=transaction))
        if transaction is not None:
            self._bases.add(self.end)
            self.memory.end_transaction(transaction, commit=False)
        await until(lambda: self._end_in_kafka() == self.end, what="the end of the transaction")

    def _end_in_kafka(self) -> int:
        (found,) = self._admin.list_offsets({Place(self.topic, 0): OffsetSpec.latest()}).values()
        return int(found.result(10).offset)

    async def delete_before(self, offset: int) -> None:
        """Move the start of the log."""
        place = Place(self.topic, 0, offset)
        (deleted,) = self._admin.delete_records([place]).values()
        await asyncio.to_thread(deleted.result, 10)
        self.memory.delete_before(TopicPartition(self.topic, 0), offset)

    async def fetch(self, wanted: Fetching) -> tuple[Answer, Answer]:
        before = copy.deepcopy(self.memory) if wanted.batches else None
        ours = _answer(self.memory.share.fetch(NODE, self._fetch(wanted, self._ids[1], 0), 0.0))
        request = self._fetch(wanted, self._ids[0], 1000 if ours.acquired else 10)
        answer = await self.kafka.ask(SHARE_FETCH, request, self._leader)
        for partition in [one for topic in answer.responses for one in topic.partitions]:
            assert _bases(partition.records) <= self._bases, "the same batches in both logs"
        kafka = _answer(answer)
        if kafka != ours and before is not None:  # which of both is faster differs
            self.memory = before
            before.share.stores_first = True
            ours = _answer(before.share.fetch(NODE, self._fetch(wanted, self._ids[1], 0), 0.0))
            before.share.stores_first = False
        return kafka, ours

    def _fetch(self, wanted: Fetching, topic_id: bytes, wait: int) -> ShareFetchRequest:
        named = wanted.epoch == OPEN_SESSION or wanted.batches
        return ShareFetchRequest(
            group_id=self.group,
            member_id=wanted.member,
            share_session_epoch=wanted.epoch,
            max_wait_ms=0 if wanted.renewing else wait,
            min_bytes=0 if wanted.renewing else 1,
            max_bytes=0 if wanted.renewing else 1 << 22,
            max_records=0 if wanted.renewing else wanted.most,
            batch_size=wanted.batch_size,
            share_acquire_mode=wanted.mode,
            is_renew_ack=wanted.renewing,
            topics=(_named(topic_id, wanted.batches),) if named else (),
        )

    async def acknowledge(
        self, member: str, epoch: int, batches: Sequence[AcknowledgementBatch], *, renewing: bool = False
    ) -> tuple[Answer, Answer]:
        asked = [
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=member,
                share_session_epoch=epoch,
                is_renew_ack=renewing,
                topics=(_named(topic_id, batches),) if batches else (),
            )
            for topic_id in self._ids
        ]
        answers = []
        for answer in (
            await self.kafka.ask(SHARE_ACKNOWLEDGE, asked[0], self._leader),
            self.memory.share.acknowledge(NODE, asked[1], 0.0),
        ):
            codes = [one.error_code for topic in answer.responses for one in topic.partitions]
            answers.append(Answer(answer.error_code, 0, sum(codes), ()))
        return answers[0], answers[1]


def _named(topic_id: bytes, batches: Sequence[AcknowledgementBatch]) -> AcknowledgeTopic:
    return AcknowledgeTopic(topic_id, (AcknowledgePartition(0, tuple(batches)),))


def _answer(response: ShareFetchResponse) -> Answer:
    parts = [one for topic in response.responses for one in topic.partitions]
    assert len(parts) <= 1
    if not parts:
        return Answer(response.error_code, 0, 0, ())
    (one,) = parts
    acquired = tuple((some.first_offset, some.last_offset, some.delivery_count) for some in one.acquired_records)
    return Answer(response.error_code, one.error_code, one.acknowledge_error_code, acquired)


class Player:
    """Two members that send random requests, most of them sensible."""

    def __init__(self, both: Both, seed: int, *, aborts: bool, deletes: bool) -> None:
        self.both = both
        self.aborts = aborts
        self.deletes = deletes
        self.rng = random.Random(seed)
        self.members = [new_member_id(), new_member_id()]
        self.epochs = dict.fromkeys(self.members, OPEN_SESSION)
        self.steps: list[str] = []

    async def step(self) -> None:
        rng = self.rng
        member = rng.choice(self.members)
        roll = rng.random()
        if self.epochs[member] == OPEN_SESSION:
            await self._fetch(member, batches=self._batches(member) if roll < 0.1 else ())
        elif roll < 0.35:
            await self._fetch(member)
        elif roll < 0.5:
            await self._fetch(member, batches=self._batches(member))
        elif roll < 0.84:
            await self._acknowledge(member, self._batches(member), renewing=rng.random() < 0.2)
        elif roll < 0.87:
            await self._fetch(member, batches=self._batches(member), renewing=True)
        elif roll < 0.91:
            await self._close(member)
        elif roll < 0.94:
            self.epochs[member] += rng.choice((-1, 1, 5))
            await self._fetch(member)
            self.epochs[member] = OPEN_SESSION
        elif roll < 0.95 and self.deletes:
            offset = rng.randint(self.start, self.both.end)
            self.steps.append(f"delete before {offset}")
            await self.both.delete_before(offset)
        elif self.both.end < 400:
            count, aborted = rng.randint(1, 12), self.aborts and rng.random() < 0.5
            self.steps.append(f"produce {count} {'aborted' if aborted else ''}")
            await self.both.produce(count, aborted=aborted)

    @property
    def start(self) -> int:
        partition = self.both.memory.share.partition(self.both.group, TopicPartition(self.both.topic, 0))
        return 0 if partition is None else partition.start_offset

    def _batches(self, member: str) -> list[AcknowledgementBatch]:
        """Acknowledgements of what the member holds, now and then of more."""
        rng = self.rng
        partition = self.both.memory.share.partition(self.both.group, TopicPartition(self.both.topic, 0))
        held = [] if partition is None else sorted(o for o, owner in partition.locked().items() if owner == member)
        offsets = set(
            rng.sample(held, rng.randint(min(1, len(held)), len(held)))
            if rng.random() < 0.7
            else held[: rng.randint(1, 9)]
        )
        if rng.random() < 0.12:
            offsets |= {
                max(0, rng.randint(-3, 3) + (rng.choice(held) if held else 0)) for _ in range(rng.randint(1, 3))
            }
        if rng.random() < 0.05:
            offsets.add(rng.randint(0, self.both.end + 3))
        found: list[AcknowledgementBatch] = []
        for first, last in _ranges(sorted(offsets)):
            kinds = rng.choices((GAP, ACCEPT, RELEASE, REJECT, RENEW), (1, 4, 8, 2, 1), k=last - first + 1)
            if rng.random() < 0.5:
                kinds = kinds[:1]
            found.append(AcknowledgementBatch(first, last, tuple(kinds)))
        if rng.random() < 0.02 and found:
            found = found[::-1] if len(found) > 1 else [found[0], found[0]]
        if rng.random() < 0.02 and found:
            first, last, _ = (found[0].first_offset, found[0].last_offset, 0)
            found[0] = AcknowledgementBatch(first, last, (ACCEPT,) * rng.choice((0, last - first + 2)))
        return found

    async def _fetch(
        self, member: str, batches: Sequence[AcknowledgementBatch] = (), *, renewing: bool = False
    ) -> None:
        rng, epoch = self.rng, self.epochs[member]
        mode = rng.choice(tuple(AcquireMode))
        most, size = rng.choice((1, 2, 3, 5, 8, 20, 100)), rng.choice((1, 3, 500))
        answers = await self.both.fetch(Fetching(member, epoch, most, mode, size, batches, renewing))
        told = f"{most} {mode.name} {size} {_short(batches)} {renewing}"
        self._compare(member, answers, f"fetch {self.members.index(member)} epoch {epoch} most {told}")

    async def _acknowledge(
        self, member: str, batches: Sequence[AcknowledgementBatch], *, renewing: bool = False
    ) -> None:
        if batches:
            answers = await self.both.acknowledge(member, self.epochs[member], batches, renewing=renewing)
            self._compare(member, answers, f"acknowledge {self.members.index(member)} {_short(batches)} {renewing}")

    async def _close(self, member: str) -> None:
        batches = self._batches(member) if self.rng.random() < 0.5 else []
        answers = await self.both.acknowledge(member, CLOSE_SESSION, batches)
        self._compare(member, answers, f"close {self.members.index(member)} {_short(batches)}")
        self.epochs[member] = OPEN_SESSION
        await asyncio.sleep(0.3)  # records are released a little later

    def _compare(self, member: str, answers: tuple[Answer, Answer], told: str) -> None:
        kafka, ours = answers
        self.steps.append(f"{told}\n    -> {kafka}")
        assert kafka == ours, "\n".join([*self.steps[-60:], f"    in memory: {ours}"])
        if kafka.code == 0:
            self.epochs[member] += 1


def _short(batches: Iterable[AcknowledgementBatch]) -> str:
    return " ".join(
        f"{one.first_offset}-{one.last_offset}:{''.join(map(str, one.acknowledge_types))}" for one in batches
    )


def _ranges(offsets: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1] = found[-1][0], offset
        else:
            found.append((offset, offset))
    return found


@pytest.mark.parametrize(
    ("seed", "options", "has_aborted", "deletes"),
    [
        pytest.param(1, ShareGroupOptions(**COMMON), False, False, id="all", marks=pytest.mark.slow),
        pytest.param(
            2, ShareGroupOptions(max_record_locks=100, delivery_count_limit=3, **COMMON), True, False, id="few locks"
        ),
        pytest.param(
            3,
            ShareGroupOptions(isolation_level="read_committed", **COMMON),
            True,
            False,
            id="committed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            4, ShareGroupOptions(max_record_locks=100, **COMMON), False, True, id="deletion", marks=pytest.mark.slow
        ),
    ],
)
async def test_both_answer_the_same(
    local_kafka: LocalKafka,
    kafka_topic: TopicMaker,
    seed: int,
    options: ShareGroupOptions,
    has_aborted: bool,
    deletes: bool,
) -> None:
    """Whatever two members fetch and acknowledge, and whatever mistakes they make: the same codes, the same records
    with the same delivery counts."""
    topic = await kafka_topic()
    servers = local_kafka.bootstrap_servers
    async with asking(servers) as kafka:
        both = Both(kafka, servers, topic, await kafka.topic_id(topic), await kafka.leader(topic), options)
        await kafka.configure(
            both.group,
            {
                "share.auto.offset.reset": options.auto_offset_reset,
                "share.isolation.level": options.isolation_level,
                "share.record.lock.duration.ms": str(round(options.lock_duration * 1000)),
                "share.delivery.count.limit": str(options.delivery_count_limit),
                "share.partition.max.record.locks": str(options.max_record_locks),
            },
        )
        await join(kafka, both.group, topic)
        player = Player(both, seed, aborts=has_aborted, deletes=deletes)
        for count in (1, 7, 1, 1, 12, 3, 30, 1, 1, 1):
            await both.produce(count)
        for _ in range(STEPS):
            await player.step()


async def join(kafka: Asking, group: str, topic: str) -> None:
    """The group exists from its first member on."""
    member, epoch, topics = new_member_id(), JOIN, (topic,)
    while True:
        answer = await kafka.coordinate(
            group,
            SHARE_GROUP_HEARTBEAT,
            ShareGroupHeartbeatRequest(
                group_id=group,
                member_id=member,
                member_epoch=epoch,
                subscribed_topic_names=topics if epoch == JOIN else None,
            ),
        )
        assert answer.error_code == 0, answer
        epoch = answer.member_epoch
        if answer.assignment is not None and answer.assignment.topic_partitions:
            return
        await asyncio.sleep(0.1)


def _bases(data: bytes) -> set[int]:
    """The base offsets of these batches."""
    found, at = set[int](), 0
    while (head := head_at(data, at)) is not None:
        found.add(head.offset)
        at = head.end
    return found
