"""Two with one ``group_instance_id`` on Apache Kafka: the first ends, the second goes on, and nothing runs again and
again."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aioparallel import InstanceFenced, Outgoing, ParallelConsumer, ProblemKind, Record, Transactions
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.queues.priority import PriorityConsumer, priority_topic
from aioparallel.testing import LocalKafka
from aioparallel.testing.event_log import EventKind, EventTail
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.job import Job
from tests.support.kafka.filling import Message, fill, fill_numbered
from tests.support.kafka.reading import committed, read_all
from tests.support.waiting import DEADLINE, SLACK, until

pytestmark = pytest.mark.real
TAKES_OVER = pytest.mark.classic_protocol("in the new one the second member waits until the first leaves")

RECORDS, PARTITIONS, HEARTBEAT = 1_200, 4, 1.0
MEMBER: dict[str, Any] = {
    "client_options": {"group_instance_id": "worker-1"},
    "session_timeout": 20.0,
    "heartbeat_interval": HEARTBEAT,
    "max_concurrency": 40,
}
OFTEN: dict[str, Any] = {"commit_interval": 0.3}


class Work:
    """A handler that counts its calls, by record."""

    def __init__(self, target: str | None = None) -> None:
        self.calls: Counter[bytes | None] = Counter()
        self.ended: set[bytes | None] = set()
        self._target = target

    async def __call__(self, record: Record) -> Outgoing | None:
        self.calls[record.value] += 1
        await asyncio.sleep(0.08)
        self.ended.add(record.value)
        return None if self._target is None else Outgoing(self._target, record.value, record.key)


async def both(
    make: Callable[[], ParallelConsumer[Any, Any]], first: Work, second: Work, is_done: Callable[[], bool]
) -> ParallelConsumer[Any, Any]:
    """Let the first begin, the second come, and end when all is done. Returns the first, which has ended."""
    async with make() as fenced:
        running = asyncio.create_task(fenced.run(first))
        await until(lambda: len(first.ended) >= RECORDS // 6, what="the first one at work")
        async with make() as staying:
            others = asyncio.create_task(staying.run(second))
            await until(lambda: second.calls, what="the second one at work")
            came = time.monotonic()
            with pytest.raises(InstanceFenced, match="'worker-1'"):
                async with asyncio.timeout(DEADLINE):
                    await running
            assert time.monotonic() - came < HEARTBEAT + SLACK
            assert not fenced.health().live
            assert [one.kind for one in fenced.health().problems] == [ProblemKind.FAILED]
            assert "group_instance_id 'worker-1'" in fenced.health().problems[0].message
            await until(is_done, what="the rest")
            assert not others.done()
            assert staying.health().live
            staying.stop()
            await others
    return fenced


def check(first: Work, second: Work, caplog: pytest.LogCaptureFixture, losses: int = 1) -> None:
    """Every record was handled, by each of them once at most."""
    print(f"{RECORDS} records, {sum(first.calls.values())} + {sum(second.calls.values())} calls")
    assert len(first.ended | second.ended) == RECORDS
    assert max((first.calls | second.calls).values()) == 1
    assert not [one for one in caplog.records if "has the group_instance_id of this member" in one.getMessage()]
    lost = [one for one in caplog.records if getattr(one, "action", None) == "partitions_lost"]
    assert len(lost) == losses


@TAKES_OVER
@pytest.mark.parametrize("is_exact", [False, True], ids=["at least once", "transactions"])
async def test_the_first_ends_and_the_second_goes_on(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, caplog: pytest.LogCaptureFixture, is_exact: bool
) -> None:
    """Under load: the first run ends with an error that names the id. In transactions each output is there once."""
    caplog.set_level(logging.WARNING)
    servers, topic, target = (
        local_kafka.bootstrap_servers,
        await kafka_topic(partitions=PARTITIONS),
        await kafka_topic(),
    )
    fill_numbered(servers, topic, RECORDS, RECORDS)
    exact = {"commits": Transactions()} if is_exact else OFTEN
    first, second = Work(target if is_exact else None), Work(target if is_exact else None)

    def make() -> ParallelConsumer[Any, Any]:
        return ParallelConsumer(topic, bootstrap_servers=servers, group_id=topic, **MEMBER, **exact)

    await both(make, first, second, lambda: len(first.ended | second.ended) == RECORDS)
    check(first, second, caplog)
    if is_exact:
        outputs = Counter(record.value for record in await read_all(servers, target, is_committed=True))
        assert len(outputs) == RECORDS
        assert set(outputs.values()) == {1}


@TAKES_OVER
async def test_priorities(local_kafka: LocalKafka, kafka_topic: TopicMaker, caplog: pytest.LogCaptureFixture) -> None:
    """One group of several is enough to end the run."""
    caplog.set_level(logging.WARNING)
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    for priority in range(2):
        await local_kafka.create_topic(priority_topic(topic, priority), 2)
        part = range(priority * RECORDS // 2, (priority + 1) * RECORDS // 2)
        fill(servers, priority_topic(topic, priority), [Message(b"%d" % n, b"%d" % n) for n in part])
    first, second = Work(), Work()

    def make() -> ParallelConsumer[Any, Any]:
        return PriorityConsumer(topic, priorities=2, bootstrap_servers=servers, group_id=topic, **MEMBER, **OFTEN)

    fenced = await both(make, first, second, lambda: len(first.ended | second.ended) == RECORDS)
    assert f"group '{topic}" in fenced.health().problems[0].message
    assert len(first.ended | second.ended) == RECORDS
    assert max((first.calls | second.calls).values()) == 1


@TAKES_OVER
async def test_a_queue(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The tracker of a queue is a member of another group with the same id: whichever is fenced first, the consumer
    ends; what it had begun comes again."""
    servers, queue = local_kafka.bootstrap_servers, await kafka_topic(partitions=2)
    await local_kafka.create_topic(f"{queue}-markers", 2)
    await local_kafka.create_topic(f"{queue}__undelivered")
    fill_numbered(servers, queue, RECORDS, RECORDS)
    first, second = Work(), Work()

    def make() -> ParallelConsumer[Any, Any]:
        return KmqConsumer(queue, bootstrap_servers=servers, group_id=queue, lease=2.0, **MEMBER, **OFTEN)

    await both(make, first, second, lambda: len(first.ended | second.ended) == RECORDS)
    assert max(first.calls.values()) == 1
    assert max(second.calls.values()) <= 2  # read, and delivered again


