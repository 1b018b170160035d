"""A group that begins anew (it was deleted, or a topic was): what it had written of its state before does not count.

Generations begin at 1 again, and the same offsets are committed again. What a group puts away in one life, and not in
the other, shows in the state of which life the increments are that a restart takes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed, Generation
from aioparallel.persistence.state.table import Table
from aioparallel.persistence.state.view import Restored, StateView
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.keeping_state import GROUP, P0, broker_of, keeping, sums, totals, write
from tests.support.waiting import until
from tests.unit.persistence.state.test_restores import NAMES
from tests.unit.persistence.state.test_trouble import both, committed, running


class Lives:
    """A group, its members one after the other. ``bad``: values that are put away."""

    def __init__(self, broker: InMemoryBroker, *, together: bool) -> None:
        self.bad: set[int] = set()
        self._broker = broker
        self._together = together

    def member(self) -> ParallelConsumer[Any, Any]:
        """The next one."""

        async def put_away(record: Record, error: Exception) -> None:
            """A dead letter."""

        policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
        return keeping(self._broker, sums(snapshot_after=5), together=self._together, failures=policy)

    async def handle(self, record: Record) -> None:
        """As these do it."""
        if int(record.value or b"") in self.bad:
            raise ValueError

    async def handle_up_to(self, offset: int) -> None:
        """By one member, which is there long enough for a full snapshot."""
        async with running(self.member(), self.handle):
            await until(lambda: committed(self._broker) == offset)
            await asyncio.sleep(2)

    async def handle_by_several(self, *numbers: int) -> None:
        """Of these, which are written now, five each: so generations of this life grow large."""
        for at in range(0, len(numbers), 5):
            before = max(committed(self._broker), 0)
            write(self._broker, *numbers[at : at + 5])
            await self.handle_up_to(before + len(numbers[at : at + 5]))

    async def restarted(self) -> dict[bytes, int] | None:
        """The state that one more member begins with."""
        consumer = self.member()
        async with running(consumer, self.handle):
            return consumer.states(P0)

    def delete_group(self) -> None:
        """As ``kafka-consumer-groups.sh --delete`` does: its offsets and its generation are gone."""
        del self._broker._groups[GROUP]


def make_anew(broker: InMemoryBroker, topic: str, *, is_compacted: bool = False) -> None:
    """Delete it, and create it again."""
    broker.delete_topic(topic)
    broker.create_topic(topic)
    broker.make_compacted(topic, compacted=is_compacted)


@both
async def test_a_group_that_was_deleted_begins_anew(together: bool) -> None:
    """All is handled again, with other outcomes; restarts have the state of that, for ever."""
    broker = broker_of()
    lives = Lives(broker, together=together)
    lives.bad = {3}
    await lives.handle_by_several(*range(20))
    lives.delete_group()
    lives.bad = {7, 12}
    await lives.handle_up_to(20)
    for _ in range(2):
        assert await lives.restarted() == totals(*(set(range(20)) - lives.bad))
    await lives.handle_by_several(*range(20, 30))
    assert await lives.restarted() == totals(*(set(range(30)) - lives.bad))


@both
async def test_each_life_has_its_own_state(together: bool) -> None:
    """However many there were, and whichever of them had more generations."""
    broker = broker_of()
    lives = Lives(broker, together=together)
    await lives.handle_by_several(*range(20))
    for bad, restarts in ({1, 2}, 3), ({3, 4}, 0), ({5}, 1):
        lives.delete_group()
        lives.bad = bad
        await lives.handle_up_to(20)
        for _ in range(restarts):
            await lives.handle_up_to(20)
        assert await lives.restarted() == totals(*(set(range(20)) - bad))


@both
@pytest.mark.parametrize("is_group_deleted", [False, True], ids=["the topic alone", "and the group"])
async def test_a_topic_that_was_made_anew_is_another_life(together: bool, is_group_deleted: bool) -> None:
    """Its offsets are those of other records: what was put away of the old ones counts."""
    broker = broker_of()
    lives = Lives(broker, together=together)
    lives.bad = {3}
    await lives.handle_by_several(*range(20))
    make_anew(broker, "in")
    if is_group_deleted:
        lives.delete_group()
    lives.bad = {1_007}
    numbers = set(range(1_000, 1_020))
    write(broker, *sorted(numbers))
    await lives.handle_up_to(20)
    for _ in range(2):
        assert await lives.restarted() == totals(*(numbers - lives.bad))


@both
async def test_an_increments_topic_that_was_made_anew_while_a_member_runs(together: bool) -> None:
    """Its life had begun at an offset that the new topic has not reached when the next one begins: no increment is of a
    life that begins behind it."""
    broker = broker_of()
    for number in range(100):
        broker.append(NAMES.increments, b"of another group", key=b"%d" % number, partition=0)
    lives = Lives(broker, together=together)
    lives.bad = {3}
    write(broker, *range(10))
    async with running(lives.member(), lives.handle):
        await until(lambda: committed(broker) == 10)
        make_anew(broker, NAMES.increments, is_compacted=True)
        for number in range(10, 20):
            write(broker, number)
            await until(lambda: committed(broker) == number + 1)  # noqa: B023 - it has ended by then
    assert await lives.restarted() == totals(*(set(range(20)) - lives.bad))
    lives.delete_group()
    lives.bad = {7}
    await lives.handle_up_to(20)
    assert broker.records(NAMES.increments)[-1].offset < 100
    for _ in range(2):
        assert await lives.restarted() == totals(*(set(range(20)) - lives.bad))


@both
async def test_a_state_that_is_made_of_the_log_is_another_life(
    together: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An offset is committed of which there is no increment, and the last one cannot be read: those before that do not
    come back, of whatever position they are."""
    broker = broker_of()
    lives = Lives(broker, together=together)
    lives.bad = {3}
    await lives.handle_by_several(*range(20))
    last = broker.records(NAMES.increments)[-1]
    broker.append(NAMES.increments, b'{"v":2}', key=last.key, partition=0)
    lives.delete_group()
    broker.group(GROUP).offsets[P0] = Committed(9, "")
    lives.bad = set()
    await lives.handle_up_to(20)
    actions = {getattr(record, "action", "") for record in caplog.records}
    assert {"increment_unreadable", "state_from_log"} <= actions
    for _ in range(2):
        assert await lives.restarted() == totals(*range(20))
    await lives.handle_by_several(*range(20, 30))
    assert await lives.restarted() == totals(*range(30))


