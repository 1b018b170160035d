"""Builds the batch of each transaction: chooses the assignments, and how much of each goes in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

from aioparallel.group.assignment import Assignment
from aioparallel.group.committing import GroupContext
from aioparallel.group.sampling import Sampler
from aioparallel.persistence.transactions.batch import (
    PartitionSlice,
    Taken,
    TransactionBatch,
    quick_slice,
    slice_of,
    take,
)
from aioparallel.persistence.transactions.size import TransactionSize
from aioparallel.persistence.transactions.transaction_outbox import TransactionOutbox

__all__ = ["TransactionBuilder"]

_MANY_LANES: Final = 200_000
"""Records of an assignment that may be complete and not committed if the order of lanes matters (100 bytes each). Above
that, no more of its records start, so repeated aborts do not fill the memory."""

_LEFT_OUT: Final = 5.0
"""Seconds for which a partition is left out after a refusal of its offsets. It would abort all other partitions too."""


class TransactionBuilder:
    """Builds the batches of one committer. ``size``: the limit of a transaction."""

    def __init__(
        self, outbox: TransactionOutbox, member: GroupContext, sampler: Sampler, size: TransactionSize
    ) -> None:
        self._outbox = outbox
        self._waiting = outbox.waiting
        self._member = member
        self._options = member.options
        self._sampler = sampler
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._passed_over: set[Assignment] = set()  # none of their outputs fitted into the last transaction
        self._short: dict[Assignment, int] = {}  # the number of the batch in which the map did not fit
        self._left_out: dict[Assignment, float] = {}  # the brokers refused the offsets; left out until this time
        self._on_probation: set[Assignment] = set()  # the brokers refused the offsets last time
        self._waits: set[Assignment] = set()  # an extension refused the commit last time
        self._left_behind = 0
        self.count = 0
        """Batches so far."""
        self.is_part = False
        """Whether outputs wait that did not fit into the last batch."""

    def is_short(self, assignment: Assignment, since: int) -> bool:
        """Whether the assignment's map did not fit in a batch after number ``since``."""
        return self._short.get(assignment, 0) > since

    def is_refused(self, assignment: Assignment) -> bool:
        """Whether the brokers refused the assignment's offsets within the last seconds."""
        until = self._left_out.get(assignment)
        if until is not None and self._loop.time() >= until:
            del self._left_out[assignment]
        return assignment in self._left_out

    def refused(self, assignment: Assignment) -> None:
        """The brokers refuse the assignment's offsets. No more of its records start until they accept them."""
        self._left_out[assignment] = self._loop.time() + _LEFT_OUT
        self._on_probation.add(assignment)

    def let_wait(self, assignment: Assignment, *, is_waiting: bool) -> None:
        """An extension refuses the assignment's commit, or accepts it again. Outputs that wait for it do not count
        towards the limit of the outbox. If they would fill half of it, no more records of the assignment start."""
        if not is_waiting:
            self._waits.discard(assignment)
            return
        self._waits.add(assignment)
        self._outbox.left_behind(self._left_behind + self._waiting_bytes())

    def _waiting_bytes(self) -> int:
        return sum(
            [self._waiting.size_of(assignment) for assignment in self._waits if not self._is_left_out(assignment)]
        )

    def accepted(self, assignment: Assignment) -> None:
        """The brokers have accepted the assignment's offsets."""
        self._on_probation.discard(assignment)

    async def take(self) -> TransactionBatch:
        """Take a slice of each assignment. Assignments may end meanwhile."""
        slices: list[PartitionSlice] = []
        self.count += 1
        self._short = {assignment: cut for assignment, cut in self._short.items() if not assignment.dropped}
        self._left_out = {assignment: until for assignment, until in self._left_out.items() if not assignment.dropped}
        self._on_probation = {assignment for assignment in self._on_probation if not assignment.dropped}
        self._waits = {assignment for assignment in self._waits if not assignment.dropped}
        self._outbox.cutting()
        left_behind, is_much = 0, self._waiting_bytes() * 2 > self._options.producing.max_unacknowledged_bytes
        assignments = self._turn_of(
            [assignment for assignment in self._member.assignments() if assignment.may_commit()]
        )
        rooms, left = self._rooms(assignments), float(self._size.bytes)
        for assignment in assignments:
            if not assignment.may_commit():
                continue  # ended meanwhile
            if self._is_left_out(assignment):
                # Outputs of records in flight would wait here for long, so no more of them start.
                self._sampler.hold_back(assignment)
                left_behind += self._waiting.size_of(assignment)
                continue
            if not (assignment.dirty or self._waiting.has(assignment) or self._sampler.is_held_back(assignment)):
                continue
            taken = take(assignment, self._waiting)
            # An output that is larger than the limit of its assignment is sent alone, in its turn.
            one = await self._slice(taken, rooms.get(assignment, inf), 1 if left > 0 else 0)
            if not assignment.may_commit():
                continue  # ended while its map was written
            if (
                assignment in self._on_probation
                or (is_much and assignment in self._waits)
                or len(taken.lanes) > _MANY_LANES
            ):
                self._sampler.hold_back(assignment)
            else:
                self._sampler.note(one.whole, taken.ledger.map, taken.promised)
            left_behind += 0 if assignment in self._waits else one.behind
            await self._sampler.wrote(assignment, one.maps)
            if one.is_short:
                self._short[assignment] = self.count
                continue
            if one.is_passed_over:
                self._passed_over.add(assignment)
                continue
            left -= one.size
            if one.is_empty:
                self._sampler.acknowledged(one.sample)
            else:
                slices.append(one)
        self._left_behind = left_behind
        self._outbox.left_behind(left_behind + self._waiting_bytes())
        self.is_part = bool(self._passed_over) or any(one.is_part for one in slices)
        return TransactionBatch([one for one in slices if one.sample.assignment.may_commit()])

    def _rooms(self, assignments: Iterable[Assignment]) -> Mapping[Assignment, float]:
        """Returns the bytes for each assignment if not all waiting outputs fit: equal parts. The others get what an
        assignment does not need."""
        left: float = self._size.bytes
        if self._outbox.bytes <= left:
            return {}
        sizes = {
            assignment: self._waiting.size_of(assignment)
            for assignment in assignments
            if not self._is_left_out(assignment)
        }
        waiting = sorted(
            [assignment for assignment in sizes if sizes[assignment]], key=lambda assignment: sizes[assignment]
        )
        rooms: dict[Assignment, float] = {}
        for number, assignment in enumerate(waiting):
            rooms[assignment] = left / (len(waiting) - number)
            left -= min(rooms[assignment], sizes[assignment])
        return rooms

    def _turn_of(self, assignments: Sequence[Assignment]) -> Sequence[Assignment]:
        """Returns the assignments, first those that did not fit last time."""
        first, self._passed_over = self._passed_over, set()
        return sorted(assignments, key=lambda assignment: assignment not in first) if first else assignments

    async def _slice(self, taken: Taken, room: float, least: int) -> PartitionSlice:
        limit, formats = self._sampler.limit.characters, self._options.offset_map_formats
        if not taken.ledger.is_large and (one := quick_slice(taken, limit, formats, room)) is not None:
            return one
        write = partial(slice_of, taken, limit, formats, room, least)
        return await self._sampler.write(write, is_large=taken.ledger.is_large or taken.is_much)

    def _is_left_out(self, assignment: Assignment) -> bool:
        return assignment in self._waiting.held or self.is_refused(assignment)
