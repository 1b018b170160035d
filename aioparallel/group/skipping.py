"""Skips single records of a running consumer, wherever they are: completes their offsets without their handlers.

::

    look   wait for the cluster: do these records exist, in which leader epoch?
    check  refuse all of them if one cannot be skipped
    skip   one step: everything that waits is skipped, handlers that run are cancelled
    wait   for those handlers, for batches, for outputs that are being sent
    commit

A partition may be revoked at each of these waits. Offsets that were skipped by then are in its last commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from aioparallel.config.options import Options
from aioparallel.engine.run.processor import Processor
from aioparallel.engine.schedule.scheduler import AnyRecord
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import REQUEST_TIMEOUT, Client, Span
from aioparallel.group.committing import PositionCommitter
from aioparallel.group.leader_epochs import UNKNOWN, epoch_of
from aioparallel.offsets.editing import completed
from aioparallel.offsets.fitting import fit_offset_map
from aioparallel.offsets.offset_map import OffsetMap
from aioparallel.records.errors import ClientError, ConfigurationError, NotCommitted, NotSkipped
from aioparallel.records.history import Skip, history_of
from aioparallel.records.record import TopicPartition
from aioparallel.records.skipped import FoundAs, Skipped

__all__ = ["QUEUE_SKIPS_NOTHING", "Skipping"]

logger = logging.getLogger(__name__)

_LOOK_EVERY: Final = 0.02
"""Seconds between two looks at records that run. A skip is rare: no work is added to the end of each record for it."""
_GONE: Final = (
    "the partition was revoked before the commit was acknowledged. Its next owner may run the record: skip it there"
)
QUEUE_SKIPS_NOTHING: Final = (
    "this is a queue: its offsets are complete before the records run, and a record that is not handled is delivered "
    "again. Raise Reject in the handler, and it becomes a dead letter"
)
_MOST_LOOKED_AT: Final = 1_000
"""Offsets that are read at once to see whether they have records."""
_MOST_UNREAD: Final = 200_000
"""Offsets that may be left unread below a skipped one. Until they are read, each commit lists them all, which blocks
the event loop: for a tenth of a second with half a million of them (measured)."""
_SHOWN: Final = 20
"""Offsets in a log line."""


class _Unread(NamedTuple):
    """Offsets that are not fetched yet."""

    there: Sequence[int] = ()
    gone: Sequence[int] = ()
    """The log has no record there."""
    last_epoch: int = UNKNOWN
    """The leader epoch of the last one that is there."""


class Skipping:
    """Skips records of the assignments of one member. ``on_change()``: a record has ended, or more may start.
    ``refusal``: why this consumer skips nothing at all; None: it does."""

    def __init__(
        self,
        client: Client,
        processor: Processor,
        committer: PositionCommitter,
        assignments: Mapping[TopicPartition, Assignment],
        options: Options,
        commit: Callable[[Sequence[Assignment]], Awaitable[None]],
        on_change: Callable[[], None],
        refusal: str | None = None,
    ) -> None:
        self._client = client
        self._processor = processor
        self._committer = committer
        self._assignments = assignments
        self._options = options
        self._commit = commit
        self._on_change = on_change
        self._refusal = refusal

    async def skip(self, partition: TopicPartition, offsets: Sequence[int], *, dry_run: bool) -> list[Skipped]:
        """Skip these offsets, and commit that; or with ``dry_run`` only find them.

        Raises NotSkipped and NotCommitted."""
        wanted = _checked(offsets)
        if self._refusal is not None:
            raise NotSkipped(partition, wanted, self._refusal)
        assignment = self._open(partition, wanted)
        unread = await self._look(assignment, wanted)
        # From here to the first wait in _end(), nothing else runs.
        self._expect_open(assignment, wanted)
        asked = [offset for offset in wanted if offset not in unread.gone]
        self._expect_no_outputs(assignment, asked)
        waiting = [offset for offset in asked if not assignment.ledger.is_complete(offset)]
        self._expect_room(assignment, waiting)
        found = self._processor.scheduler.find(assignment) if waiting else {}
        was: dict[int, FoundAs] = {offset: _place(assignment, offset, found) for offset in asked}
        was |= dict.fromkeys(unread.gone, "no record")
        if dry_run:
            likely = ("not read", "buffered", "parked", "in flight")
            return [Skipped(offset, was[offset], was[offset] in likely) for offset in wanted]
        skipped = await self._end(assignment, waiting, found, unread)
        await self._committed(assignment, wanted)
        return [Skipped(offset, was[offset], offset in skipped) for offset in wanted]

    # -- looking ----------------------------------------------------------------------------------------

    def _open(self, partition: TopicPartition, offsets: Sequence[int]) -> Assignment:
        assignment = self._assignments.get(partition)
        if assignment is None:
            raise NotSkipped(partition, offsets, "this consumer does not have the partition (now)")
        self._expect_open(assignment, offsets)
        return assignment

    def _expect_open(self, assignment: Assignment, offsets: Sequence[int]) -> None:
        if assignment.state is AssignmentState.OPENING or assignment.resetting:
            raise NotSkipped(assignment.partition, offsets, "the partition is being opened; try again in a moment")
        if assignment.state is not AssignmentState.OPEN:
            raise NotSkipped(assignment.partition, offsets, "the partition is being given away, or the consumer stops")

    async def _look(self, assignment: Assignment, offsets: Sequence[int]) -> _Unread:
        """Ask the cluster about offsets that are not fetched yet. Their records may be fetched meanwhile."""
        partition, ledger = assignment.partition, assignment.ledger
        unread = [one for one in offsets if one >= ledger.position and not ledger.is_complete(one)]
        if not unread:
            return _Unread()
        try:
            ends = await self._client.end_offsets([partition], REQUEST_TIMEOUT)
            if partition in ends and unread[-1] < ends[partition]:
                return await self._last_record(partition, unread)
        except TimeoutError as error:
            raise NotSkipped(partition, offsets, "no broker has answered whether these records exist") from error
        except ClientError as error:
            raise NotSkipped(partition, offsets, f"they could not be read: {error}") from error
        if partition not in ends:
            raise NotSkipped(partition, offsets, "the partition has no leader that says where its log ends")
        raise NotSkipped(partition, unread[-1:], f"the log ends at {ends[partition]}, as far as it may be read")

    async def _last_record(self, partition: TopicPartition, offsets: Sequence[int]) -> _Unread:
        """Find the last of these offsets that has a record. Each look takes a request and more, so the looks go back by
        ever larger steps: a compacted log may have gaps of thousands of offsets."""
        there, gone, step = list(offsets), list[int](), 1
        while there:
            start, last = max(there[0], there[-1] + 1 - step), there[-1]
            async with asyncio.timeout(REQUEST_TIMEOUT):
                epochs = await self._epochs(partition, Span(start, last + 1))
            while there and there[-1] >= start:
                if there[-1] in epochs:
                    return _Unread(there, gone, epochs[there[-1]])
                gone.append(there.pop())
            step = min(2 * step, _MOST_LOOKED_AT)
        return _Unread((), gone)

    async def _epochs(self, partition: TopicPartition, span: Span) -> dict[int, int]:
        """Return the leader epochs of the records there are, by offset. A commit that covers a record must have its
        epoch, or a reader of the commit would take the record for a lost one (KIP-320)."""
        found: dict[int, int] = {}
        async with aclosing(self._client.read({partition: span}, as_fetched=True)) as reads:
            async for fetched in reads:
                for record in fetched.records:
                    found[record.offset] = epoch_of(fetched.leader_epochs, record.offset)
        return found

    # -- checking ---------------------------------------------------------------------------------------

    def _expect_no_outputs(self, assignment: Assignment, offsets: Sequence[int]) -> None:
        if held := [offset for offset in offsets if self._committer.has_outputs_of(assignment, offset)]:
            raise NotSkipped(
                assignment.partition, held, "its handler has ended, and its outputs are part of the open transaction"
            )

    def _expect_room(self, assignment: Assignment, offsets: Sequence[int]) -> None:
        """Raise if the offset map cannot hold these offsets: after a crash they would run again."""
        if not offsets:
            return
        ledger, last = assignment.ledger, offsets[-1]
        if (unread := ledger.left_unread(offsets)) > _MOST_UNREAD:
            raise NotSkipped(
                assignment.partition,
                [last],
                f"{unread:,} offsets before it are not read yet, and at most {_MOST_UNREAD:,} may be: skip it when "
                "more of them are read",
            )
        before = ledger.snapshot()
        try:
            after = completed(before, offsets)
        except ValueError as error:
            raise NotSkipped(assignment.partition, offsets[-1:], str(error)) from error
        reached = self._reach(after)
        if after.base_offset <= last and reached < last:
            raise NotSkipped(
                assignment.partition,
                [last],
                f"the offset map would not fit into the commit's metadata: it would end at {reached}",
            )

    def _reach(self, known: OffsetMap) -> int:
        limit, formats = self._committer.limit.characters, self._options.offset_map_formats
        return fit_offset_map(
            known.base_offset, known.highest_succeeded, known.incompletes, limit=limit, formats=formats
        )[1]

    # -- skipping ---------------------------------------------------------------------------------------

    async def _end(
        self, assignment: Assignment, offsets: Sequence[int], found: Mapping[int, AnyRecord], unread: _Unread
    ) -> set[int]:
        """End these offsets. Returns those that are skipped; the others have ended in another way meanwhile."""
        skipped = {offset for offset in offsets if offset not in found}
        assert all(offset >= assignment.ledger.position for offset in skipped)
        if skipped:
            assignment.leader_epochs.note(max(skipped), unread.last_epoch)
            assignment.complete_unread(sorted(skipped))
        running = {found[offset] for offset in offsets if offset in found}
        try:
            skipped |= self._skip_waiting(assignment, running)
            self._log(assignment, offsets)
            if running:
                skipped |= await self._wait(assignment, running)
        finally:
            self._on_change()
        return skipped

    async def _committed(self, assignment: Assignment, offsets: Sequence[int]) -> None:
        """Commit. Raises NotSkipped if the partition has gone without an acknowledged commit, and NotCommitted."""
        version = assignment.ledger.version
        try:
            if assignment.current:
                await self._commit([assignment])
        except NotCommitted as error:
            if assignment.current:
                raise
            raise NotSkipped(assignment.partition, offsets, _GONE) from error
        if not assignment.current and assignment.owes(version):
            raise NotSkipped(assignment.partition, offsets, _GONE)

    def _skip_waiting(self, assignment: Assignment, records: set[AnyRecord]) -> set[int]:
        """Skip those of these records that wait, and take them out of ``records``. Returns their offsets."""
        if assignment.stopped:
            return set()
        waiting = {one for one in records if one not in assignment.in_flight and one not in assignment.producing}
        if waiting:
            self._processor.skip(assignment, waiting)
            records -= waiting
        return {record.offset for record in waiting}

    async def _wait(self, assignment: Assignment, running: set[AnyRecord]) -> set[int]:
        """Skip records that run when they end. Raises NotSkipped if they do not end in time, or the partition goes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.drain_timeout + 2 * _LOOK_EVERY
        skipped = set[int]()
        asked = set(running)
        try:
            while True:
                for record in running:
                    history = history_of(record)
                    if history.skip is None:
                        history.skip = Skip.ASKED
                self._processor.pool.skip(running & assignment.in_flight)
                await asyncio.sleep(_LOOK_EVERY)
                ended = {one for one in running if assignment.ledger.is_complete(one.offset)}
                skipped |= {one.offset for one in ended if history_of(one).skip is Skip.DONE}
                running -= ended
                if assignment.dropped and running:
                    raise NotSkipped(assignment.partition, _offsets(running), "the partition was revoked meanwhile")
                skipped |= self._skip_waiting(assignment, running)
                if not running:
                    return skipped
                if loop.time() >= deadline:
                    raise NotSkipped(assignment.partition, _offsets(running), self._trouble(assignment, running))
        finally:
            cancelled = self._processor.pool.skipped
            for record in asked:  # a handler that was cancelled for this is skipped in any case
                history = history_of(record)
                if history.skip is Skip.ASKED and record not in cancelled:
                    history.skip = None

    def _trouble(self, assignment: Assignment, running: set[AnyRecord]) -> str:
        seconds = f"{self._options.drain_timeout:g} s (drain_timeout)"
        if not running.isdisjoint(self._processor.pool.skipped):
            return (
                f"its handler still runs {seconds} after it was cancelled. Its key waits until it ends, and the record "
                "is skipped then"
            )
        if any(record in assignment.in_flight for record in running):
            return f"its handler, or that of its batch, has not ended within {seconds}; it is not skipped"
        return f"its outputs or its dead letter were not acknowledged within {seconds}; it is not skipped"

    def _log(self, assignment: Assignment, offsets: Sequence[int]) -> None:
        if not offsets:
            return
        more = f" and {len(offsets) - _SHOWN} more" if len(offsets) > _SHOWN else ""
        logger.warning(
            "%s: skipping on request: %s%s",
            assignment.partition,
            ", ".join(map(str, offsets[:_SHOWN])),
            more,
            extra={"action": "skip_requested", "offsets": list(offsets[:_SHOWN]), "count": len(offsets)},
        )


def _checked(offsets: Sequence[int]) -> list[int]:
    """The offsets, ascending, each once. Raises ConfigurationError."""
    for offset in offsets:
        if type(offset) is not int or offset < 0:
            raise ConfigurationError("skip offset", offset, "must be a whole number, 0 or more")
    return sorted(set(offsets))


def _offsets(records: set[AnyRecord]) -> list[int]:
    return sorted(record.offset for record in records)


def _place(assignment: Assignment, offset: int, found: Mapping[int, AnyRecord]) -> FoundAs:
    if assignment.ledger.is_complete(offset):
        return "complete"
    record = found.get(offset)
    if record is None:
        return "not read"
    if record in assignment.in_flight:
        return "in flight"
    if record in assignment.producing:
        return "producing"
    return "parked" if record in assignment.parked else "buffered"
