"""Commits beside the query: the newest only, never in its way, trouble told once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping

import aiokafka.errors as kafka
import pytest

from aioparallel.codes import ErrorCode
from aioparallel.errors import BrokerUnreachable
from aioparallel.records import TopicPartition
from aioparallel.spark import group_offsets
from aioparallel.spark.group_offsets import GroupCommitter

RAW = TopicPartition("raw", 0)
WORK = TopicPartition("work", 0)


class Cluster:
    """Stands for GroupSettings and the coordinator behind it."""

    bootstrap_servers = "broker:9092"

    def __init__(self) -> None:
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self.used_by: str | None = None
        self.asked = 0
        self.faults: list[Exception] = []  # of attempts to come
        self.codes: dict[TopicPartition, int] = {}
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    @contextlib.asynccontextmanager
    async def coordinator(self, group: str, timeout: float) -> AsyncIterator[Coordinator]:
        self.entered.set()
        while not self.open.is_set():
            await asyncio.sleep(0.005)
        if self.faults:
            raise self.faults.pop(0)
        yield Coordinator(self, group)


class Coordinator:
    def __init__(self, cluster: Cluster, group: str) -> None:
        self.cluster = cluster
        self.group = group

    async def users(self) -> str | None:
        self.cluster.asked += 1
        return self.cluster.used_by

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.cluster.commits.append((self.group, dict(offsets)))
        return {partition: code for partition, code in self.cluster.codes.items() if partition in offsets}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(group_offsets, "GroupSettings", lambda _servers, _options: made)
    monkeypatch.setattr(group_offsets, "_RETRY_PAUSE", 0.001)
    return made


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_first_offer_is_committed_at_once_and_the_last_at_the_close(cluster: Cluster) -> None:
    """In between it rests; of what was offered meanwhile the newest of each partition is committed, once."""
    committer = GroupCommitter("broker:9092", {}, interval=3_600)
    committer.offer("lag", {RAW: 1})
    until(lambda: cluster.commits)
    for offset in range(2, 1_000):
        committer.offer("lag", {RAW: offset})
    committer.offer("lag", {WORK: 7})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 1}), ("lag", {RAW: 999, WORK: 7})]
    assert cluster.asked == 2


def test_nobody_waits_for_a_commit_that_hangs(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Offers return at once, hold only the newest, and the close keeps its deadline and says what is missing."""
    cluster.open.clear()
    committer = GroupCommitter("broker:9092", {}, interval=0, timeout=3_600)
    committer.offer("lag", {RAW: 1})
    until(cluster.entered.is_set)
    for offset in range(10_000):
        committer.offer("lag", {RAW: offset})
    assert committer._pending == {"lag": {RAW: 9_999}}
    committer.close(0.05)
    assert cluster.commits == []
    assert any("The last offsets of group 'lag' were not committed within 0.05 s" in said for said in warnings(caplog))
    assert not any(thread.name == "aioparallel-group-offsets" for thread in threading.enumerate())


def test_what_passes_is_tried_again_at_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A coordinator that is being elected is nothing to tell of."""
    cluster.faults = [kafka.GroupCoordinatorNotAvailableError() for _ in range(5)]
    committer = GroupCommitter("broker:9092", {})
    committer.offer("lag", {RAW: 1})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 1})]
    assert warnings(caplog) == []


def test_trouble_is_told_once_and_tried_again_with_the_next_batch(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The offsets of the failed commit are not lost: they go with the next one."""
    caplog.set_level(logging.INFO, "aioparallel.spark")
    cluster.faults = [BrokerUnreachable("broker:9092", 1, "refused") for _ in range(3)]
    committer = GroupCommitter("broker:9092", {}, interval=0)
    for attempt in range(3):
        committer.offer("lag", {TopicPartition("raw", attempt): attempt})
        until(lambda attempt=attempt: len(cluster.faults) == 2 - attempt)  # type: ignore[misc]
        until(lambda: committer._round is None)
    committer.offer("lag", {RAW: 9})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 9, TopicPartition("raw", 1): 1, TopicPartition("raw", 2): 2})]
    (said,) = warnings(caplog)
    assert "check bootstrap_servers" in said
    assert "The query goes on" in said
    assert "acknowledged again" in caplog.text


def test_a_surprise_does_not_end_the_thread(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a client raises is told, and the next offer is committed."""
    cluster.faults = [AssertionError("a client's own")]
    committer = GroupCommitter("broker:9092", {}, interval=0)
    committer.offer("lag", {RAW: 1})
    until(lambda: not cluster.faults)
    committer.offer("lag", {RAW: 2})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 2})]
    assert len(warnings(caplog)) == 1


def test_a_group_of_consumers_is_refused_for_good(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is ever committed, and the log says who and what to do."""
    cluster.used_by = "has live members (enricher at 10.0.0.7)"
    committer = GroupCommitter("broker:9092", {}, interval=0)
    committer.offer("enrich", {RAW: 1})
    until(lambda: warnings(caplog))
    cluster.used_by = None
    committer.offer("enrich", {RAW: 2})
    committer.offer("lag", {RAW: 2})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 2})]
    (said,) = warnings(caplog)
    assert "commit_group='enrich': this group has live members (enricher at 10.0.0.7)" in said
    assert "a name that no consumer has used" in said


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_consumers_that_come_later_end_the_commits(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, code: ErrorCode
) -> None:
    """The broker refuses a commit from outside as soon as the group has members; that is not tried again."""
    cluster.codes = {RAW: code}
    committer = GroupCommitter("broker:9092", {}, interval=0)
    committer.offer("lag", {RAW: 1})
    until(lambda: warnings(caplog))
    committer.offer("lag", {RAW: 2})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 1})]
    assert len(warnings(caplog)) == 1


def test_consumers_that_came_and_went_between_two_commits_are_not_moved(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that rests for an hour: the broker would take the next commit, since the group is empty again."""
    committer = GroupCommitter("broker:9092", {}, interval=0)
    committer.offer("lag", {RAW: 1})
    until(lambda: cluster.commits)
    cluster.used_by = "belongs to consumers (its protocol is 'consumer')"
    committer.offer("lag", {RAW: 2})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 1})]
    assert "belongs to consumers" in warnings(caplog)[0]


def test_one_partition_that_is_refused_does_not_hold_up_the_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic of another cluster: the rest is committed, and the advice names the option."""
    cluster.codes = {WORK: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    committer = GroupCommitter("broker:9092", {}, interval=0)
    committer.offer("lag", {RAW: 1, WORK: 1})
    until(lambda: warnings(caplog))
    committer.offer("lag", {RAW: 2})
    committer.close(30)
    assert cluster.commits[:2] == [("lag", {RAW: 1, WORK: 1}), ("lag", {WORK: 1, RAW: 2})]
    said = warnings(caplog)
    assert "work-0: not at broker:9092; name the cluster that the query reads from in bootstrap_servers" in said[0]
    assert len([line for line in said if "could not be committed" in line]) == 1


def test_nothing_runs_before_the_first_offer_and_after_the_close(cluster: Cluster) -> None:
    """No thread for a query that is not there, and none comes back."""
    committer = GroupCommitter("broker:9092", {})
    committer.close(1)
    committer.offer("lag", {RAW: 1})
    assert cluster.commits == []
    assert not any(thread.name == "aioparallel-group-offsets" for thread in threading.enumerate())
