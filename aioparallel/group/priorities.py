"""Which partitions are more urgent than others, for starts and for fetches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from aioparallel.config.options import Options
from aioparallel.engine.schedule.fairness import MakeTurnQueue, round_robin
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assignment import Assignment
from aioparallel.group.intake import Intake, Plan
from aioparallel.records.record import TopicPartition

__all__ = ["MakePlanner", "Planner", "Priorities", "RankOf", "no_rank"]

RankOf = Callable[[TopicPartition], int]
"""The priority of a partition, from 0 on."""


class Planner(Protocol):
    """Plans fetches, as :class:`~aioparallel.group.intake.Intake` does."""

    def plan(self, assignments: Sequence[Assignment]) -> Plan:
        """Plan the next fetch, which follows at once."""

    def set_max_concurrency(self, most: int) -> None:
        """Plan for so many handlers at once."""

    def saw(self, records: int, size: int, rank: int) -> None:
        """Note that so many records of this rank were admitted, with ``size`` bytes."""


MakePlanner = Callable[[Options, Scheduler, Callable[[], tuple[int, int]]], Planner]
"""Makes a planner, with the arguments of :class:`~aioparallel.group.intake.Intake`."""


def _is_one() -> bool:
    """The assignment of a single group is always whole."""
    return True


def no_rank(partition: TopicPartition) -> int:
    """All partitions are equally urgent."""
    return 0


class Priorities(NamedTuple):
    """How a run shares its slots and its fetches among partitions. By default all are equal."""

    turns: MakeTurnQueue = round_robin
    rank_of: RankOf = no_rank
    planner: MakePlanner = Intake
    is_whole: Callable[[], bool] = _is_one
    """Whether all groups of the client have sent an assignment."""