async def test_one_that_comes_back_under_its_id(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """The former one has ended, well or by SIGKILL as far as the group sees: nothing is lost, nobody is fenced."""
    caplog.set_level(logging.WARNING)
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    fill_numbered(servers, topic, RECORDS, RECORDS)
    works = [Work() for _ in range(3)]
    for number, work in enumerate(works):
        async with ParallelConsumer[Any, Any](
            topic, bootstrap_servers=servers, group_id=topic, **MEMBER, **OFTEN
        ) as consumer:
            running = asyncio.create_task(consumer.run(work))
            enough = RECORDS * (number + 1) // 3
            await until(lambda enough=enough: len(set[object]().union(*[w.ended for w in works])) >= enough)  # type: ignore[misc]
            consumer.stop()
            await running
    calls = sum((work.calls for work in works), Counter[bytes | None]())
    assert len(calls) == RECORDS
    assert set(calls.values()) == {1}
    assert not [one for one in caplog.records if getattr(one, "action", None) in {"partitions_lost", "instance_fenced"}]


@TAKES_OVER
@pytest.mark.parametrize(
    "frozen", [pytest.param(False, id="at work", marks=pytest.mark.slow), pytest.param(True, id="frozen")]
)
async def test_two_processes(local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, frozen: bool) -> None:
    """The first ends by itself with that error, also where it stood still when the second came; the second reads to the
    end; each runs a record once at most."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    fill_numbered(servers, topic, RECORDS, RECORDS)
    # The first has work left when the second comes, and never ends by itself.
    slow, to_the_end = (
        Job(
            bootstrap_servers=servers,
            topic=topic,
            group_id=topic,
            options={**MEMBER, **OFTEN, **options},
            seconds=(0.04, 0.12),
        )
        for options in ({"max_concurrency": 10}, {"until": "end"})
    )
    tails = {name: EventTail(tmp_path / f"{name}.events") for name in ("first", "second")}
    began: dict[str, Counter[tuple[int, int]]] = {name: Counter() for name in tails}
    ended: set[tuple[int, int]] = set()

    def read() -> int:
        for name, tail in tails.items():
            for event in tail.new():
                place = event.partition, event.offset
                began[name][place] += event.kind is EventKind.BEGAN
                ended.update([place] if event.kind is EventKind.ENDED else ())
        return len(ended)

    async with slow.child(tmp_path, "first") as first:
        await until(lambda: read() >= RECORDS // 6, what="the first one at work")
        if frozen:
            first.pause()
        async with to_the_end.child(tmp_path, "second") as second:
            if frozen:
                await until(lambda: read() and began["second"], what="the second one at work")
                first.resume()
            await until(lambda: not first.running, what="the end of the first")
            await second.ended(DEADLINE)
    read()
    said = (tmp_path / "first.log").read_text()
    assert "InstanceFenced: group" in said.splitlines()[-1]
    assert f"group '{topic}': another process has joined with group_instance_id 'worker-1'" in said
    assert len(ended) == RECORDS
    print(f"{RECORDS} records, {sum(began['first'].values())} + {sum(began['second'].values())} calls")
    assert max(began["first"].values()) == max(began["second"].values()) == 1


@TAKES_OVER
async def test_the_command_line(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """It says so in a sentence, and ends with the exit code of a failure."""
    servers, queue = local_kafka.bootstrap_servers, await kafka_topic()
    await local_kafka.create_topic(f"{queue}-markers")
    await local_kafka.create_topic(f"{queue}__undelivered")
    command = [sys.executable, "-m", "aioparallel", "kmq", "tracker", queue, "--bootstrap-servers", servers]
    command += ["--client-option", "group_instance_id=worker-1"]
    children = [await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)]
    try:
        await until(lambda: committed(servers, f"{queue}-trackers"), what="the first one in its group")
        children.append(await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE))
        first, second = children
        async with asyncio.timeout(DEADLINE):
            _, said = await first.communicate()
        assert first.returncode == 1
        assert "another process has joined with group_instance_id 'worker-1'" in said.decode()
        assert "Traceback" not in said.decode()
        assert second.returncode is None
    finally:
        for child in children:
            if child.returncode is None:
                child.terminate()
                await child.communicate()
