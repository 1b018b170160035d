"""Which end offsets the listener offers to which group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

import pytest

from aioparallel.records.record import TopicPartition
from aioparallel.spark import group_offsets
from aioparallel.spark.progress import ProgressListener
from tests.support.spark import progress_events as events

RAW = [TopicPartition("raw", number) for number in range(3)]


class Offers:
    """Stands for the committer, and takes note."""

    def __init__(self, servers: str, options: Mapping[str, object], *, take_over: bool) -> None:
        self.servers = servers
        self.take_over = take_over
        self.queries: list[UUID] = []
        self.given: list[tuple[str, dict[TopicPartition, int]]] = []
        self.closed = False

    def offer(self, group: str, query_id: UUID, offsets: Mapping[TopicPartition, int]) -> None:
        if offsets:
            self.queries.append(query_id)
            self.given.append((group, dict(offsets)))

    def close(self, timeout: float) -> None:
        self.closed = True


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Offers]:
    """What the listener's committer was offered."""
    made: list[Offers] = []

    def make(servers: str, options: Mapping[str, object], *, take_over: bool) -> Offers:
        made.append(Offers(servers, options, take_over=take_over))
        return made[-1]

    monkeypatch.setattr(group_offsets, "GroupCommitter", make)
    return lambda: made[0]


def test_end_offsets_go_to_the_group(offers: Callable[[], Offers]) -> None:
    """Each batch's end offsets are offered as they are, and the committer is closed with the listener."""
    with ProgressListener(show="nothing", commit_group="lag", bootstrap_servers="broker:9092") as listener:
        listener.onQueryProgress(events.progress(events.FIRST))
        listener.onQueryProgress(events.progress(events.RATE))
    assert offers().given == [("lag", {RAW[0]: 176, RAW[1]: 136, RAW[2]: 88})]
    assert (offers().servers, offers().closed, offers().take_over) == ("broker:9092", True, False)
    assert offers().queries == [UUID(events.FIRST["id"])]


def test_a_group_for_each_query(offers: Callable[[], Offers]) -> None:
    """A query without a group of its own commits nothing."""
    groups = {"two": "lag-of-two"}
    listener = ProgressListener(show="nothing", commit_group=groups, bootstrap_servers="broker:9092")
    listener.onQueryProgress(events.progress(events.FIRST))
    listener.onQueryProgress(events.progress(events.UNNAMED))
    listener.onQueryProgress(events.progress(events.TWO_SOURCES))
    assert [group for group, _ in offers().given] == ["lag-of-two"]


def test_two_queries_do_not_move_the_same_partition(
    offers: Callable[[], Offers], caplog: pytest.LogCaptureFixture
) -> None:
    """The first reader is shown until it ends; the other is told of once."""
    listener = ProgressListener(show="nothing", commit_group="lag", bootstrap_servers="broker:9092")
    listener.onQueryProgress(events.progress(events.FIRST))
    listener.onQueryProgress(events.progress(events.TWO_SOURCES))
    assert len(offers().given) == 1
    assert "commit_group={query name: group}" in caplog.text
    listener.onQueryTerminated(events.terminated(events.FIRST))
    listener.onQueryProgress(events.progress(events.TWO_SOURCES))
    assert offers().given[1] == ("lag", {RAW[0]: 1012, RAW[1]: 782, RAW[2]: 506})
    assert len(caplog.records) == 1


def test_a_batch_that_is_told_after_the_end_keeps_no_partition(offers: Callable[[], Offers]) -> None:
    """It is committed, and the next query that reads them is shown."""
    listener = ProgressListener(show="nothing", commit_group="lag", bootstrap_servers="broker:9092")
    listener.onQueryTerminated(events.terminated(events.FIRST))
    listener.onQueryProgress(events.progress(events.FIRST))
    listener.onQueryProgress(events.progress(events.TWO_SOURCES))
    assert [offsets[RAW[0]] for _, offsets in offers().given] == [176, 1012]