@both
@pytest.mark.parametrize("offset", [5, 7, 10], ids=["the first member's", "without an increment", "a later member's"])
async def test_a_group_that_was_deleted_and_then_given_a_position(together: bool, offset: int) -> None:
    """It goes on from there with the state of its former life; what comes then is of another one, though the offsets
    are the same and the generations lower."""
    broker = broker_of()
    lives = Lives(broker, together=together)
    lives.bad = {3, 13}
    await lives.handle_by_several(*range(20))
    lives.delete_group()
    broker.group(GROUP).offsets[P0] = Committed(offset, "")
    lives.bad = {16}
    await lives.handle_up_to(20)
    for _ in range(2):
        assert await lives.restarted() == totals(*(set(range(20)) - {3, 16}))


async def test_a_member_whose_commits_are_refused_begins_no_life() -> None:
    """It has found an increment of a generation above its own: its successor's, or one of a group that was deleted.
    Only a commit that counts tells."""
    view = StateView(sums(), Assignment(P0, generation=Generation(5, "m")), lambda: 0.0)
    view.restore(Restored(Table(), 0, (), (), 0, incarnation=2, next_incarnation=40))
    assert view.has_news
    assert [view.increment(Committed(offset, ""), 1_000)[0].incarnation for offset in (1, 2)] == [2, 2]
    view.acknowledged()
    assert view.has_news
    assert view.increment(Committed(2, ""), 1_000)[0].incarnation == 40
    view.acknowledged()
    assert not view.has_news


@both
async def test_a_group_without_any_increment_has_them_from_then_on(together: bool) -> None:
    """It gets a state beside its offset: made of the log once, and what is put away from then on stays away."""
    broker = broker_of()
    lives = Lives(broker, together=together)
    write(broker, *range(20))
    broker.group(GROUP).offsets[P0] = Committed(10, "")
    lives.bad = {3, 15}
    await lives.handle_up_to(20)
    for end in 20, 30, 40:
        assert await lives.restarted() == totals(*(set(range(end)) - {15}))
        await lives.handle_by_several(*range(end, end + 10))
