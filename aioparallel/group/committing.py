"""Who writes positions, and what the rest of a member may ask of it.

A committer is one coroutine, and the only place that commits. The usual one (:mod:`aioparallel.group.committer`) writes
through an :class:`~aioparallel.group.stores.OffsetStore`. Another one writes positions in transactions with the outputs
of handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from aioparallel.engine.scheduler import Scheduler
from aioparallel.group.client import Client, CommitFault
from aioparallel.group.extensions import Extensions
from aioparallel.group.offset_commits import MetadataLimit
from aioparallel.group.sessions import Session
from aioparallel.group.stores import Positions
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import TransactionStats
from aioparallel.options import Options
from aioparallel.records import TopicPartition

__all__ = ["CommitStrategy", "GroupContext", "PositionCommitter", "owed", "reasons"]


class PositionCommitter(Protocol):
    """Writes what ledgers say."""

    limit: MetadataLimit
    """Characters of metadata that the broker takes."""
    commits: int
    """Acknowledged for every partition in them."""
    failed_commits: int
    """Of one partition, not taken."""

    @property
    def cut_maps(self) -> int:
        """Maps that did not fit and were cut."""

    async def run(self) -> None:
        """Commit for ever; ends by cancellation. Raises what must end the run."""

    def soon(self) -> None:
        """Commit now rather than at the end of the interval."""

    async def commit_until(self, sessions: Iterable[Session], deadline: float) -> Mapping[TopicPartition, CommitFault]:
        """Commit what these sessions have to say now, trying again until the event loop's clock reaches ``deadline``;
        what is refused is tried once more, what is fenced is not. Returns whose commit was not taken, and why."""

    async def finish(self, sessions: Collection[Session], timeout: float) -> None:
        """All records have ended, and nobody is in a hurry: wait until what they have let leave is committed, for as
        long as that goes on; ``timeout`` seconds at least without any of it."""

    def trouble(self) -> Sequence[str]:
        """What keeps it from committing at this moment, as far as that is known."""

    def problems(self) -> Sequence[Problem]:
        """What somebody should look at, beside what the sessions tell themselves."""

    def transactions(self) -> TransactionStats | None:
        """Where positions are written in transactions: what became of them."""


class GroupContext(NamedTuple):
    """The run of one group member, as a commit strategy sees it."""

    client: Client
    group_id: str
    options: Options
    scheduler: Scheduler
    sessions: Callable[[], Collection[Session]]
    on_unblocked: Callable[[], None]
    """More may start: maps fit again."""
    extensions: Extensions
    fatal: Callable[[BaseException], None]
    """Ends the run."""


class CommitStrategy(NamedTuple):
    """Where the positions of one member are kept, and who writes them."""

    positions: Positions
    committer: PositionCommitter
    refuses_unreadable_maps: bool = False
    """Whether a committed text that is no offset map ends the run. Else records above the committed offset run again.
    """
    refuses_resets: bool = False
    """Whether a position outside the log ends the run. Else it is moved into the log: what is complete elsewhere would
    be taken for records of the new log with the same offsets."""


def owed(
    asked: Mapping[Session, tuple[int, int]], why: Mapping[TopicPartition, CommitFault]
) -> dict[TopicPartition, CommitFault]:
    """Of those that were to commit what they said at these versions: who still owes that, and why."""
    # One that went meanwhile without this commit has another owner now.
    gone = {session.partition: CommitFault.FENCED for session in asked if not session.current}
    return {
        session.partition: gone.get(session.partition) or why.get(session.partition, CommitFault.RETRIABLE)
        for session, version in asked.items()
        if session.owes(version)
    }


_REASONS = {
    CommitFault.RETRIABLE: "no answer within the deadline",
    CommitFault.METADATA_TOO_LARGE: "the broker takes no metadata of that length",
    CommitFault.FENCED: "fenced: the partition may have another owner",
    CommitFault.REFUSED: "refused: not authorised, or the topic is gone",
    CommitFault.HELD: "what one of its records produced is refused, and the record is not put away yet",
}


def reasons(owing: Mapping[TopicPartition, CommitFault]) -> dict[TopicPartition, str]:
    """Why commits were not acknowledged, in words."""
    return {partition: _REASONS[fault] for partition, fault in owing.items()}
