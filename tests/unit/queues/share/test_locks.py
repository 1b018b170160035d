"""What must be done before locks end, at any time and in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel import Record, TopicPartition
from aioparallel.queues.share.locks import DueLocks, Lock, Locks, Stage, reserve_of

P = TopicPartition("t", 0)
SECONDS = 30.0


class Keeping:
    """Locks, and the stages of their records."""

    def __init__(self, *stages: Stage, ends: float = SECONDS) -> None:
        self.stages: dict[Lock, Stage] = {}
        self.locks = Locks(self.stages.__getitem__, lambda record: False)
        made = [Lock(P, offset, Record("t", 0, offset)) for offset in range(len(stages))]
        self.stages |= dict(zip(made, stages, strict=True))
        self.made = made
        self.locks.add(made, ends, 0.0)

    def look(self, now: float, per_second: float = 0.0, may_renew: bool = True) -> DueLocks:
        return self.locks.look(now, per_second, may_renew)


def offsets(locks: list[Lock]) -> list[int]:
    return [lock.offset for lock in locks]


ALL = (Stage.WAITING, Stage.RUNNING, Stage.PARKED, Stage.PRODUCING, Stage.UNREADABLE)


def test_nothing_is_due_in_the_first_half() -> None:
    """The next look is at the half."""
    keeping = Keeping(*ALL)
    assert keeping.look(1.0) == ([], [], [], [])
    assert keeping.locks.next_look == 15.0


def test_what_has_begun_is_renewed_from_the_half_on() -> None:
    """What was not begun is released, as nothing begins. What cannot be read waits."""
    keeping = Keeping(*ALL)
    due = keeping.look(15.0)
    assert (offsets(due.renew), offsets(due.release)) == ([1, 2, 3], [0])
    for lock in due.renew:
        lock.is_renewing = True
    keeping.locks.remove(due.release[0])
    assert keeping.look(20.0) == ([], [], [], [])  # the renewals are not answered yet


def test_a_renewed_lock_begins_anew() -> None:
    """And an answer for one that was removed meanwhile changes nothing."""
    keeping = Keeping(Stage.RUNNING, Stage.RUNNING)
    keeping.look(15.0)
    first, second = keeping.made
    keeping.locks.remove(second)
    keeping.locks.renewed(first, 45.0, 15.0)
    keeping.locks.renewed(second, 45.0, 15.0)
    assert keeping.locks.held() == [first]
    assert keeping.look(29.0) == ([], [], [], [])
    assert keeping.look(30.0).renew == [first]


def test_a_renewal_without_an_answer_is_repeated() -> None:
    """Once it is known that there is none."""
    keeping = Keeping(Stage.RUNNING)
    (lock,) = keeping.look(15.0).renew
    lock.is_renewing = True
    assert not keeping.look(17.0).renew
    lock.is_renewing = False
    assert keeping.look(19.0).renew == [lock]


def test_without_renewals_everything_ends_shortly_before_the_lock() -> None:
    """A handler is cancelled, a record that waits for its retry is released, outputs may still be acknowledged."""
    keeping = Keeping(*ALL)
    due = keeping.look(SECONDS / 2, per_second=1.0, may_renew=False)
    assert due == ([], [], [], [])
    due = keeping.look(SECONDS - reserve_of(SECONDS), per_second=1.0, may_renew=False)
    assert (offsets(due.give_up), sorted(offsets(due.release))) == ([1], [0, 2, 4])
    for lock in due.release:
        keeping.locks.remove(lock)
    assert keeping.look(SECONDS - 1.0, may_renew=False) == ([], [], [], [])  # given up once
    due = keeping.look(SECONDS, may_renew=False)
    assert offsets(due.lost) == [1, 3]
    assert keeping.locks.next_look is None


def test_a_lock_that_ends_is_lost() -> None:
    """Whatever its record does."""
    keeping = Keeping(*ALL)
    due = keeping.look(SECONDS)
    assert offsets(due.lost) == [0, 1, 2, 3, 4]
    assert all(lock.is_lost for lock in keeping.made)
    assert not len(keeping.locks)


def test_what_begins_in_time_keeps_its_place() -> None:
    """What begins within another lock is renewed, the rest is released: that is what was acquired last."""
    due = Keeping(*[Stage.WAITING] * 40).look(15.0, per_second=0.5)  # 6.5 begin before the reserve, 21.5 within a lock
    assert (offsets(due.renew), offsets(due.release)) == (list(range(7, 22)), list(range(22, 40)))
    due = Keeping(*[Stage.WAITING] * 40).look(15.0, per_second=0.5, may_renew=False)
    assert offsets(due.release) == list(range(7, 40))


@given(
    st.lists(st.sampled_from(ALL), min_size=1, max_size=8),
    st.lists(
        st.tuples(
            st.floats(0.01, 20.0), st.booleans(), st.floats(0, 2.0), st.sampled_from(["renew", "fail", "ignore"])
        ),
        max_size=12,
    ),
    st.sampled_from(ALL),
)
def test_any_course(stages: list[Stage], looks: list[tuple[float, bool, float, str]], later: Stage) -> None:
    """Each lock is in one list at most, lost exactly when it has ended, and never forgotten before that. A look that is
    made when it is due never has to be made again at the same time."""
    keeping, now = Keeping(*stages), 0.0
    over: set[Lock] = set()
    for after, may_renew, per_second, answer in looks:
        now += after
        due = keeping.look(now, per_second, may_renew)
        every = [*due.renew, *due.release, *due.give_up, *due.lost]
        assert len(set(every)) == len(every)
        assert over.isdisjoint(every)
        upcoming = keeping.locks.next_look
        assert upcoming is None or upcoming > now
        for lock in keeping.made:
            if lock not in over:
                assert (lock in due.lost) == (lock.ends <= now + 0.0005), lock.ends
        over.update(due.lost)
        for lock in due.release:
            keeping.locks.remove(lock)
            over.add(lock)
        for lock in due.renew:
            assert may_renew
            if answer == "renew":
                keeping.locks.renewed(lock, now + SECONDS, now)
            lock.is_renewing = answer == "ignore"
        for lock in keeping.made:
            if keeping.stages[lock] is Stage.WAITING:
                keeping.stages[lock] = later
        assert set(keeping.locks.held()) == set(keeping.made) - over
