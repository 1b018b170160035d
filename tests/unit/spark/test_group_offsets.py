"""Commits beside the query: the newest only, never in its way, trouble told once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from uuid import UUID

import aiokafka.errors as kafka
import pytest

from aioparallel.group.client import Committed
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import BrokerUnreachable
from aioparallel.records.record import TopicPartition
from aioparallel.spark import group_offsets
from aioparallel.spark.group_offsets import GroupCommitter
from aioparallel.spark.group_requests import Position, Users, mark_of, stranger

RAW = TopicPartition("raw", 0)
WORK = TopicPartition("work", 0)
QUERY, OTHER = UUID(int=1), UUID(int=2)


class Cluster:
    """Stands for GroupSettings and the coordinator behind it."""

    bootstrap_servers = "broker:9092"

    def __init__(self) -> None:
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self.used_by: Users | None = None
        self.committed: dict[TopicPartition, Committed] = {}
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

    async def users(self) -> Users | None:
        self.cluster.asked += 1
        return self.cluster.used_by

    async def committed(self) -> dict[TopicPartition, Committed]:
        return self.cluster.committed

    async def commit(self, offsets: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
        self.cluster.commits.append((self.group, {partition: offset for partition, (offset, _) in offsets.items()}))
        failed = {partition: code for partition, code in self.cluster.codes.items() if partition in offsets}
        self.cluster.committed |= {
            partition: Committed(offset, mark)
            for partition, (offset, mark) in offsets.items()
            if partition not in failed
        }
        return failed


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
    committer.offer("lag", QUERY, {RAW: 1})
    until(lambda: cluster.commits)
    for offset in range(2, 1_000):
        committer.offer("lag", QUERY, {RAW: offset})
    committer.offer("lag", QUERY, {WORK: 7})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 1}), ("lag", {RAW: 999, WORK: 7})]
    assert cluster.asked == 2


def test_nobody_waits_for_a_commit_that_hangs(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Offers return at once, hold only the newest, and the close keeps its deadline and says what is missing."""
    cluster.open.clear()
    committer = GroupCommitter("broker:9092", {}, interval=0, timeout=3_600)
    committer.offer("lag", QUERY, {RAW: 1})
    until(cluster.entered.is_set)
    for offset in range(10_000):
        committer.offer("lag", QUERY, {RAW: offset})
    assert committer._pending == {"lag": {RAW: Position(9_999, mark_of(QUERY))}}
    committer.close(0.05)
    assert cluster.commits == []
    assert any("The last offsets of group 'lag' were not committed within 0.05 s" in said for said in warnings(caplog))
    assert not any(thread.name == "aioparallel-group-offsets" for thread in threading.enumerate())


def test_what_passes_is_tried_again_at_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A coordinator that is being elected is nothing to tell of."""
    cluster.faults = [kafka.GroupCoordinatorNotAvailableError() for _ in range(5)]
    committer = GroupCommitter("broker:9092", {})
    committer.offer("lag", QUERY, {RAW: 1})
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
        committer.offer("lag", QUERY, {TopicPartition("raw", attempt): attempt})
        until(lambda attempt=attempt: len(cluster.faults) == 2 - attempt)  # type: ignore[misc]
        until(lambda: committer._round is None)
    committer.offer("lag", QUERY, {RAW: 9})
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
    committer.offer("lag", QUERY, {RAW: 1})
    until(lambda: not cluster.faults)
    committer.offer("lag", QUERY, {RAW: 2})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 2})]
    assert len(warnings(caplog)) == 1


def test_a_group_of_consumers_is_refused_for_good(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is ever committed, and the log says who and what to do."""
    cluster.used_by = Users("has live members (enricher at 10.0.0.7)", are_members=True)
    committer = GroupCommitter("broker:9092", {}, interval=0)
    committer.offer("enrich", QUERY, {RAW: 1})
    until(lambda: warnings(caplog))
    cluster.used_by = None
    committer.offer("enrich", QUERY, {RAW: 2})
    committer.offer("lag", QUERY, {RAW: 2})
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
    committer.offer("lag", QUERY, {RAW: 1})
    until(lambda: warnings(caplog))
    committer.offer("lag", QUERY, {RAW: 2})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 1})]
    assert len(warnings(caplog)) == 1


