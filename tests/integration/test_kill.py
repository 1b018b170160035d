"""SIGKILL at random moments, on Apache Kafka: nothing lost, nothing out of order, little repeated."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.account import Account, Place, complete_by_commit
from tests.support.children.job import Job
from tests.support.kafka.filling import fill_numbered
from tests.support.kafka.reading import read_all
from tests.support.waiting import DEADLINE, until

pytestmark = pytest.mark.real

RECORDS, PARTITIONS, KEYS, KILLS, CONCURRENCY = 30_000, 8, 1_000, 5, 400


def job_of(servers: str, topic: str, batch: int = 0) -> Job:
    """To the end offsets; the group soon notices who is dead."""
    options = {
        "max_concurrency": CONCURRENCY // (batch or 1),
        "session_timeout": 1.5,
        "heartbeat_interval": 0.4,
        "until": "end",
    }
    return Job(
        bootstrap_servers=servers,
        topic=topic,
        group_id=f"{topic}-group",
        seconds=(0.02, 0.06),
        batch=batch,
        options=options,
    )


@pytest.mark.parametrize("batch", [pytest.param(0, marks=pytest.mark.slow), 20])
async def test_five_kills_lose_nothing_and_repeat_little(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, batch: int
) -> None:
    """30,000 records, 8 partitions, 1,000 keys, 20-60 ms, by themselves or in batches of 20, five times SIGKILL: none
    lost, no key out of order.

    What runs again is exactly bounded: never a record that the last acknowledged commit says is complete. And
    that commit never says so of a record that had not ended (I2).
    """
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    fill_numbered(servers, topic, RECORDS, KEYS)
    account = Account(await read_all(servers, topic))
    job, rng = job_of(servers, topic, batch), random.Random(12)
    kill_at = sorted(rng.sample(range(RECORDS // 20, RECORDS * 9 // 10), KILLS))
    began_before: set[Place] = set()
    repeated = []
    for number, kill in enumerate([*kill_at, None]):
        # Asked while nobody runs: what the last acknowledged commit says.
        complete = await complete_by_commit(servers, job.group_id)
        assert all(place in account.ended for place in filter(complete, account.places)), "committed, but never ended"
        account.follow(tmp_path / f"{number}.events")
        began: list[Place] = []

        def enough(kill: int | None = kill, began: list[Place] = began) -> bool:
            began += account.read()
            return kill is not None and len(account.ended) >= kill

        await job.run(tmp_path, f"{number}", None if kill is None else enough)
        enough()
        again = began_before.intersection(began)
        repeated.append(len(again))
        assert not list(filter(complete, again)), "ran again though its commit was acknowledged"
        began_before.update(began)
    account.delivery.check()
    account.order.check()
    counts = account.delivery.statistics()
    print(f"\nkilled at {kill_at}: 0 lost, {account.order.statistics()}, {counts}, run again after each: {repeated}")
    # In flight when killed, and completed within one commit interval (1 s at 400 / 40 ms = 10,000/s): generous.
    assert all(count <= CONCURRENCY + 15_000 for count in repeated)
    assert all(map(await complete_by_commit(servers, job.group_id), account.places))


async def test_sigterm_drains_commits_and_ends_well(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path
) -> None:
    """SIGTERM under run_sync: what is in flight ends, all that ended is committed, exit code 0, no traceback."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    fill_numbered(servers, topic, RECORDS, KEYS)
    account, job = Account(await read_all(servers, topic)), job_of(servers, topic)
    account.follow(tmp_path / "consumer.events")
    began: list[Place] = []

    def enough() -> bool:
        began.extend(account.read())
        return len(account.ended) >= 500

    async with job.child(tmp_path) as child:
        await until(enough)
        child.terminate()
        await child.ended(DEADLINE)
    began += account.read()
    assert child.log.read_text() == ""
    assert set(began) == account.ended
    assert len(began) < RECORDS
    assert all(map(await complete_by_commit(servers, job.group_id), account.ended))
