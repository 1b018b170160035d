"""Two ``aioparallel dlq`` at once, on Apache Kafka: one works, the other says why it does not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aioparallel.cli.dlq.commands import Access
from aioparallel.cli.dlq.dead_letter_topic import open_topic
from aioparallel.testing import LocalKafka

from .dead_letters import Letters, Sent
from .test_dlq import COMMAND

pytestmark = pytest.mark.real


@contextmanager
def running(letters: Letters, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command on the topic of letters, in a process of its own."""
    command = [sys.executable, "-c", COMMAND, "dlq", *arguments, letters.topic, "--group", letters.group, "--yes"]
    environment = {**os.environ, "AIOPARALLEL_BOOTSTRAP_SERVERS": letters.broker.bootstrap_servers}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its exit code and what it said."""
    _, said = process.communicate(timeout=60)
    return process.returncode, said.decode()


@pytest.mark.parametrize("count", [300, *(pytest.param(count, marks=pytest.mark.slow) for count in (3_000, 20_000))])
def test_every_letter_is_sent_once(local_kafka: LocalKafka, count: int) -> None:
    """Of two replays started at once one sends every letter, the other nothing, and says why: somebody is at
    work, or, where it came late on a busy machine, has done it all."""
    for _ in range(2):
        letters = Letters(local_kafka, partitions=2)
        letters.write(*[Sent(b"%d" % n, partition=n % 2, message="") for n in range(count)])
        with running(letters, "replay") as one, running(letters, "replay") as two:
            ended = [end(one), end(two)]
        assert Counter(int(record.value) for record in letters.read()) == Counter(range(count)), ended
        (_, said), (code, why) = sorted(ended, key=lambda one: f"Replayed {count:,}," not in one[1])
        assert f"Replayed {count:,}, failed 0" in said, ended
        if code:
            assert "nothing was done" in why
            assert "another replay or drop" in why or "another process has committed to group" in why
        else:
            assert f"Nothing to replay: no open letter, skipped {count:,} already settled" in why, ended
        assert letters.listed() == []


@pytest.mark.parametrize("command", ["replay", "drop"])
def test_while_one_is_at_work_others_are_refused(local_kafka: LocalKafka, command: str) -> None:
    """At once, before anything is done; the one at work keeps its place and goes on marking."""
    letters = Letters(local_kafka, partitions=2)
    letters.write(Sent(), Sent(), Sent(partition=1))

    async def at_work() -> str:
        access = Access(bootstrap_servers=local_kafka.bootstrap_servers, group=letters.group)
        async with open_topic(letters.topic, (), access) as topic:
            await topic.hold.take(topic.client)
            began = await topic.hold.generation(1.0)
            asked = time.monotonic()
            _, said = await asyncio.to_thread(letters.run, command, "--yes", code=1)
            assert time.monotonic() - asked < 6
            topic.marks[0].register([0, 1], 2)
            topic.marks[0].settle(0)
            await topic.marks.save([0])
            assert await topic.hold.generation(5.0) != began
        return said

    said = asyncio.run(at_work())
    assert f"another replay or drop of {letters.topic} is running" in said
    assert "nothing was done" in said
    assert letters.read() == []
    assert letters.committed()[0] == (1, "")
    letters.run("replay", "--yes")
    assert len(letters.read()) == 2


@pytest.mark.slow
def test_a_killed_replay_blocks_the_next_one_for_seconds_only(local_kafka: LocalKafka) -> None:
    """The next one waits until the group has forgotten the killed one, 6 s at most, and goes on where it was."""
    letters = Letters(local_kafka)
    letters.write(*[Sent(b"%d" % n, message="") for n in range(20_000)])
    with running(letters, "replay") as killed:
        until_something_is_marked(letters, killed)
        killed.send_signal(signal.SIGKILL)
        killed.wait()

    async def take() -> float:
        access = Access(bootstrap_servers=local_kafka.bootstrap_servers, group=letters.group)
        async with open_topic(letters.topic, (), access) as topic:
            began = time.monotonic()
            await topic.hold.take(topic.client)
            return time.monotonic() - began

    assert asyncio.run(take()) < 6 + 4  # some more where the machine is busy
    with running(letters, "replay") as following:
        code, said = end(following)
    assert code == 0, said
    found = Counter(int(record.value) for record in letters.read())
    assert set(found) == set(range(20_000))
    assert found.total() <= 20_500


@pytest.mark.slow
def test_replays_of_two_topics_may_share_a_group(local_kafka: LocalKafka) -> None:
    """Only those of the same topic exclude each other."""
    first, second = Letters(local_kafka), Letters(local_kafka)
    second.group = first.group
    for letters in (first, second):
        letters.write(*[Sent(b"%d" % n, message="") for n in range(10_000)])
    with running(first, "replay") as one, running(second, "replay") as two:
        assert [end(one)[0], end(two)[0]] == [0, 0]
    for letters in (first, second):
        assert sorted(int(record.value) for record in letters.read()) == list(range(10_000))


def until_something_is_marked(letters: Letters, process: subprocess.Popen[bytes]) -> None:
    """Wait for the first letters to be settled."""
    deadline = time.monotonic() + 60
    while not letters.committed().get(0, (0, ""))[0]:
        assert process.poll() is None
        assert time.monotonic() < deadline