def test_consumers_that_came_and_went_between_two_commits_are_not_moved(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that rests for an hour: the broker would take the next commit, since the group is empty again."""
    committer = GroupCommitter("broker:9092", {}, interval=0)
    committer.offer("lag", QUERY, {RAW: 1})
    until(lambda: cluster.commits)
    cluster.used_by = Users("belongs to consumers (its protocol is 'consumer')", are_members=False)
    committer.offer("lag", QUERY, {RAW: 2})
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 1})]
    assert "belongs to consumers" in warnings(caplog)[0]


def test_one_partition_that_is_refused_does_not_hold_up_the_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic of another cluster: the rest is committed, and the advice names the option."""
    cluster.codes = {WORK: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    committer = GroupCommitter("broker:9092", {}, interval=0)
    committer.offer("lag", QUERY, {RAW: 1, WORK: 1})
    until(lambda: warnings(caplog))
    committer.offer("lag", QUERY, {RAW: 2})
    committer.close(30)
    assert cluster.commits[:2] == [("lag", {RAW: 1, WORK: 1}), ("lag", {WORK: 1, RAW: 2})]
    said = warnings(caplog)
    assert "work-0: not at broker:9092; name the cluster that the query reads from in bootstrap_servers" in said[0]
    assert len([line for line in said if "could not be committed" in line]) == 1


def test_a_broker_that_takes_no_marks_is_told_what_to_do(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Its limit is named."""
    cluster.codes = {RAW: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    committer = GroupCommitter("broker:9092", {})
    committer.offer("lag", QUERY, {RAW: 1})
    until(lambda: warnings(caplog))
    committer.close(30)
    assert "does not accept 60 characters of metadata" in warnings(caplog)[0]
    assert "offset.metadata.max.bytes=4096" in warnings(caplog)[0]


def test_nothing_runs_before_the_first_offer_and_after_the_close(cluster: Cluster) -> None:
    """No thread for a query that is not there, and none comes back."""
    committer = GroupCommitter("broker:9092", {})
    committer.close(1)
    committer.offer("lag", QUERY, {RAW: 1})
    assert cluster.commits == []
    assert not any(thread.name == "aioparallel-group-offsets" for thread in threading.enumerate())


def test_a_commit_that_failed_is_tried_again_without_a_batch(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that rests: nothing new is offered, and what is left is committed all the same; told once."""
    cluster.faults = [BrokerUnreachable("broker:9092", 1, "refused") for _ in range(4)]
    committer = GroupCommitter("broker:9092", {}, interval=3_600, retry=0.001)
    committer.offer("lag", QUERY, {RAW: 1})
    until(lambda: cluster.commits)
    assert cluster.commits == [("lag", {RAW: 1})]
    assert len(warnings(caplog)) == 1
    committer.close(30)
    assert cluster.asked == 1


def test_what_fails_for_good_is_tried_less_and_less(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 s, 10, 20, 30, and 30 again, by the clock."""
    cluster.codes = {RAW: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    now = [0.0]
    monkeypatch.setattr(group_offsets, "time", SimpleNamespace(monotonic=lambda: now[0]))
    waits: list[float | None] = []
    committer = GroupCommitter("broker:9092", {})

    class Clock(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            now[0] += timeout or 0
            committer._is_closing = len(waits) == 6
            return True

    committer._changed = Clock()
    committer.offer("lag", QUERY, {RAW: 1})
    assert committer._thread is not None
    committer._thread.join(30)
    assert waits == [5, 10, 20, 30, 30, 30]


def test_a_group_that_somebody_else_has_committed_to_is_refused(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that assigns its partitions itself is no member, and its group has no protocol."""
    cluster.committed = {RAW: Committed(6, "")}
    committer = GroupCommitter("broker:9092", {}, interval=0)
    committer.offer("lag", QUERY, {RAW: 500})
    until(lambda: warnings(caplog))
    committer.close(30)
    assert cluster.commits == []
    (said,) = warnings(caplog)
    assert "this group has offset 6 of raw-0 committed by another program" in said
    assert "or take_over=True if nobody needs these positions" in said


def test_a_group_is_taken_over_until_somebody_commits_beside(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Positions that were left, of a consumer or a group; but whoever is at work is not moved twice."""
    cluster.used_by = Users("belongs to consumers (its protocol is 'consumer')", are_members=False)
    cluster.committed = {RAW: Committed(6, ""), WORK: Committed(7, "an offset map")}
    committer = GroupCommitter("broker:9092", {}, interval=0, take_over=True)
    committer.offer("lag", QUERY, {RAW: 500})
    until(lambda: cluster.commits)
    until(lambda: committer._round is None)
    cluster.committed[RAW] = Committed(9, "")
    committer.offer("lag", QUERY, {RAW: 501})
    until(lambda: warnings(caplog))
    committer.close(30)
    assert cluster.commits == [("lag", {RAW: 500})]
    assert "has offset 9 of raw-0 committed by another program" in warnings(caplog)[0]
    assert "take_over=True" not in warnings(caplog)[0]


def test_members_are_not_taken_over(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """The broker would refuse it, too."""
    cluster.used_by = Users("has live members (enricher at 10.0.0.7)", are_members=True)
    committer = GroupCommitter("broker:9092", {}, take_over=True)
    committer.offer("lag", QUERY, {RAW: 500})
    committer.close(30)
    assert cluster.commits == []
    assert "has live members" in warnings(caplog)[0]


def test_whose_a_commit_is() -> None:
    """By its mark: a query that is started again has the same; another query only where it is of this process."""
    mine = {RAW: Position(5, mark_of(QUERY))}

    def judge(
        committed: dict[TopicPartition, str], acknowledged: dict[TopicPartition, str] | None = None
    ) -> str | None:
        found = {partition: Committed(4, metadata) for partition, metadata in committed.items()}
        return stranger(found, mine, acknowledged or {}, take_over=False)

    assert judge({}) is None
    assert judge({RAW: mark_of(QUERY)}) is None
    assert judge({RAW: mark_of(QUERY), WORK: mark_of(OTHER)}) is None
    assert judge({RAW: mark_of(OTHER)}, {RAW: mark_of(OTHER)}) is None
    assert judge({RAW: mark_of(OTHER)}) == f"has offset 4 of raw-0 committed by the query {OTHER}"
    assert judge({WORK: ""}) == "has offset 4 of work-0 committed by another program"
    assert judge({RAW: ""}, {RAW: mark_of(QUERY)}) == "has offset 4 of raw-0 committed by another program"
