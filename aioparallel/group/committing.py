"""The interface to the component that writes positions.

A committer has one coroutine, and nothing else commits. The usual one (:mod:`aioparallel.group.committer`) writes to an
:class:`~aioparallel.group.offset_stores.OffsetStore`. Another one writes positions in transactions, together with the
outputs of handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Client, CommitFault
from aioparallel.group.extensions import Extensions
from aioparallel.group.offset_commits import MetadataLimit, WrittenMaps
from aioparallel.group.offset_stores import Positions
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import TransactionStats
from aioparallel.records.record import TopicPartition

__all__ = ["CommitStrategy", "GroupContext", "PositionCommitter", "owed", "reasons"]


class PositionCommitter(Protocol):
    """Commits the ledgers of assignments. The methods with a default are for committers that write outputs as well."""

    limit: MetadataLimit
    """How many characters of metadata the broker accepts."""
    maps: WrittenMaps
    commits: int
    """How many commit requests were acknowledged for all their partitions."""
    failed_commits: int
    """How many commits of a single partition failed."""

    @property
    def cut_maps(self) -> int:
        """How many maps did not fit and were cut."""

    async def run(self) -> None:
        """Commit at intervals until cancelled. Raises what must end the run."""

    def soon(self) -> None:
        """Commit now rather than at the end of the interval."""

    async def commit_until(
        self, assignments: Iterable[Assignment], deadline: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """Commit the current ledgers of these assignments. Tries again until the loop's time reaches ``deadline``.
        Refused commits are tried once more, fenced ones are not. Returns the partitions whose commit was not
        acknowledged, and why."""

    async def finish(self, assignments: Collection[Assignment], timeout: float) -> None:
        """Wait until the outputs of all ended records are committed. Gives up after ``timeout`` seconds without
        progress. Called at ``until="end"``, when all records have ended."""

    def has_outputs_of(self, assignment: Assignment, offset: int) -> bool:
        """Return whether a record is complete here, but outputs of it wait to be committed with its offset."""
        return False

    def trouble(self) -> Sequence[str]:
        """Return what prevents a commit at this moment, as far as it is known."""
        return ()

    def problems(self) -> Sequence[Problem]:
        """Return health problems, except those that the assignments report."""
        return ()

    def transactions(self) -> TransactionStats | None:
        """Return statistics of transactions; None if positions are written without."""
        return None


class GroupContext(NamedTuple):
    """The run of one group member, as a commit strategy sees it."""

    client: Client
    group_id: str
    options: Options
    scheduler: Scheduler
    assignments: Callable[[], Collection[Assignment]]
    on_unblocked: Callable[[], None]
    """Called when more records may be fetched and start, because maps fit again."""
    extensions: Extensions
    fatal: Callable[[BaseException], None]
    """Ends the run with this error."""


class CommitStrategy(NamedTuple):
    """Where the positions of one member are stored, and what writes them."""

    positions: Positions
    committer: PositionCommitter
    refuses_unreadable_maps: bool = False
    """Whether a committed text that is no offset map ends the run. If not, records above the committed offset run
    again.
    """
    refuses_resets: bool = False
    """Whether a position outside the log ends the run. If not, it is moved into the log. A strategy that stores more
    than positions should refuse: its data would count for other records that get the same offsets."""


def owed(
    asked: Mapping[Assignment, tuple[int, int]], why: Mapping[TopicPartition, CommitFault]
) -> dict[TopicPartition, CommitFault]:
    """Return the partitions whose ledger is not committed at the version in ``asked``, and why."""
    # An assignment that went meanwhile without this commit may have another owner now.
    gone = {assignment.partition: CommitFault.FENCED for assignment in asked if not assignment.current}
    return {
        assignment.partition: gone.get(assignment.partition) or why.get(assignment.partition, CommitFault.RETRIABLE)
        for assignment, version in asked.items()
        if assignment.owes(version)
    }


_REASONS = {
    CommitFault.RETRIABLE: "no answer within the deadline",
    CommitFault.METADATA_TOO_LARGE: "the broker accepts no metadata of that length",
    CommitFault.FENCED: "fenced: the partition may have another owner",
    CommitFault.REFUSED: "refused: not authorised, or the topic is gone",
    CommitFault.HELD: "an output of one of its records is refused, and the record is not dead-lettered yet",
}


def reasons(owing: Mapping[TopicPartition, CommitFault]) -> dict[TopicPartition, str]:
    """Return why commits were not acknowledged, in words."""
    return {partition: _REASONS[fault] for partition, fault in owing.items()}
