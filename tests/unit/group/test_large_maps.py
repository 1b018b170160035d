"""Large maps: written and restored without holding the event loop."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Collection, Mapping

import pytest

from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group import offset_commits
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.committer import Committer
from aioparallel.group.opening import Opener
from aioparallel.group.starts import Starts
from aioparallel.group.truncations import Truncations
from aioparallel.offsets import Ledger, OffsetMap, decode_offset_map, encode_offset_map, fit_offset_map
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient

WHO = Generation(1, "m")


class Kept:
    """Positions in memory: an :class:`~aioparallel.group.offset_stores.OffsetStore` that takes everything."""

    def __init__(self, positions: Mapping[TopicPartition, Committed]) -> None:
        self.positions = dict(positions)
        self.released: list[TopicPartition] = []

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        await asyncio.sleep(0)
        return {partition: self.positions[partition] for partition in partitions if partition in self.positions}

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        await asyncio.sleep(0)
        self.positions.update(positions)
        return dict.fromkeys(positions)

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        await asyncio.sleep(0)
        return self.positions.keys() & set(partitions)

    def release(self, partition: TopicPartition) -> None:
        self.released.append(partition)


def opener_of(
    client: InMemoryClient, store: Kept, on_change: Callable[[], None] = lambda: None, *, refuses_resets: bool = False
) -> Opener:
    """One of group "g", whose assignments wait for nobody's first positions."""
    return Opener(
        client,
        "g",
        store,
        Starts(client, store, Options()),
        Truncations(refuses_resets),
        longest_wait=1,
        spawn=lambda work, name: work.close(),
        on_fresh=lambda: None,
        on_change=on_change,
        read_before={},
    )


def far_behind(seed: int) -> OffsetMap:
    """A stuck record, and ten million offsets on others that are not complete."""
    far = sorted(random.Random(seed).sample(range(9_900_000, 10_000_000), 10_000))
    return OffsetMap(0, 10_000_000, (0, *far))


def test_a_map_that_takes_long_is_written_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written in a thread from what was said in one step: what completes meanwhile leaves the assignment dirty,
    and what is committed decodes to the ledger as it was (I9)."""
    asyncio.run(written_beside_the_loop(monkeypatch))  # no virtual time: that would not wait for a thread


async def written_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    assignment = Assignment(TopicPartition("t", 0), 1, WHO)
    assignment.opened = True
    assignment.ledger = Ledger(0, far_behind(1))
    assignment.ledger.register(list(far_behind(1).incompletes), 10_000_001)
    before = assignment.ledger.snapshot()
    threads: list[int] = []
    fit = fit_offset_map

    def noted(*args: object, **options: object) -> tuple[str, int]:
        threads.append(threading.get_ident())
        loop.call_soon_threadsafe(assignment.ledger.register, [], 10_000_005)
        return fit(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(offset_commits, "fit_offset_map", noted)
    loop, store = asyncio.get_running_loop(), Kept({})
    committer = Committer(store, Options(), Scheduler(), lambda: [assignment], lambda: None)
    assert await committer.commit([assignment]) == {}
    assert threads
    assert threads[0] != threading.get_ident()
    assert assignment.dirty
    said = decode_offset_map(*store.positions[assignment.partition][:2])
    assert said.base_offset == before.base_offset
    assert list(said.incompletes) == [offset for offset in before.incompletes if offset <= said.highest_succeeded]


def test_one_that_goes_while_its_map_is_written_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is committed; the others of the same round are."""
    asyncio.run(gone_meanwhile(monkeypatch))


async def gone_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, stays = (Assignment(TopicPartition("t", number), 1, WHO) for number in range(2))
    gone.opened = stays.opened = True
    gone.ledger, stays.ledger = Ledger(0, far_behind(1)), Ledger(7)
    fit = fit_offset_map

    def go(base: int, *args: object, **options: object) -> tuple[str, int]:
        if base == 0:
            gone.stopped = gone.dropped = True
        return fit(base, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(offset_commits, "fit_offset_map", go)
    store = Kept({})
    committer = Committer(store, Options(), Scheduler(), lambda: [gone, stays], lambda: None)
    assert await committer.commit([gone, stays]) == {}
    assert store.positions == {stays.partition: Committed(7, "")}


async def test_the_first_dense_map_of_a_partition_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever goes back to the Java library learns from which commit on that cannot read the map."""
    assignment = Assignment(TopicPartition("t", 0), 1, WHO)
    assignment.opened = True
    incompletes = sorted(random.Random(1).sample(range(40_000), 6_000))
    assignment.ledger = Ledger(0, OffsetMap(0, 40_000, (0, *[offset for offset in incompletes if offset])))
    assignment.ledger.register(list(assignment.ledger.incompletes), 40_001)
    store = Kept({})
    committer = Committer(store, Options(), Scheduler(), lambda: [assignment], lambda: None)
    with caplog.at_level(logging.INFO, logger="aioparallel"):
        for _ in range(3):
            assignment.complete(max(assignment.ledger.incompletes))
            assert await committer.commit([assignment]) == {}
            assert not store.positions[assignment.partition].metadata.isascii()
    assert [getattr(line, "action", "") for line in caplog.records].count("dense_map") == 1


class Long(InMemoryClient):
    """All its logs hold what their positions speak of."""

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        """See :class:`InMemoryClient`."""
        await asyncio.sleep(0)
        return dict.fromkeys(epochs, 100_000)


async def test_maps_are_restored_with_turns_of_the_loop_between(broker: InMemoryBroker) -> None:
    """Of many full maps each is a step of its own; an assignment that goes meanwhile stays as it is."""
    text = encode_offset_map(0, 60_000, sorted(random.Random(1).sample(range(60_000), 6_000)), limit=None)
    partitions = [TopicPartition("t", number) for number in range(20)]
    assignments = [Assignment(partition, 1, WHO) for partition in partitions]
    store = Kept(dict.fromkeys(partitions, Committed(0, text)))
    client = Long(broker, "g")
    opened: list[int] = []

    def count() -> None:
        opened.append(sum(assignment.opened for assignment in assignments))

    def drop() -> None:
        assignments[-1].stopped = assignments[-1].dropped = True

    opener = opener_of(client, store, count)
    asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(drop))
    await opener.open(assignments)
    assert opened[:19] == list(range(1, 20))
    assert [assignment.state for assignment in assignments] == [AssignmentState.OPEN] * 19 + [AssignmentState.DROPPED]
    assert len(assignments[0].ledger.incompletes) == 6_000
    assert not assignments[-1].ledger.incompletes
