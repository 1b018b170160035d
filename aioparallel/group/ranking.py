"""Partitions of different urgency in one run: who has the next turn, and who may be read on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from aioparallel.engine.fairness import MakeTurnQueue, round_robin
from aioparallel.engine.scheduler import Scheduler
from aioparallel.group.intake import Intake, Plan
from aioparallel.group.sessions import Session
from aioparallel.options import Options
from aioparallel.records import TopicPartition

__all__ = ["UNRANKED", "MakePlanner", "Planner", "RankOf", "Ranking", "no_rank"]

RankOf = Callable[[TopicPartition], int]
"""How urgent a partition is, from 0 on."""


class Planner(Protocol):
    """Says what to fetch next, as :class:`~aioparallel.group.intake.Intake` does."""

    def plan(self, sessions: Sequence[Session]) -> Plan:
        """What to fetch now; a fetch follows at once."""

    def saw(self, records: int, size: int, rank: int) -> None:
        """So many records, of so many bytes, were admitted of it; they have this rank."""


MakePlanner = Callable[[Options, Scheduler, Callable[[], tuple[int, int]]], Planner]
"""As :class:`~aioparallel.group.intake.Intake` is made."""


def is_one() -> bool:
    """One group has told its assignment when it has told it."""
    return True


def no_rank(partition: TopicPartition) -> int:
    """As urgent as all others."""
    return 0


class Ranking(NamedTuple):
    """In what a run with ranks differs from one without."""

    turns: MakeTurnQueue = round_robin
    rank_of: RankOf = no_rank
    planner: MakePlanner = Intake
    is_whole: Callable[[], bool] = is_one
    """Whether all groups that the client is a member of have told what is assigned."""


UNRANKED = Ranking()
